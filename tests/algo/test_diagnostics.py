"""Metrics of an update: twins, hand-worked cases, and the same mask as the loss."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import (
    aggregate,
    clip_fraction,
    effective_sample_size,
    explained_variance,
    policy_loss,
    zero_gradient_fraction,
)
from surefoot.errors import ConfigError, DataError


def on_mask(b, *tensors):
    return list(zip(*(t[b.mask].tolist() for t in tensors), strict=True))


def variance(values):
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values) / len(values)


@pytest.mark.parametrize("seed", range(20))
def test_clip_fraction_equals_plain_python(batch, poisoned, seed):
    b = batch(seed)
    got = clip_fraction(
        poisoned(b.logp, b.mask, seed), poisoned(b.old_logp, b.mask, seed + 2), b.mask, clip_low=0.1, clip_high=0.3
    )
    pairs = on_mask(b, b.logp, b.old_logp)
    outside = sum(not 0.9 <= math.exp(p - o) <= 1.3 for p, o in pairs)
    assert got.item() == pytest.approx(outside / max(len(pairs), 1), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_zero_gradient_fraction_counts_the_tokens_without_gradient(batch, poisoned, seed):
    b = batch(seed)
    logp = (b.old_logp + 2 * (b.logp - b.old_logp)).requires_grad_()
    for dual in (None, 1.5):
        policy_loss(logp, b.old_logp, b.advantages, clip_low=0.1, clip_high=0.3, dual_clip=dual).sum().backward()
        want = (logp.grad[b.mask] == 0).double().sum().item() / max(int(b.mask.sum()), 1)
        spoiled = [poisoned(x, b.mask, seed) for x in (logp, b.old_logp, b.advantages)]
        got = zero_gradient_fraction(*spoiled, b.mask, clip_low=0.1, clip_high=0.3, dual_clip=dual)
        assert got.item() == pytest.approx(want, abs=1e-12)
        logp.grad = None


def test_clip_fractions_by_hand():
    ratios = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.0, 4.0, 9.0]]).log()
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0, 1.0, 0.0, 1.0]])
    mask = torch.tensor([[True] * 6 + [False]])
    old = torch.zeros_like(ratios)
    assert clip_fraction(ratios, old, mask, clip_low=0.2, clip_high=0.2).item() == pytest.approx(5 / 6)
    assert clip_fraction(ratios, old, mask, clip_low=0.2, clip_high=0.6).item() == pytest.approx(3 / 6)
    assert clip_fraction(ratios, old, mask, clip_low=0.6, clip_high=0.2).item() == pytest.approx(3 / 6)
    # A = 0 has no gradient either, but the clip is not the cause.
    assert zero_gradient_fraction(ratios, old, advantages, mask).item() == pytest.approx(2 / 6)
    assert zero_gradient_fraction(ratios, old, advantages, mask, dual_clip=1.4).item() == pytest.approx(3 / 6)


def test_clip_fraction_of_micro_batches_adds_up_and_of_nothing_is_zero(batch):
    b = batch(12)
    whole = clip_fraction(b.logp, b.old_logp, b.mask)
    assert 0 < whole.item() < 1
    count = int(b.mask.sum())
    parts = [
        clip_fraction(b.logp[i : i + 1], b.old_logp[i : i + 1], b.mask[i : i + 1], count=count)
        for i in range(len(b.mask))
    ]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item())
    nothing = torch.zeros_like(b.mask)
    assert clip_fraction(b.logp, b.old_logp, nothing).item() == 0.0
    assert zero_gradient_fraction(b.logp, b.old_logp, b.advantages, nothing).item() == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_explained_variance_equals_plain_python(batch, poisoned, seed):
    b = batch(seed)
    got = explained_variance(poisoned(b.values, b.mask, seed), poisoned(b.returns, b.mask, seed + 4), b.mask)
    pairs = on_mask(b, b.values, b.returns)
    if len(pairs) < 2:
        assert got.isnan()
        return
    want = 1 - variance([r - v for v, r in pairs]) / variance([r for _, r in pairs])
    assert got.shape == () and got.item() == pytest.approx(want, rel=1e-9)


def test_explained_variance_by_hand():
    mask = torch.tensor([[True, True, True, False]])
    returns = torch.tensor([[1.0, 2.0, 3.0, 50.0]])
    assert explained_variance(returns.clone(), returns, mask).item() == 1.0
    assert explained_variance(returns + 7, returns, mask).item() == 1.0
    assert explained_variance(torch.full_like(returns, 9.0), returns, mask).item() == 0.0
    assert explained_variance(-returns, returns, mask).item() == -3.0
    assert explained_variance(returns / 2, returns, mask).item() == 0.75


@pytest.mark.parametrize("value", [0.1, 1e8 / 3, -1e-30])
def test_explained_variance_is_nan_where_it_is_undefined(value):
    three, one, none = (torch.tensor([[n > 0, n > 1, n > 2]]) for n in (3, 1, 0))
    values = torch.tensor([[1.0, 5.0, 2.0]])
    assert explained_variance(values, torch.full((1, 3), value), three).isnan()
    assert explained_variance(values, values, one).isnan()
    assert explained_variance(values, values, none).isnan()


@pytest.mark.parametrize("seed", range(12))
def test_effective_sample_size_equals_plain_python(batch, poisoned, seed):
    b = batch(seed)
    weights = b.advantages.exp()
    got = effective_sample_size(poisoned(weights, b.mask, seed), b.mask)
    w = weights[b.mask].tolist()
    if not w:
        assert got.isnan()
        return
    assert got.item() == pytest.approx(sum(w) ** 2 / (len(w) * sum(x * x for x in w)), rel=1e-12)
    assert 0 < got.item() <= 1 + 1e-12


def test_effective_sample_size_by_hand():
    mask = torch.tensor([[True, True, True, True, False]])
    assert effective_sample_size(torch.tensor([[0.3, 0.3, 0.3, 0.3, 9.0]]), mask).item() == pytest.approx(1.0)
    assert effective_sample_size(torch.tensor([[5.0, 0.0, 0.0, 0.0, 9.0]]), mask).item() == 0.25
    assert effective_sample_size(torch.tensor([[1.0, 1.0, 0.0, 0.0, 9.0]]), mask).item() == 0.5
    assert effective_sample_size(torch.zeros(1, 5), mask).isnan()


def test_metrics_hold_no_graph_and_low_precision_is_widened(batch):
    b = batch(2, dtype=torch.bfloat16)
    x, y, a = (t.clone().requires_grad_() for t in (b.logp, b.old_logp, b.advantages))
    for got in (
        clip_fraction(x, y, b.mask),
        zero_gradient_fraction(x, y, a, b.mask),
        explained_variance(x, y, b.mask),
        effective_sample_size(a.exp(), b.mask),
    ):
        assert got.shape == () and not got.requires_grad and got.dtype is torch.float32
    wide = aggregate(((x - y).float().exp() - 1).abs().gt(0.2).float(), b.mask)
    assert clip_fraction(x, y, b.mask).item() == pytest.approx(wide.item(), abs=0.2)


def test_bad_arguments_are_refused():
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ConfigError, match="clip_low"):
        clip_fraction(x, x, mask, clip_low=-0.2)
    with pytest.raises(ConfigError, match="clip_high"):
        zero_gradient_fraction(x, x, x, mask, clip_high=-0.2)
    with pytest.raises(ConfigError, match="dual_clip"):
        zero_gradient_fraction(x, x, x, mask, dual_clip=1.0)
    for call in (
        lambda: clip_fraction(x, x[:, :1], mask),
        lambda: zero_gradient_fraction(x, x, x[:1], mask),
        lambda: explained_variance(x, x[:1], mask),
        lambda: effective_sample_size(x, mask[:1]),
        lambda: effective_sample_size(x, mask.float()),
    ):
        with pytest.raises(DataError):
            call()
