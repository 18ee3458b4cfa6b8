"""Policy and value losses: twins, every quadrant by hand, gradients, garbage, extremes."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import aggregate, kl_policy_loss, policy_loss, value_loss
from surefoot.errors import ConfigError, DataError

CLIPS = [(0.2, 0.2, None), (0.1, 0.3, None), (0.2, 0.28, 3.0), (0.0, 0.0, 1.5), (1.0, 5.0, 1.01)]


def policy_twin(logp, old, advantage, low, high, dual):
    ratio = math.exp(min(max(logp - old, -20.0), 20.0))
    clipped = min(max(ratio, 1 - low), 1 + high)
    loss = -min(ratio * advantage, clipped * advantage)
    return min(loss, -dual * advantage) if dual is not None and advantage < 0 else loss


def value_twin(value, old, target, clip):
    errors = [value - target]
    if clip is not None:
        errors.append(min(max(value, old - clip), old + clip) - target)
    return max(error**2 for error in errors) / 2


def penalty_twin(logp, old, advantage, coef):
    ratio = math.exp(logp - old)
    return -ratio * advantage + coef * ((ratio - 1) - (logp - old))


def elementwise(twin, *tensors):
    flat = [twin(*values) for values in zip(*(t.flatten().tolist() for t in tensors), strict=True)]
    return torch.tensor(flat, dtype=torch.float64).reshape(tensors[0].shape)


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("seed", range(10))
def test_policy_loss_equals_plain_python(batch, clips, seed):
    b = batch(seed)
    b.logp = b.old_logp + 3 * (b.logp - b.old_logp)
    low, high, dual = clips
    got = policy_loss(b.logp, b.old_logp, b.advantages, clip_low=low, clip_high=high, dual_clip=dual)
    want = elementwise(lambda p, o, a: policy_twin(p, o, a, low, high, dual), b.logp, b.old_logp, b.advantages)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_policy_loss_by_hand_in_every_quadrant():
    ratios, advantages = [1.5, 0.5, 1.5, 0.5, 1.1, 4.0], [2.0, 2.0, -2.0, -2.0, 1.0, -1.0]
    logp, old = (
        torch.tensor([ratios], dtype=torch.float64).log().requires_grad_(),
        torch.zeros(1, 6, dtype=torch.float64),
    )
    loss = policy_loss(logp, old, torch.tensor([advantages]), clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    assert loss[0].tolist() == pytest.approx([-2.6, -1.0, 3.0, 1.6, -1.1, 3.0])
    loss.sum().backward()
    assert logp.grad[0].tolist() == pytest.approx([0.0, -1.0, 3.0, 0.0, -1.1, 0.0])


def test_on_policy_the_gradient_is_the_policy_gradient(batch):
    b = batch(3)
    logp = b.old_logp.clone().requires_grad_()
    for loss in (
        policy_loss(logp, b.old_logp, b.advantages),
        policy_loss(logp, b.old_logp, b.advantages, clip_low=0.0, clip_high=0.0, dual_clip=1.5),
        kl_policy_loss(logp, b.old_logp, b.advantages, coef=7.0),
    ):
        assert torch.equal(loss, -b.advantages)
        (grad,) = torch.autograd.grad(loss.sum(), logp)
        torch.testing.assert_close(grad, -b.advantages, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clips", CLIPS)
def test_policy_gradient_by_finite_differences(batch, clips):
    b = batch(6)
    low, high, dual = clips
    logp = (b.old_logp + 3 * (b.logp - b.old_logp)).requires_grad_()

    def loss(x):
        return policy_loss(x, b.old_logp, b.advantages, clip_low=low, clip_high=high, dual_clip=dual)

    assert torch.autograd.gradcheck(loss, logp)


def test_the_dual_clip_bounds_only_negative_advantages():
    logp, old = torch.full((1, 2), 5.0), torch.zeros(1, 2)
    plain = policy_loss(logp, old, torch.tensor([[-1.0, 1.0]]))
    dual = policy_loss(logp, old, torch.tensor([[-1.0, 1.0]]), dual_clip=3.0)
    assert plain[0].tolist() == pytest.approx([math.exp(5), -1.2])
    assert dual[0].tolist() == pytest.approx([3.0, -1.2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gap", [25.0, 1e4, math.inf])
def test_huge_log_ratios_leave_loss_and_gradient_finite(dtype, gap):
    logp = torch.tensor([[0.0, 0.0, -gap, -gap]], dtype=dtype, requires_grad=True)
    old = torch.tensor([[-gap, -gap, 0.0, 0.0]], dtype=dtype)
    advantages = torch.tensor([[-0.5, 0.5, -0.5, 0.5]], dtype=dtype)
    loss = policy_loss(logp, old, advantages)
    loss.sum().backward()
    assert loss.dtype is torch.promote_types(dtype, torch.float32)
    assert loss[0].tolist() == pytest.approx([0.5 * math.exp(20), -0.6, 0.4, -0.5 * math.exp(-20)], rel=1e-6)
    assert logp.grad.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("seed", range(5))
def test_kl_policy_loss_equals_plain_python(batch, seed):
    b = batch(seed)
    got = kl_policy_loss(b.logp, b.old_logp, b.advantages, coef=0.7)
    want = elementwise(lambda p, o, a: penalty_twin(p, o, a, 0.7), b.logp, b.old_logp, b.advantages)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    logp = b.logp.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_policy_loss(x, b.old_logp, b.advantages, coef=0.7), logp)


def test_kl_policy_loss_by_hand():
    loss = kl_policy_loss(torch.tensor([[math.log(2.0)]]), torch.tensor([[0.0]]), torch.tensor([[3.0]]), coef=0.5)
    assert loss.item() == pytest.approx(-6.0 + 0.5 * (1 - math.log(2)))


@pytest.mark.parametrize("seed", range(4))
def test_the_penalty_has_the_divergence_of_old_from_new_as_its_mean(seed):
    generator = torch.Generator().manual_seed(seed)
    old, new = torch.log_softmax(torch.randn(2, 7, generator=generator, dtype=torch.float64), dim=-1)
    sampled = kl_policy_loss(new[None], old[None], torch.zeros(1, 7, dtype=torch.float64), coef=1.0)[0]
    assert (old.exp() * sampled).sum().item() == pytest.approx((old.exp() * (old - new)).sum().item(), rel=1e-12)
    assert sampled.min().item() >= 0


def test_the_penalty_pulls_a_collapsed_token_back_and_stays_finite():
    logp = torch.tensor([[-80.0, 80.0, 1e4]], requires_grad=True)
    loss = kl_policy_loss(logp, torch.zeros(1, 3), torch.ones(1, 3), coef=2.0)
    loss.sum().backward()
    assert loss[0, 0].item() == pytest.approx(2.0 * 79, rel=1e-6)
    assert logp.grad[0].tolist() == pytest.approx([-2.0, 0.0, 0.0])
    assert loss.isfinite().all()


@pytest.mark.parametrize("clip", [None, 0.2, 0.5, 10.0])
@pytest.mark.parametrize("seed", range(6))
def test_value_loss_equals_plain_python(batch, clip, seed):
    b = batch(seed)
    got = value_loss(b.values, b.old_values, b.returns, clip=clip)
    want = elementwise(lambda v, o, r: value_twin(v, o, r, clip), b.values, b.old_values, b.returns)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    values = b.values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: value_loss(v, b.old_values, b.returns, clip=clip), values)


def test_value_loss_by_hand():
    # old 0, clip 0.5: moved 1 towards 3 (clipped error 2.5 wins, flat), moved 1 away from -3 (full), inside.
    values = torch.tensor([[1.0, 1.0, 0.25]], requires_grad=True)
    loss = value_loss(values, torch.zeros(1, 3), torch.tensor([[3.0, -3.0, 1.25]]), clip=0.5)
    loss.sum().backward()
    assert loss[0].tolist() == [3.125, 8.0, 0.5]
    assert values.grad[0].tolist() == [0.0, 4.0, -1.0]
    assert value_loss(values, torch.full((1, 3), math.nan), torch.zeros(1, 3), clip=None).tolist() == [
        [0.5, 0.5, 0.03125]
    ]


def run(fn, first, others, mask, start, poisoned):
    x = (first if start is None else poisoned(first, mask, start)).clone().requires_grad_()
    rest = [o if start is None else poisoned(o, mask, start + n) for n, o in enumerate(others, 1)]
    total = aggregate(fn(x, *rest), mask)
    total.backward()
    return total.item(), x.grad


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_garbage_off_the_mask_changes_neither_loss_nor_gradient(batch, poisoned, start, dtype):
    for seed in range(12):
        b = batch(seed, dtype=dtype)
        for fn, first, others in (
            (policy_loss, b.logp, (b.old_logp, b.advantages)),
            (lambda *x: policy_loss(*x, dual_clip=3.0), b.logp, (b.old_logp, b.advantages)),
            (lambda *x: kl_policy_loss(*x, coef=1.0), b.logp, (b.old_logp, b.advantages)),
            (value_loss, b.values, (b.old_values, b.returns)),
            (lambda *x: value_loss(*x, clip=None), b.values, (b.old_values, b.returns)),
        ):
            clean, clean_grad = run(fn, first, others, b.mask, None, poisoned)
            dirty, dirty_grad = run(fn, first, others, b.mask, start, poisoned)
            assert clean == dirty
            assert torch.equal(clean_grad, dirty_grad)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_on_the_mask_is_seen(place):
    for fn in (policy_loss, value_loss, lambda *x: kl_policy_loss(*x, coef=0.0)):
        inputs = [torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2)]
        inputs[place][0, 1] = math.nan
        loss = fn(*inputs)
        assert loss[0, 0].isfinite() and loss[0, 1].isnan()


def test_gradients_reach_the_trained_input_only(batch):
    b = batch(5)
    for fn, first, others in (
        (policy_loss, b.logp, (b.old_logp, b.advantages)),
        (lambda *x: kl_policy_loss(*x, coef=1.0), b.logp, (b.old_logp, b.advantages)),
        (value_loss, b.values, (b.old_values, b.returns)),
    ):
        inputs = [x.clone().requires_grad_() for x in (first, *others)]
        fn(*inputs).sum().backward()
        assert inputs[0].grad is not None
        assert [x.grad for x in inputs[1:]] == [None, None]


def test_low_precision_inputs_are_computed_in_float32():
    logp = torch.tensor([[-1.0]], dtype=torch.bfloat16)
    old = torch.tensor([[-1.0078125]], dtype=torch.bfloat16)
    # In bfloat16 the ratio would be 1.0078125, and the square of 1.01171875 rounded to 8 bits.
    assert policy_loss(logp, old, torch.ones(1, 1).bfloat16()).item() == pytest.approx(-math.exp(0.0078125), rel=1e-6)
    value = torch.tensor([[1.0078125]], dtype=torch.bfloat16)
    assert value_loss(value, value, torch.zeros(1, 1).bfloat16()).item() == pytest.approx(1.0078125**2 / 2, rel=1e-7)


def test_bad_arguments_are_refused():
    x = torch.zeros(2, 3)
    for name, values in {
        "clip_low": (-0.1, 1.1, math.nan),
        "clip_high": (-0.1, math.inf, math.nan),
        "dual_clip": (1.0, 0.5, -3.0, math.inf, math.nan),
    }.items():
        for value in values:
            with pytest.raises(ConfigError, match=name):
                policy_loss(x, x, x, **{name: value})
    for bad in (0.0, -0.2, math.nan, math.inf):
        with pytest.raises(ConfigError, match="clip"):
            value_loss(x, x, x, clip=bad)
    with pytest.raises(ConfigError, match="coef"):
        kl_policy_loss(x, x, x, coef=-1.0)
    for fn in (policy_loss, value_loss, lambda *a: kl_policy_loss(*a, coef=1.0)):
        for args in ((x, x[:, :1], x), (x, x, x[:1]), (x[0], x, x)):
            with pytest.raises(DataError, match="same shape"):
                fn(*args)
