"""Aggregation: the same loss and gradient however the batch is split, padded or ordered."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import aggregate
from surefoot.errors import ConfigError, DataError

FORMS = ("token-mean", "sequence-mean", "sequence-sum")


def own_count(mask, how):
    return int(mask.sum()) if how == "token-mean" else int(mask.any(1).sum())


def twin(x, mask, how):
    rows = [[v for v, m in zip(xs, ms, strict=True) if m] for xs, ms in zip(x, mask, strict=True)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if how == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if how == "sequence-mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return sum(map(sum, rows)) / len(rows)


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("seed", range(20))
def test_equals_plain_python_with_garbage_and_leaves_empty_rows_out(batch, poisoned, how, seed):
    b = batch(seed)
    x = poisoned(b.advantages, b.mask, seed).requires_grad_()
    total = aggregate(x, b.mask, how)
    assert total.item() == pytest.approx(twin(b.advantages.tolist(), b.mask.tolist(), how), rel=1e-12, abs=1e-14)
    total.backward()
    assert x.grad.isfinite().all() and (x.grad[~b.mask] == 0).all()


def test_by_hand():
    x = torch.tensor([[4.0, 2.0, 9.0], [1.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert aggregate(x, mask).item() == pytest.approx(7 / 3)
    assert aggregate(x, mask, "sequence-mean").item() == (3 + 1) / 2
    assert aggregate(x, mask, "sequence-sum").item() == (6 + 1) / 2
    assert aggregate(x, mask, "sequence-sum", count=7).item() == 1.0


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("seed", range(6))
def test_micro_batches_of_any_size_add_up_gradients_too(batch, how, size, seed):
    b = batch(seed)
    whole, parts = (b.advantages.clone().requires_grad_() for _ in range(2))
    aggregate(whole.square(), b.mask, how).backward()
    count, total = own_count(b.mask, how), 0.0
    for start in range(0, len(b.mask), size):
        rows = slice(start, start + size)
        part = aggregate(parts[rows].square(), b.mask[rows], how, count=count if start % 2 else torch.tensor(count))
        part.backward()
        total += part.item()
    assert total == pytest.approx(aggregate(whole.square(), b.mask, how).item(), rel=1e-12, abs=1e-14)
    torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("how", FORMS)
def test_ranks_that_average_their_gradients_hand_in_count_over_ranks(batch, how):
    b = batch(11)
    ranks = [list(range(rank, len(b.mask), 4)) for rank in range(4)]
    count = own_count(b.mask, how) / 4
    mean = sum(aggregate(b.returns[r], b.mask[r], how, count=count).item() for r in ranks) / 4
    assert mean == pytest.approx(aggregate(b.returns, b.mask, how).item(), rel=1e-12)


@pytest.mark.parametrize("how", FORMS)
def test_padding_and_order_change_nothing(batch, how):
    b = batch(9)
    order = torch.randperm(len(b.mask), generator=b.generator)
    x = torch.nn.functional.pad(b.values, (2, 5), value=math.nan)[order]
    mask = torch.nn.functional.pad(b.mask, (2, 5))[order]
    assert aggregate(x, mask, how).item() == pytest.approx(aggregate(b.values, b.mask, how).item(), rel=1e-12)


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("count", [None, 0, 0.0, 5, torch.tensor(0), torch.tensor(5)])
def test_nothing_to_learn_from_is_zero_and_backward_still_runs(how, count):
    x = torch.tensor([[math.nan, 5.0]], requires_grad=True)
    total = aggregate(x, torch.zeros(1, 2, dtype=torch.bool), how, count=count)
    total.backward()
    assert total.item() == 0.0
    assert x.grad.tolist() == [[0.0, 0.0]]
    no_rows = torch.zeros(0, 3, requires_grad=True)
    aggregate(no_rows, torch.zeros(0, 3, dtype=torch.bool), how).backward()


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("count", [0, -1, math.nan, math.inf])
def test_a_count_that_cannot_be_is_refused_when_there_are_tokens(how, count):
    with pytest.raises(DataError, match="count"):
        aggregate(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), how, count=count)


def test_a_zero_count_on_the_device_is_seen_as_infinity():
    assert aggregate(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), count=torch.tensor(0)).item() == math.inf


@pytest.mark.parametrize("how", FORMS)
def test_gradient_by_finite_differences(batch, how):
    b = batch(8)
    assert torch.autograd.gradcheck(lambda x: aggregate(x, b.mask, how), b.values.clone().requires_grad_())


def test_sums_run_in_float32_at_least():
    x = torch.full((1, 300), 1 / 256, dtype=torch.bfloat16)
    total = aggregate(x, torch.ones(1, 300, dtype=torch.bool), "sequence-sum")
    assert total.dtype is torch.float32 and total.item() == 300 / 256
    assert aggregate(x.double(), torch.ones(1, 300, dtype=torch.bool)).dtype is torch.float64


def test_bad_arguments_are_refused():
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ConfigError, match="token-mean"):
        aggregate(x, mask, "mean")
    for bad in (mask.float(), mask.long(), mask[:1], mask[:, :1]):
        with pytest.raises(DataError):
            aggregate(x, bad)
    with pytest.raises(DataError, match=r"\[B, T\]"):
        aggregate(torch.zeros(3), torch.ones(3, dtype=torch.bool))
