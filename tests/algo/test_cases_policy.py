"""Failures reported of other PPO implementations: ratios, temperatures, banned tokens, the KL controller.

Each test names its case: the numbers of the report, then the whole kind of the fault.
"""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import (
    AdaptiveKL,
    aggregate,
    clip_fraction,
    entropy,
    kl,
    moments,
    policy_loss,
    token_logp,
    whiten,
    zero_gradient_fraction,
)
from surefoot.errors import ConfigError


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def on(*values):
    return torch.tensor([values], dtype=torch.bool)


def close(got, want, tol=1e-7):
    got, want = (torch.as_tensor(x, dtype=torch.float64).flatten().tolist() for x in (got, want))
    assert got == pytest.approx(want, abs=tol, rel=0)


def test_alg_13_log_probabilities_under_the_sampling_temperature():
    logits, token = row(2, 1, 0), torch.tensor([0])
    sampled = token_logp(logits, token, temperature=0.5)
    close(sampled, [-0.14293163], 1e-8)
    close(token_logp(logits, token), [-0.40760596], 1e-8)
    close((token_logp(logits, token, temperature=0.5) - sampled).exp(), [1.0], 0)
    close((token_logp(logits, token) - sampled).exp(), [0.76745584], 1e-8)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 1.5, 10.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_alg_13_kind_the_trained_distribution_is_the_sampled_one(temperature, dtype):
    generator = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(1, 12, generator=generator)).to(dtype)
    sampler = torch.softmax(logits.double() / temperature, -1)
    everything = token_logp(logits.expand(12, 12), torch.arange(12), temperature=temperature)
    close(everything.exp(), sampler, 1e-6)
    assert everything.exp().sum().item() == pytest.approx(1, abs=1e-6)


def test_alg_13_a_temperature_of_zero_is_refused():
    for bad in (0.0, -0.5):
        with pytest.raises(ConfigError):
            token_logp(row(2, 1, 0), torch.tensor([0]), temperature=bad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_alg_16_unchanged_weights_give_ratio_one_and_nothing_clipped(batch, poisoned, dtype):
    for seed in range(10):
        b = batch(seed, dtype=dtype)
        logp = poisoned(b.old_logp, b.mask, seed).requires_grad_()
        old, advantages = poisoned(b.old_logp, b.mask, seed + 1), poisoned(b.advantages, b.mask, seed + 2)
        assert clip_fraction(logp, old, b.mask, clip_low=0.0, clip_high=0.0).item() == 0.0
        for name in ("k1", "k2", "k3"):
            assert aggregate(kl(logp, old, name), b.mask, "sequence-sum").item() == 0.0
        policy = policy_loss(logp, old, advantages)
        wide = b.advantages.to(policy.dtype)
        assert torch.equal(policy[b.mask], -wide[b.mask])


def test_alg_16_a_stochastic_forward_pass_shows():
    still, dropped = (torch.nn.functional.logsigmoid(row(x)) for x in (2.0, 2.0 / 0.9))
    close((still - dropped).exp(), [0.97624732], 1e-8)
    assert clip_fraction(still, dropped, on(1), clip_low=0.01, clip_high=0.01).item() == 1.0


def test_alg_18_the_quadrants_of_the_surrogate():
    logp, old, advantages, mask = row(1.5, 0.5, 1.5, 0.5).log(), row(0, 0, 0, 0), row(1, 1, -1, -1), on(1, 1, 1, 1)
    loss = policy_loss(logp, old, advantages)
    close(loss, [-1.2, -0.5, 1.5, 0.8])
    assert aggregate(loss, mask).item() == pytest.approx(0.15)
    assert clip_fraction(logp, old, mask).item() == 1.0
    assert zero_gradient_fraction(logp, old, advantages, mask).item() == 0.5


@pytest.mark.parametrize("low", [0.05, 0.2, 0.9])
@pytest.mark.parametrize("high", [0.05, 0.28, 3.0])
def test_alg_18_kind_moving_further_the_wrong_way_always_costs(low, high):
    ratio = torch.linspace(0.01, 6, 400, dtype=torch.float64)[None]
    for advantage in (1.0, -1.0):
        loss = policy_loss(
            ratio.log(), torch.zeros_like(ratio), torch.full_like(ratio, advantage), clip_low=low, clip_high=high
        )
        plain = -ratio * advantage
        assert (loss >= plain - 1e-12).all(), "the surrogate is a pessimistic bound"
        inside = (ratio >= 1 - low) & (ratio <= 1 + high)
        torch.testing.assert_close(loss[inside], plain[inside])
        flat = ratio > 1 + high if advantage > 0 else ratio < 1 - low
        bound = 1 + high if advantage > 0 else 1 - low
        torch.testing.assert_close(loss[flat], torch.full_like(loss[flat], -bound * advantage))
        torch.testing.assert_close(loss[~flat], plain[~flat])


def test_alg_19_frozen_old_log_probabilities_make_the_second_epoch_clip():
    theta = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    old = torch.nn.functional.logsigmoid(theta).detach()
    for epoch in range(2):
        logp = torch.nn.functional.logsigmoid(theta)
        if epoch == 1:
            assert (logp - old).exp().item() == pytest.approx(1.24491866, abs=1e-8)
            assert clip_fraction(logp, old, on(1)).item() == 1.0
        (grad,) = torch.autograd.grad(policy_loss(logp, old, row(1.0)).sum(), theta)
        assert (theta - grad).item() == pytest.approx(0.5)
        with torch.no_grad():
            theta -= grad
    assert theta.item() == 0.5, "in the second epoch the clip took the gradient away"


def test_alg_21_the_controller_moves_by_its_rule():
    controller = AdaptiveKL(0.2, 6.0, 10000)
    seen = []
    for value in (9.0, 3.0, -3.0):
        before = controller.coef
        controller.update(value, 256)
        seen.append(controller.coef / before)
    assert seen == pytest.approx([1.00512, 0.99488, 0.99488])
    assert [0.2 * factor for factor in seen] == pytest.approx([0.201024, 0.198976, 0.198976])
    for target, horizon in ((0.0, 1), (-1.0, 1), (6.0, 0), (6.0, -5)):
        with pytest.raises(ConfigError):
            AdaptiveKL(0.2, target, horizon)


def test_alg_21_kind_it_is_fed_the_kl_a_trajectory_and_not_a_token(batch):
    for seed in range(10):
        b = batch(seed)
        per_token = kl(b.logp, b.ref_logp)
        rows = [
            math.fsum(v for v, m in zip(vs, ms, strict=True) if m)
            for vs, ms in zip(per_token.tolist(), b.mask.tolist(), strict=True)
        ]
        rows = [value for value, mask in zip(rows, b.mask.tolist(), strict=True) if any(mask)]
        wanted = math.fsum(rows) / len(rows) if rows else 0.0
        assert aggregate(per_token, b.mask, "sequence-sum").item() == pytest.approx(wanted, abs=1e-12)


def test_alg_28_the_ban_of_the_sampler_holds_in_the_scores():
    policy, reference, sampled = row(0.9, 0.1).log(), row(0.5, 0.5).log(), torch.tensor([1])
    close(token_logp(policy, sampled) - token_logp(reference, sampled), [-1.60943791], 1e-8)
    ban = on(1, 0)
    banned = [token_logp(x.masked_fill(ban, -math.inf), sampled)[None] for x in (policy, reference)]
    assert kl(*banned).item() == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_alg_28_kind_under_the_same_ban_the_divergence_is_not_negative(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 9, generator=generator, dtype=torch.float64)
    ban = torch.rand(9, generator=generator) < 0.5
    ban[0] = False
    logits[0, ban] += 5  # the policy leans towards what it may not choose
    ids = torch.arange(9)
    policy, reference = (token_logp(x.masked_fill(ban, -math.inf).expand(9, 9), ids)[~ban] for x in logits)
    p = policy.exp()
    assert p.sum().item() == pytest.approx(1)
    assert (p * kl(policy[None], reference[None])[0]).sum().item() >= 0
    assert entropy(logits[0].masked_fill(ban, -math.inf)).item() == pytest.approx(-(p * policy).sum().item(), abs=1e-12)


def test_alg_30_scores_are_normalised_by_statistics_of_others():
    given = moments(row(2, 4, 6, 8), on(1, 1, 1, 1))
    assert (given.mean, given.variance) == (5.0, 5.0)
    close(whiten(row(7.0), on(1), moments=given), [0.89442719], 1e-8)


def test_mem_02_one_number_a_token_with_the_gradient_of_the_plain_form():
    close(token_logp(row(2, 1, 0), torch.tensor([0])), [-0.40760596], 1e-8)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
    tokens = torch.randint(11, (3, 5), generator=generator)
    weight = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    grads = []
    for chunked in (True, False):
        x = logits.clone().requires_grad_()
        if chunked:
            got = torch.cat([token_logp(part, ids) for part, ids in zip(x.split(1), tokens.split(1), strict=True)])
            assert got.shape == tokens.shape
        else:
            p = x.exp() / x.exp().sum(-1, keepdim=True)
            got = p[torch.arange(3)[:, None], torch.arange(5)[None], tokens].log()
        (weight * got).sum().backward()
        grads.append(x.grad)
    close(grads[0], grads[1], 1e-12)
