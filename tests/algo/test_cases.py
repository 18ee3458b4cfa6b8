"""Failures reported of other PPO implementations: the numbers of each report, then the whole kind of the fault.

Each test names its case. Here: masks, rewards, advantages, statistics, denominators. Ratios, temperatures and the
controller are in ``test_cases_policy.py``; what concerns engines, schedules, stop tokens or services is tested where
that code lives.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from surefoot.algo import (
    aggregate,
    clip_fraction,
    explained_variance,
    gae,
    importance_weights,
    kl,
    merge_moments,
    moments,
    policy_loss,
    shape_rewards,
    value_loss,
    whiten,
    zero_gradient_fraction,
)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def on(*values):
    return torch.tensor([values], dtype=torch.bool)


def close(got, want, tol=1e-7):
    got, want = (torch.as_tensor(x, dtype=torch.float64).flatten().tolist() for x in (got, want))
    assert got == pytest.approx(want, abs=tol, rel=0)


def test_alg_01_the_penalty_has_the_sign_that_holds_the_policy_back():
    got = shape_rewards(torch.tensor([1.0]), kl(row(-1, -2), row(-1.5, -1)), on(1, 1), kl_coef=0.1)
    close(got, [-0.05, 1.1])
    assert got.sum().item() == pytest.approx(1.05)


@pytest.mark.parametrize("seed", range(10))
def test_alg_01_kind_leaving_the_reference_is_never_paid_in_expectation(seed):
    generator = torch.Generator().manual_seed(seed)
    policy, reference = torch.log_softmax(torch.randn(2, 8, generator=generator, dtype=torch.float64), -1)
    # Every token as a row of its own, weighted with the probability of choosing it.
    rewards = shape_rewards(
        torch.zeros(8), kl(policy[:, None], reference[:, None]), torch.ones(8, 1, dtype=torch.bool), kl_coef=0.5
    )
    assert (policy.exp() * rewards[:, 0]).sum().item() < 0


def test_alg_03_each_estimator_gives_its_own_number():
    logp, ref, mask = row(-2, -0.5), row(-1, -1), on(1, 1)
    for name, want in {"k1": -0.25, "k2": 0.3125, "k3": 0.41240624}.items():
        assert aggregate(kl(logp, ref, name), mask).item() == pytest.approx(want, abs=1e-8)


@pytest.mark.parametrize("seed", range(10))
def test_alg_03_kind_the_kl_that_trains_can_be_logged_from_the_rewards(batch, poisoned, seed):
    b = batch(seed)
    estimate = kl(poisoned(b.logp, b.mask, seed), poisoned(b.ref_logp, b.mask, seed + 1))
    rewards = shape_rewards(torch.zeros(len(b.mask)), estimate, b.mask, kl_coef=0.3)
    assert aggregate(estimate, b.mask).item() == pytest.approx(-aggregate(rewards, b.mask).item() / 0.3, abs=1e-12)
    assert aggregate(kl(b.logp, b.ref_logp, "k2"), b.mask).item() >= 0
    assert aggregate(kl(b.logp, b.ref_logp, "k3"), b.mask).item() >= 0


def test_alg_05_critic_outputs_on_padding_stay_out():
    mask = on(1, 1, 1, 0, 0)
    advantages, returns = gae(row(0, 0, 2, 0, 0), row(0.5, 0.25, 0.75, 40, -40), mask)
    close(advantages, [1.353125, 1.6875, 1.25, 0, 0])
    close(returns, [1.853125, 1.9375, 2.0, 0, 0])


@pytest.mark.parametrize("seed", range(20))
def test_alg_05_kind_nothing_off_the_mask_enters_the_estimates_or_the_losses(batch, poisoned, seed):
    b = batch(seed)

    def chain(spoil):
        def given(x, n):
            return poisoned(x, b.mask, seed + n) if spoil else x.clone()

        logp = given(b.logp, 0).requires_grad_()
        values = given(b.values, 1).requires_grad_()
        old, engine = given(b.old_logp, 2), given(b.rewards, 5)
        penalty = kl(old, given(b.ref_logp, 3))
        rewards = shape_rewards(b.scores, penalty, b.mask, kl_coef=0.1, step_rewards=given(b.returns, 4))
        advantages, returns = gae(rewards, values, b.mask, gamma=0.9)
        weights = importance_weights(old, engine)
        policy = weights * policy_loss(logp, old, whiten(advantages, b.mask)) + 0.1 * kl(logp, old, "k3")
        loss = aggregate(policy, b.mask) + aggregate(value_loss(values, given(b.old_values, 6), returns), b.mask)
        loss.backward()
        variance = explained_variance(values, returns, b.mask)
        return [loss.detach(), logp.grad, values.grad, advantages, returns, clip_fraction(logp, old, b.mask), variance]

    for clean, spoiled in zip(chain(False), chain(True), strict=True):
        torch.testing.assert_close(spoiled, clean, rtol=0, atol=0, equal_nan=True)


def test_alg_06_the_score_falls_on_the_last_generated_token():
    lengths = torch.tensor([3, 5, 1])
    mask = torch.arange(5)[None] < lengths[:, None]
    rewards = shape_rewards(torch.ones(3), torch.zeros(3, 5), mask, kl_coef=0.1)
    assert rewards.argmax(1).tolist() == [2, 4, 0]
    assert rewards.sum(1).tolist() == [1, 1, 1]
    advantages, _ = gae(rewards[:1, :3].double(), row(0.1, 0.2, 0.3), mask[:1, :3])
    close(advantages, [0.82675, 0.765, 0.7])


@pytest.mark.parametrize("seed", range(20))
def test_alg_06_kind_the_slot_follows_the_mask_wherever_it_ends(batch, seed):
    b = batch(seed)
    got = shape_rewards(torch.full((len(b.mask),), 3.0), torch.zeros_like(b.logp), b.mask, kl_coef=0.1)
    for values, mask in zip(got.tolist(), b.mask.tolist(), strict=True):
        last = max((t for t, chosen in enumerate(mask) if chosen), default=None)
        assert values == [3.0 if t == last else 0.0 for t in range(len(mask))]


def test_alg_08_degenerate_statistics_stay_finite():
    assert whiten(row(3.0), on(1)).tolist() == [[3.0]]
    assert whiten(row(2.0, 2.0, 2.0), on(1, 1, 1)).tolist() == [[0.0, 0.0, 0.0]]
    assert whiten(torch.zeros(1, 0), torch.zeros(1, 0, dtype=torch.bool)).tolist() == [[]]


@pytest.mark.parametrize("num", range(5))
@pytest.mark.parametrize("value", [0.0, 0.1, -1e20, 1e-30])
def test_alg_08_kind_few_or_equal_values_among_garbage(num, value):
    x, mask = torch.full((2, 4), math.nan), torch.zeros(2, 4, dtype=torch.bool)
    mask.view(-1)[2 : 2 + num] = True
    x[mask] = value
    got = whiten(x, mask)
    assert got[mask].tolist() == ([x[mask].item()] if num == 1 else [0.0] * num)
    assert (got[~mask] == 0).all()
    assert math.isfinite(aggregate(x, mask).item())


def test_alg_09_moments_over_all_ranks_and_the_mask():
    ranks = [(row(1, 2, 99), on(1, 1, 0)), (row(3, 4, 5, 6), on(1, 1, 1, 1))]
    merged = merge_moments([moments(x, mask) for x, mask in ranks])
    assert merged == pytest.approx((6, 3.5, 2.91666667), abs=1e-8)
    close(whiten(*ranks[0], moments=merged), [-1.46385011, -0.87831007, 0.0])
    close(whiten(*ranks[1], moments=merged), [-0.29277002, 0.29277002, 0.87831007, 1.46385011])


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_alg_09_kind_no_layout_changes_a_token(batch, poisoned, ranks, seed):
    b = batch(seed)
    x = poisoned(b.returns, b.mask, seed)
    rows = [list(range(rank, len(x), ranks)) for rank in range(ranks)]
    merged = merge_moments([moments(x[r], b.mask[r]) for r in rows])
    got = torch.empty_like(x)
    for r in rows:
        got[r] = whiten(x[r], b.mask[r], moments=merged)
    close(got, whiten(x, b.mask), tol=1e-12)


def test_alg_11_micro_batches_share_one_denominator():
    parts = [(row(4, 2), on(1, 1)), (row(1, 1, 1, 1, 1, 1), on(1, 1, 1, 1, 1, 1))]
    assert sum(aggregate(x, mask, count=8).item() for x, mask in parts) == 1.5


@pytest.mark.parametrize("how", ["token-mean", "sequence-mean", "sequence-sum"])
@pytest.mark.parametrize("seed", range(12))
def test_alg_11_kind_any_cut_of_the_policy_loss_gives_the_same_gradient(batch, poisoned, how, seed):
    b = batch(seed)
    old, advantages = poisoned(b.old_logp, b.mask, 1), poisoned(b.advantages, b.mask, 2)
    count = int(b.mask.sum()) if how == "token-mean" else int(b.mask.any(1).sum())
    grads = []
    for cuts in ([], sorted(b.rng.sample(range(len(b.mask) + 1), min(2, len(b.mask))))):
        logp = poisoned(b.logp, b.mask, 3).requires_grad_()
        edges = [0, *cuts, len(b.mask)]
        for start, stop in pairwise(edges):
            rows = slice(start, stop)
            loss = policy_loss(logp[rows], old[rows], advantages[rows])
            aggregate(loss, b.mask[rows], how, count=count).backward()
        grads.append(logp.grad)
    close(grads[1], grads[0], tol=1e-14)


def test_alg_12_ranks_with_few_tokens_do_not_weigh_more():
    ranks = [row(1, 1), row(0, 0, 0, 0, 0, 0)]
    scaled = [aggregate(x, torch.ones_like(x, dtype=torch.bool), count=8 / 2).item() for x in ranks]
    assert scaled == [0.5, 0.0]
    assert sum(scaled) / 2 == 0.25


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_alg_12_kind_averaging_gradients_over_any_number_of_ranks(batch, world, seed):
    b = batch(seed)
    count = int(b.mask.sum()) / world
    total = 0.0
    for rank in range(world):
        x, mask = b.values[rank::world], b.mask[rank::world]
        total += aggregate(x, mask, count=count).item() / world
    assert total == pytest.approx(aggregate(b.values, b.mask).item(), abs=1e-14)


def test_alg_25_rows_and_batches_without_tokens():
    loss, mask = torch.tensor([[5.0, 5.0], [1.0, 3.0]]), torch.tensor([[False, False], [True, True]])
    assert aggregate(loss, mask).item() == 2.0
    assert aggregate(loss, torch.zeros_like(mask)).item() == 0.0


@pytest.mark.parametrize("how", ["token-mean", "sequence-mean", "sequence-sum"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 3), (2, 0)])
def test_alg_25_kind_the_whole_loss_of_nothing_is_zero_with_zero_gradients(how, shape):
    mask = torch.zeros(shape, dtype=torch.bool)
    old, other = torch.full(shape, math.nan), torch.full(shape, math.inf)
    logp, values = (torch.full(shape, math.nan, requires_grad=True) for _ in range(2))
    rewards = shape_rewards(torch.full(shape[:1], math.nan), kl(old, other), mask, kl_coef=0.1)
    advantages, returns = gae(rewards, other, mask)
    policy, critic = policy_loss(logp, old, whiten(advantages, mask)), value_loss(values, other, returns)
    loss = aggregate(policy, mask, how) + aggregate(critic, mask, how)
    loss.backward()
    assert loss.item() == 0.0
    assert (logp.grad == 0).all() and (values.grad == 0).all()


def test_agt_02_tool_tokens_are_in_no_kl_and_no_return():
    difference, mask = row(0.1, 0.2, -5, -5, 0.1), on(1, 1, 0, 0, 1)
    estimate = kl(difference, torch.zeros_like(difference))
    assert aggregate(estimate, mask, "sequence-sum").item() == pytest.approx(0.4)
    rewards = shape_rewards(torch.tensor([1.0]), estimate, mask, kl_coef=0.1)
    close(rewards, [-0.01, -0.02, 0, 0, 0.99])
    _, returns = gae(rewards, torch.zeros_like(rewards), mask, lam=1.0)
    close(returns, [0.96, 0.97, 0, 0, 0.99])


@pytest.mark.parametrize("gap", [0, 1, 50, 500])
def test_agt_02_kind_a_tool_answer_of_any_length_costs_nothing(gap):
    def spread(*values, fill):
        return row(*values[:2], *[fill] * gap, *values[2:])

    mask = spread(True, True, True, True, fill=False).bool()
    old, ref = spread(-1, -2, -1, -3, fill=math.nan), spread(-1, -1, -2, -2, fill=math.inf)
    rewards = shape_rewards(torch.tensor([1.0]), kl(old, ref), mask, kl_coef=0.1)
    advantages, returns = gae(rewards, spread(0.5, 0.4, 0.3, 0.2, fill=1e9), mask, gamma=0.9, lam=0.8)
    plain_mask = on(1, 1, 1, 1)
    plain = shape_rewards(torch.tensor([1.0]), kl(row(-1, -2, -1, -3), row(-1, -1, -2, -2)), plain_mask, kl_coef=0.1)
    want = gae(plain, row(0.5, 0.4, 0.3, 0.2), plain_mask, gamma=0.9, lam=0.8)
    assert advantages[mask].equal(want[0][0]) and returns[mask].equal(want[1][0])


def test_agt_08_a_fill_value_on_one_side_reaches_nothing():
    new, old, mask = row(-0.5, 0.0, -0.7), row(-0.5, 1.0, -0.7), on(1, 0, 1)
    assert aggregate((new - old).exp(), mask).item() == 1.0
    assert aggregate(importance_weights(new, old), mask).item() == 1.0
    assert aggregate(policy_loss(new, old, row(1, 1, 1)), mask).item() == -1.0


@pytest.mark.parametrize("fill", [1.0, 0.0, -1e9, 1e9, -100.0, math.nan, math.inf, -math.inf])
def test_agt_08_kind_whatever_the_fill(batch, fill):
    for seed in range(10):
        b = batch(seed)
        filled = torch.where(b.mask, b.old_logp, fill)
        for fn in (
            lambda old, b=b: aggregate(policy_loss(b.logp, old, b.advantages), b.mask, "sequence-mean"),
            lambda old, b=b: aggregate(importance_weights(b.logp, old), b.mask),
            lambda old, b=b: aggregate(kl(b.logp, old, "k3"), b.mask, "sequence-sum"),
            lambda old, b=b: clip_fraction(b.logp, old, b.mask),
            lambda old, b=b: zero_gradient_fraction(b.logp, old, b.advantages, b.mask),
        ):
            assert fn(filled).item() == fn(b.old_logp).item()


def test_ux_02_metrics_use_the_mask_of_the_loss():
    surprise, mask = -row(-0.5, -1.5, 1.0), on(1, 1, 0)
    assert aggregate(surprise, mask).item() == 1.0
    assert aggregate(surprise, mask, "sequence-sum").item() == 2.0


@pytest.mark.parametrize("padding", [0, 1, 7, 100])
def test_ux_02_kind_padding_changes_no_metric(batch, padding):
    for seed in range(6):
        b = batch(seed)
        mask = torch.nn.functional.pad(b.mask, (0, padding))
        logp, old, values, returns = (
            torch.nn.functional.pad(x, (0, padding), value=1.0) for x in (b.logp, b.old_logp, b.values, b.returns)
        )
        for how in ("token-mean", "sequence-mean", "sequence-sum"):
            padded, plain = aggregate(-logp, mask, how).item(), aggregate(-b.logp, b.mask, how).item()
            assert padded == pytest.approx(plain, abs=1e-13) and plain >= 0
        assert clip_fraction(logp, old, mask).item() == clip_fraction(b.logp, b.old_logp, b.mask).item()
        close(
            explained_variance(values, returns, mask).nan_to_num(),
            explained_variance(b.values, b.returns, b.mask).nan_to_num(),
        )


def test_mem_01_what_is_kept_from_a_step_holds_no_graph(batch):
    b = batch(2)
    logp, values = b.logp.clone().requires_grad_(), b.values.clone().requires_grad_()
    rewards = shape_rewards(b.scores, kl(logp, b.ref_logp), b.mask, kl_coef=0.1)
    kept = [rewards, *gae(rewards, values, b.mask), whiten(values, b.mask), importance_weights(logp, b.ref_logp)]
    kept += [clip_fraction(logp, b.old_logp, b.mask), explained_variance(values, b.returns, b.mask)]
    assert not any(x.requires_grad for x in kept)
    assert all(isinstance(x, (int, float)) for x in moments(values, b.mask))


def test_srv_02_a_failed_row_with_its_mask_cleared_is_in_no_number():
    scores = torch.tensor([1.0, math.nan, 0.0])
    mask = torch.tensor([[True, True], [False, False], [True, False]])
    rewards = shape_rewards(scores, torch.zeros(3, 2), mask, kl_coef=0.1)
    assert rewards.isfinite().all()
    assert aggregate(rewards, mask, "sequence-sum").item() == 0.5
