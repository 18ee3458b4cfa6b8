"""Truncated importance weights, and that with them the engine's samples speak for the trainer's policy."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import aggregate, importance_weights, policy_loss
from surefoot.errors import ConfigError, DataError


@pytest.mark.parametrize("cap", [1.0, 1.3, 2.0, math.inf])
@pytest.mark.parametrize("seed", range(6))
def test_equals_plain_python(batch, cap, seed):
    b = batch(seed)
    got = importance_weights(b.old_logp, b.ref_logp, cap=cap)
    pairs = zip(b.old_logp.flatten().tolist(), b.ref_logp.flatten().tolist(), strict=True)
    assert got.flatten().tolist() == pytest.approx([min(math.exp(t - e), cap) for t, e in pairs], rel=1e-12)


def test_by_hand_the_trainer_stands_above_and_two_is_the_default_cap():
    got = importance_weights(
        torch.tensor([[math.log(0.6), math.log(0.1), -1.0]]), torch.tensor([[math.log(0.2), math.log(0.4), -1.0]])
    )
    assert got[0].tolist() == pytest.approx([2.0, 0.25, 1.0], rel=1e-6)


def test_without_a_cap_the_weight_still_has_a_bound():
    got = importance_weights(torch.tensor([[0.0, 0.0, -100.0]]), torch.tensor([[-100.0, -math.inf, 0.0]]), cap=math.inf)
    assert got[0].tolist() == pytest.approx([math.exp(20), math.exp(20), math.exp(-20)], rel=1e-6)


def test_weighted_engine_samples_have_the_trainers_expectation():
    generator = torch.Generator().manual_seed(0)
    train, engine = torch.log_softmax(torch.randn(2, 9, generator=generator, dtype=torch.float64), dim=-1)
    advantages = torch.randn(1, 9, generator=generator, dtype=torch.float64)
    loss = policy_loss(train[None], train[None], advantages)
    weights = importance_weights(train[None], engine[None], cap=math.inf)
    assert (engine.exp() * weights * loss).sum().item() == pytest.approx((train.exp() * loss).sum().item(), rel=1e-12)


def test_weights_are_detached_constants_in_float32_at_least():
    train = torch.tensor([[-1.0]], dtype=torch.bfloat16, requires_grad=True)
    got = importance_weights(train, torch.tensor([[-1.0078125]], dtype=torch.bfloat16))
    assert not got.requires_grad and got.dtype is torch.float32
    assert got.item() == pytest.approx(math.exp(0.0078125), rel=1e-6)


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("cap", [2.0, math.inf])
def test_garbage_off_the_mask_changes_no_weighted_loss_and_no_gradient(batch, poisoned, start, cap):
    for seed in range(10):
        b = batch(seed, dtype=torch.float32)
        runs = []
        for spoil in (False, True):
            old, engine, logp = (
                poisoned(x, b.mask, start + n) if spoil else x.clone()
                for n, x in enumerate((b.old_logp, b.ref_logp, b.logp))
            )
            logp.requires_grad_()
            weights = importance_weights(old, engine, cap=cap)
            assert weights.isfinite().all() and (weights >= 0).all() and (weights <= cap).all()
            total = aggregate(weights * policy_loss(logp, old, b.advantages), b.mask)
            total.backward()
            runs.append((total.item(), logp.grad))
        assert runs[0][0] == runs[1][0]
        assert torch.equal(runs[0][1], runs[1][1])


def test_nan_on_the_mask_still_shows_in_the_loss():
    old = torch.tensor([[math.nan]])
    assert importance_weights(old, torch.zeros(1, 1)).item() == 0.0
    loss = importance_weights(old, torch.zeros(1, 1)) * policy_loss(torch.zeros(1, 1), old, torch.ones(1, 1))
    assert loss.isnan().all()


def test_bad_arguments_are_refused():
    x = torch.zeros(2, 3)
    for bad in (0.99, 0.0, -2.0, math.nan):
        with pytest.raises(ConfigError, match="cap"):
            importance_weights(x, x, cap=bad)
    with pytest.raises(DataError, match="same shape"):
        importance_weights(x, x[:, :1])
