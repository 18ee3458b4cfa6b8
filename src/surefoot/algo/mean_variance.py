"""Mean and population variance of the valid values, on one rank and merged over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from surefoot.algo.inputs import check_mask


class Moments(NamedTuple):
    """What is needed to standardise: plain numbers, so that ranks can exchange them.

    Attributes:
        num_values: how many valid values there are.
        mean: their mean; 0 when there is none.
        variance: their population variance (divided by ``num_values``); 0 when there is none.
    """

    num_values: int
    mean: float
    variance: float


def moments(x: Tensor, mask: Tensor) -> Moments:
    """Number, mean and population variance of the values on the mask, in float64.

    ::

        μ = p + Σ(x − p)/N      σ² = Σ(x − μ)²/N      p = the first valid value

    The pivot p makes the mean of equal values exactly that value and the variance exactly 0, and keeps a large common
    offset from costing digits (Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance, on shifted
    data).

    Args:
        x: ``[B, T]`` any unit.
        mask: ``[B, T]`` boolean.
    Returns:
        Moments; ``(0, 0, 0)`` on an empty mask. A NaN on the mask gives NaN.
    Raises:
        DataError: shapes do not fit.
    """
    check_mask(mask, x=x)
    # On the CPU first: some devices have no float64.
    valid = x.detach()[mask].cpu().double()
    if valid.numel() == 0:
        return Moments(0, 0.0, 0.0)
    pivot = valid[0]
    mean = pivot + (valid - pivot).mean()
    return Moments(valid.numel(), mean.item(), (valid - mean).square().mean().item())


def merge_moments(parts: Iterable[tuple[int, float, float]]) -> Moments:
    """The moments of all values from the moments of the ranks that hold them.

    ::

        μ = p + Σ nᵣ(μᵣ − p)/N      σ² = Σ nᵣ(σᵣ² + (μᵣ − μ)²)/N      N = Σ nᵣ,  p = the first rank's mean

    The order of the parts does not matter beyond the rounding of float64. A mean of the ranks' means would: ranks with
    few tokens would weigh more.

    Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3), the pairwise update.

    Args:
        parts: (count, mean, variance) of each rank; ranks without a value may be among them.
    Returns:
        Moments; ``(0, 0, 0)`` when no rank has a value.
    """
    filled = [part for part in parts if part[0] > 0]
    if not filled:
        return Moments(0, 0.0, 0.0)
    total = sum(count for count, _, _ in filled)
    pivot = filled[0][1]
    mean = pivot + math.fsum(count * (part_mean - pivot) for count, part_mean, _ in filled) / total
    spread = math.fsum(count * (variance + (part_mean - mean) ** 2) for count, part_mean, variance in filled)
    return Moments(total, mean, spread / total)
