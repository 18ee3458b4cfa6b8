"""KL estimators: their formulas, their expectations by exact enumeration, and what stays finite."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import aggregate, kl
from surefoot.errors import ConfigError, DataError

TWINS = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
}


def two_policies(seed, vocabulary=6):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, vocabulary, generator=generator, dtype=torch.float64)
    return torch.log_softmax(logits, dim=-1)


@pytest.mark.parametrize("estimator", TWINS)
@pytest.mark.parametrize("seed", range(6))
def test_equals_plain_python(batch, estimator, seed):
    b = batch(seed)
    got = kl(b.logp, b.ref_logp, estimator)
    want = [
        TWINS[estimator](p - q) for p, q in zip(b.logp.flatten().tolist(), b.ref_logp.flatten().tolist(), strict=True)
    ]
    assert got.flatten().tolist() == pytest.approx(want, rel=1e-9, abs=1e-14)


def test_by_hand():
    logp, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    assert kl(logp, ref).tolist() == [[0.5, -1.0]]
    assert kl(logp, ref, "k2").tolist() == [[0.125, 0.5]]
    assert kl(logp, ref, "k3")[0].tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.e - 2], rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_k1_and_k3_have_the_divergence_as_their_mean_and_k2_has_not(seed):
    policy, reference = two_policies(seed)
    p = policy.exp()
    exact = (p * (policy - reference)).sum().item()
    mean = {name: (p * kl(policy[None], reference[None], name)[0]).sum().item() for name in TWINS}
    assert mean["k1"] == pytest.approx(exact, rel=1e-12)
    assert mean["k3"] == pytest.approx(exact, rel=1e-12)
    assert abs(mean["k2"] - exact) > 1e-3 * exact


@pytest.mark.parametrize("seed", range(5))
def test_as_a_loss_k3_pulls_like_the_reverse_divergence_and_k1_not_at_all(seed):
    policy, reference = two_policies(seed)
    theta = policy.clone().requires_grad_()
    exact = (reference.exp() * (reference - torch.log_softmax(theta, dim=-1))).sum()
    (wanted,) = torch.autograd.grad(exact, theta)
    for name, want in (("k3", wanted), ("k1", torch.zeros_like(wanted))):
        logp = torch.log_softmax(theta, dim=-1)
        sampled = (policy.exp() * kl(logp[None], reference[None], name)[0]).sum()
        (got,) = torch.autograd.grad(sampled, theta)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k2_and_k3_are_never_negative_not_even_by_rounding(dtype):
    d = torch.logspace(-30, 1.5, 200_001, dtype=dtype)
    d = torch.cat([d, -d])[None]
    for name in ("k2", "k3"):
        assert kl(d, torch.zeros_like(d), name).min().item() >= 0.0
    assert kl(-d.abs(), torch.zeros_like(d)).max().item() < 0.0


def test_k3_keeps_its_digits_for_a_small_difference():
    d = torch.tensor([[1e-3, -1e-3]])
    got = kl(d, torch.zeros_like(d), "k3")[0].tolist()
    assert got == pytest.approx([TWINS["k3"](1e-3), TWINS["k3"](-1e-3)], rel=1e-3)


def test_equal_policies_have_no_divergence(batch):
    b = batch(1)
    for name in TWINS:
        assert (kl(b.logp, b.logp.clone(), name) == 0).all()


@pytest.mark.parametrize("estimator", TWINS)
def test_gradient_by_finite_differences(batch, estimator):
    b = batch(2)
    assert torch.autograd.gradcheck(lambda x: kl(x, b.ref_logp, estimator), b.logp.clone().requires_grad_())


def test_no_gradient_reaches_the_reference(batch):
    b = batch(4)
    ref = b.ref_logp.clone().requires_grad_()
    kl(b.logp.clone().requires_grad_(), ref, "k3").sum().backward()
    assert ref.grad is None


@pytest.mark.parametrize("estimator", TWINS)
@pytest.mark.parametrize("start", range(8))
def test_garbage_off_the_mask_changes_neither_sum_nor_gradient(batch, poisoned, estimator, start):
    b = batch(7)
    assert not b.mask.all()
    runs = []
    for spoil in (False, True):
        logp = (poisoned(b.logp, b.mask, start) if spoil else b.logp.clone()).requires_grad_()
        ref = poisoned(b.ref_logp, b.mask, start + 1) if spoil else b.ref_logp
        total = aggregate(kl(logp, ref, estimator), b.mask)
        total.backward()
        runs.append((total.item(), logp.grad))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])


def test_an_overflow_is_infinite_and_seen_and_its_gradient_zero():
    logp = torch.tensor([[-200.0, -1.0]], requires_grad=True)
    got = kl(logp, torch.zeros(1, 2), "k3")
    got.sum().backward()
    assert got[0, 0].item() == math.inf
    assert logp.grad[0, 0].item() == 0.0
    assert logp.grad[0, 1].item() == pytest.approx(1 - math.e, rel=1e-6)


def test_low_precision_is_computed_in_float32():
    logp, ref = torch.tensor([[-1.0, -2.0]], dtype=torch.bfloat16), torch.tensor([[-1.0078125, -2.0]])
    got = kl(logp, ref.bfloat16(), "k3")
    assert got.dtype is torch.float32
    assert got[0, 0].item() == pytest.approx(TWINS["k3"](0.0078125), rel=1e-4)


def test_unknown_estimators_and_shapes_are_refused():
    x = torch.zeros(2, 3)
    for name in ("abs", "k3+", "K1", ""):
        with pytest.raises(ConfigError, match="estimator"):
            kl(x, x, name)
    with pytest.raises(DataError):
        kl(x, x[:1])
