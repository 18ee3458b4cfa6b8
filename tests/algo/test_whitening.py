"""Whitening and its moments: over all valid tokens of all ranks, exact where it must be."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import Moments, merge_moments, moments, whiten
from surefoot.errors import DataError


def twin_moments(values):
    n = len(values)
    mean = math.fsum(values) / n
    return n, mean, math.fsum((v - mean) ** 2 for v in values) / n


@pytest.mark.parametrize("seed", range(30))
def test_equals_plain_python_with_garbage_off_the_mask(batch, poisoned, seed):
    b = batch(seed)
    x = poisoned(b.advantages, b.mask, seed)
    values = b.advantages[b.mask].tolist()
    whitened = whiten(x, b.mask)
    assert (whitened[~b.mask] == 0).all()
    if len(values) < 2:
        assert whitened[b.mask].tolist() == values
        return
    n, mean, variance = twin_moments(values)
    assert moments(x, b.mask) == pytest.approx((n, mean, variance), rel=1e-12, abs=1e-14)
    expected = [(v - mean) / math.sqrt(variance + 1e-8) for v in values]
    assert whitened[b.mask].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    kept = whiten(x, b.mask, shift_mean=False)
    assert kept[b.mask].tolist() == pytest.approx([e + mean for e in expected], rel=1e-9, abs=1e-9)
    assert (kept[~b.mask] == 0).all()


def test_by_hand():
    mask = torch.tensor([[True, True, True, False]])
    x = torch.tensor([[1.0, 3.0, 5.0, 100.0]], dtype=torch.float64)
    # mean 3, variance (4 + 0 + 4)/3
    assert moments(x, mask) == Moments(3, 3.0, 8 / 3)
    assert whiten(x, mask)[0].tolist() == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5), 0.0], abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_any_split_over_ranks_gives_the_same_tokens(batch, seed):
    b = batch(seed, dtype=torch.float32)
    ranks = [[i for i in range(len(b.mask)) if i % 3 == rank] for rank in range(3)]
    parts = [moments(b.advantages[rows], b.mask[rows]) for rows in ranks]
    merged = merge_moments(parts)
    assert merged == pytest.approx(moments(b.advantages, b.mask), rel=1e-12, abs=1e-15)
    assert merge_moments(reversed(parts)) == pytest.approx(merged, rel=1e-12, abs=1e-15)
    whole = whiten(b.advantages, b.mask)
    for rows in ranks:
        local = whiten(b.advantages[rows], b.mask[rows], moments=merged)
        torch.testing.assert_close(local, whole[rows], rtol=1e-6, atol=1e-7)


def test_a_rank_with_one_token_is_whitened_by_the_moments_of_all():
    mask = torch.tensor([[True, False]])
    got = whiten(torch.tensor([[7.0, math.nan]]), mask, moments=(4, 5.0, 4.0))
    assert got.tolist() == [[1.0, 0.0]]


def test_merging_nothing_and_ranks_without_tokens():
    assert merge_moments([]) == merge_moments([(0, math.nan, math.nan)]) == Moments(0, 0.0, 0.0)
    assert merge_moments([(0, 55.0, 3.0), (2, 1.0, 4.0), (0, 0.0, 0.0)]) == Moments(2, 1.0, 4.0)


@pytest.mark.parametrize("value", [0.1, -1 / 3, 2.0, 1e-20, 123456.789, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("num", [2, 3, 7, 101])
def test_equal_values_become_exactly_zero_on_one_rank_and_on_many(value, dtype, num):
    x, mask = torch.full((1, num), value, dtype=dtype), torch.ones(1, num, dtype=torch.bool)
    assert whiten(x, mask).abs().max().item() == 0.0
    split = [moments(x[:, :1], mask[:, :1]), moments(x[:, 1:], mask[:, 1:])]
    assert merge_moments(split).variance == 0.0
    assert whiten(x, mask, moments=merge_moments(split)).abs().max().item() == 0.0
    assert torch.equal(whiten(x, mask, shift_mean=False), x.to(torch.promote_types(dtype, torch.float32)))


def test_fewer_than_two_values_are_left_as_they_are():
    x = torch.tensor([[3.0, 7.0]])
    assert whiten(x, torch.tensor([[True, False]])).tolist() == [[3.0, 0.0]]
    assert whiten(x, torch.tensor([[False, False]])).tolist() == [[0.0, 0.0]]
    assert whiten(x[:, :0], torch.zeros(1, 0, dtype=torch.bool)).shape == (1, 0)
    assert whiten(x, torch.ones(1, 2, dtype=torch.bool), moments=(1, 3.0, 0.0)).tolist() == x.tolist()


def test_a_large_common_offset_costs_no_digits():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1, 4000, generator=generator, dtype=torch.float64)
    mask = torch.ones(1, 4000, dtype=torch.bool)
    shifted = moments(noise + 1e8, mask)
    assert shifted.variance == pytest.approx(moments(noise, mask).variance, rel=1e-7)


def test_a_tiny_spread_is_not_blown_up_to_one():
    mask = torch.ones(1, 2, dtype=torch.bool)
    # variance 1e-12 against the epsilon of 1e-8: 1e-6/sqrt(1.0001e-8)
    got = whiten(torch.tensor([[-1e-6, 1e-6]], dtype=torch.float64), mask)
    assert got[0].tolist() == pytest.approx([-1e-6 / math.sqrt(1.0001e-8), 1e-6 / math.sqrt(1.0001e-8)])


def test_low_precision_is_whitened_in_float32():
    x, mask = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.bfloat16), torch.ones(1, 3, dtype=torch.bool)
    got = whiten(x, mask)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), whiten(x.double(), mask), rtol=1e-6, atol=1e-6)


def test_nan_on_the_mask_is_seen_and_nothing_holds_a_graph():
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert whiten(torch.tensor([[1.0, math.nan, 2.0]]), mask).isnan().all()
    assert not whiten(torch.ones(1, 3, requires_grad=True), mask).requires_grad


def test_an_integer_mask_is_refused():
    with pytest.raises(DataError, match="boolean"):
        whiten(torch.ones(1, 3), torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(DataError, match="same shape"):
        whiten(torch.ones(1, 3), torch.ones(1, 2, dtype=torch.bool))
