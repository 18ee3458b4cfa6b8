"""GAE: a plain-Python twin, a case worked by hand, and the identities it must satisfy."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import gae
from surefoot.errors import ConfigError, DataError


def row_twin(rewards, values, mask, gamma, lam, after):
    """Eq. 16 as it stands: a discounted double sum over the action tokens of one row."""
    steps = [t for t, chosen in enumerate(mask) if chosen]
    v = [values[t] for t in steps] + [after]
    delta = [rewards[t] + gamma * v[i + 1] - v[i] for i, t in enumerate(steps)]
    advantages = [0.0] * len(mask)
    for i, t in enumerate(steps):
        advantages[t] = sum((gamma * lam) ** k * delta[i + k] for k in range(len(steps) - i))
    return advantages, [a + values[t] if mask[t] else 0.0 for t, a in enumerate(advantages)]


def twin(b, gamma, lam, after):
    rows = [
        row_twin(r, v, m, gamma, lam, a)
        for r, v, m, a in zip(b.rewards.tolist(), b.values.tolist(), b.mask.tolist(), after.tolist(), strict=True)
    ]
    return (torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in (0, 1))


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_double_sum_with_holes_empty_rows_and_garbage(batch, poisoned, seed):
    b = batch(seed)
    gamma, lam = b.rng.choice((0.0, 0.5, 0.97, 1.0)), b.rng.choice((0.0, 0.9, 0.95, 1.0))
    after = b.after if seed % 2 else torch.zeros_like(b.after)
    expected = twin(b, gamma, lam, after)
    actual = gae(
        poisoned(b.rewards, b.mask, seed),
        poisoned(b.values, b.mask, seed + 3),
        b.mask,
        gamma=gamma,
        lam=lam,
        bootstrap=b.after if seed % 2 else None,
    )
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        assert (got[~b.mask] == 0).all()


def test_by_hand_with_a_tool_answer_between_two_turns():
    # Action tokens 1, 2 and 5; gamma 0.5, lambda 0.5:
    # d3 = 4 + 0.5*2 - 3 = 2                      A3 = 2
    # d2 = 0 + 0.5*3 - 1 = 0.5                    A2 = 0.5 + 0.25*2 = 1
    # d1 = 1 + 0.5*1 - 2 = -0.5                   A1 = -0.5 + 0.25*1 = -0.25
    mask = torch.tensor([[False, True, True, False, False, True, False]])
    rewards = torch.tensor([[9.0, 1.0, 0.0, 9.0, 9.0, 4.0, 9.0]])
    values = torch.tensor([[9.0, 2.0, 1.0, 9.0, 9.0, 3.0, 9.0]])
    advantages, returns = gae(rewards, values, mask, gamma=0.5, lam=0.5, bootstrap=torch.tensor([2.0]))
    assert advantages.tolist() == [[0.0, -0.25, 1.0, 0.0, 0.0, 2.0, 0.0]]
    assert returns.tolist() == [[0.0, 1.75, 2.0, 0.0, 0.0, 5.0, 0.0]]


@pytest.mark.parametrize("seed", range(10))
def test_given_tokens_put_in_anywhere_change_nothing(batch, seed):
    b = batch(seed)
    plain = gae(b.rewards, b.values, b.mask, gamma=0.9, lam=0.8, bootstrap=b.after)
    width = b.mask.shape[1]
    keep = sorted(b.rng.sample(range(3 * width), width))
    wide = {name: torch.full((b.mask.shape[0], 3 * width), math.nan, dtype=torch.float64) for name in ("r", "v")}
    mask = torch.zeros(b.mask.shape[0], 3 * width, dtype=torch.bool)
    wide["r"][:, keep], wide["v"][:, keep], mask[:, keep] = b.rewards, b.values, b.mask
    spread = gae(wide["r"], wide["v"], mask, gamma=0.9, lam=0.8, bootstrap=b.after)
    for got, want in zip(spread, plain, strict=True):
        assert torch.equal(got[:, keep], want)


def test_lambda_one_is_the_reward_to_go_and_lambda_zero_the_temporal_difference(batch):
    b = batch(3)
    mask = torch.ones_like(b.mask)
    _, returns = gae(b.rewards, b.values, mask, gamma=1.0, lam=1.0)
    torch.testing.assert_close(returns, b.rewards.flip(1).cumsum(1).flip(1))
    advantages, _ = gae(b.rewards, b.values, mask, gamma=0.9, lam=0.0)
    following = torch.cat([b.values[:, 1:], torch.zeros_like(b.values[:, :1])], dim=1)
    torch.testing.assert_close(advantages, b.rewards + 0.9 * following - b.values)


def test_bootstrap_is_read_at_the_last_action_token_only(batch):
    b = batch(5)
    plain, _ = gae(b.rewards, b.values, b.mask, gamma=0.5, lam=0.0)
    cut, _ = gae(b.rewards, b.values, b.mask, gamma=0.5, lam=0.0, bootstrap=b.after)
    for row, after, mask in zip((cut - plain).tolist(), b.after.tolist(), b.mask.tolist(), strict=True):
        last = max((t for t, chosen in enumerate(mask) if chosen), default=None)
        assert row == pytest.approx([0.5 * after if t == last else 0.0 for t in range(len(mask))])


def test_targets_carry_no_graph_and_float32_at_least():
    mask = torch.ones(1, 3, dtype=torch.bool)
    values = torch.tensor([[0.5, 0.25, 0.75]], requires_grad=True)
    assert not any(x.requires_grad for x in gae(torch.ones(1, 3), values, mask))
    # 300 steps of 1/256: a sum in bfloat16 would stop at 1.
    mask = torch.ones(1, 300, dtype=torch.bool)
    rewards = torch.full((1, 300), 1 / 256, dtype=torch.bfloat16)
    advantages, returns = gae(rewards, torch.zeros_like(rewards), mask, lam=1.0)
    assert advantages.dtype is returns.dtype is torch.float32
    assert advantages[0, 0].item() == 300 / 256


@pytest.mark.parametrize("name", ["gamma", "lam"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_discounts_out_of_range_are_refused(name, value):
    x, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match=name):
        gae(x, x, mask, **{name: value})


def test_shapes_that_would_broadcast_are_refused():
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    for call in (
        lambda: gae(x[:, :1], x, mask),
        lambda: gae(x, x, mask, bootstrap=torch.zeros(1)),
        lambda: gae(x, x, mask, bootstrap=torch.zeros(2, 1)),
    ):
        with pytest.raises(DataError):
            call()
