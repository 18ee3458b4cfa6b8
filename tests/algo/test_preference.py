"""Bradley-Terry loss: twin, by hand, gradients, extremes."""

from __future__ import annotations

import math
import random

import pytest
import torch

from surefoot.algo import preference_loss
from surefoot.errors import ConfigError, DataError


def twin(chosen, rejected, margin, centering):
    losses = [math.log1p(math.exp(-(c - r - m))) for c, r, m in zip(chosen, rejected, margin, strict=True)]
    centre = [(c + r) ** 2 for c, r in zip(chosen, rejected, strict=True)]
    return math.fsum(losses) / len(losses) + centering * math.fsum(centre) / len(centre)


@pytest.mark.parametrize("seed", range(10))
def test_equals_plain_python_and_its_gradient(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 9)
    chosen, rejected, margin = ([rng.gauss(0, 2) for _ in range(n)] for _ in range(3))
    c, r, m = (torch.tensor(x, dtype=torch.float64) for x in (chosen, rejected, margin))
    assert preference_loss(c, r).item() == pytest.approx(twin(chosen, rejected, [0.0] * n, 0.0), rel=1e-12)
    got = preference_loss(c, r, margin=m, centering=0.3)
    assert got.item() == pytest.approx(twin(chosen, rejected, margin, 0.3), rel=1e-12)
    assert preference_loss(c, r, margin=0.5).item() == pytest.approx(twin(chosen, rejected, [0.5] * n, 0.0), rel=1e-12)
    inputs = (c.requires_grad_(), r.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, y: preference_loss(x, y, margin=m, centering=0.3), inputs)


def test_by_hand():
    # A tie costs log 2; centering sees the sum, the margin the difference.
    tie = torch.tensor([1.5])
    assert preference_loss(tie, tie).item() == pytest.approx(math.log(2))
    assert preference_loss(tie, tie, centering=0.1).item() == pytest.approx(math.log(2) + 0.1 * 9)
    assert preference_loss(tie, tie, margin=torch.tensor([1.0])).item() == pytest.approx(math.log(1 + math.e))
    two = preference_loss(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
    assert two.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(2)) / 2)


def test_extremes_are_finite_in_low_precision():
    chosen = torch.tensor([-300.0, 300.0], dtype=torch.bfloat16, requires_grad=True)
    loss = preference_loss(chosen, -chosen.detach())
    loss.backward()
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(300.0)
    assert chosen.grad.tolist() == [-0.5, 0.0]


def test_no_pairs_is_zero_and_connected():
    empty = torch.zeros(0, requires_grad=True)
    loss = preference_loss(empty, empty)
    loss.backward()
    assert loss.item() == 0.0


def test_a_learned_margin_is_no_way_out():
    margin = torch.zeros(2, requires_grad=True)
    preference_loss(torch.ones(2, requires_grad=True), torch.zeros(2), margin=margin).backward()
    assert margin.grad is None


def test_bad_arguments_are_refused():
    x = torch.zeros(3)
    for args in ((x, x[:1]), (x[:, None], x[:, None]), (torch.tensor(0.0), torch.tensor(0.0))):
        with pytest.raises(DataError):
            preference_loss(*args)
    with pytest.raises(DataError, match="margin"):
        preference_loss(x, x, margin=torch.zeros(1))
    for bad in (-0.1, math.nan):
        with pytest.raises(ConfigError, match="centering"):
            preference_loss(x, x, centering=bad)
