"""Whitening: advantages with mean 0 and variance 1 over all valid tokens of all ranks."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from surefoot.algo.inputs import check_mask, widen
from surefoot.algo.mean_variance import moments as measure

EPSILON: Final = 1e-8
"""Added to the variance: values whose spread is far below 1e-4 are noise and are not blown up to 1."""


@torch.no_grad()
def whiten(
    x: Tensor, mask: Tensor, *, shift_mean: bool = True, moments: tuple[int, float, float] | None = None
) -> Tensor:
    """Scale the valid values to unit variance, and shift them to mean 0.

    ::

        y = (x − μ)/√(σ² + 1e-8)  (+ μ when the mean is kept)

    μ and σ² are the mean and the population variance of all valid values of all ranks. With fewer than two of them
    there is no spread to speak of and the values are left as they are; equal values become exactly 0 (or stay, with the
    mean kept).

    Source: a detail of OpenAI's lm-human-preferences (Ziegler et al. 2019, arXiv:1909.08593), absent from the paper.
    Others divide by N − 1, which changes the scale by a factor of √(N/(N−1)).

    Args:
        x: ``[B, T]`` advantages or rewards.
        mask: ``[B, T]`` boolean, True where values count.
        shift_mean: False keeps the mean and changes the scale only.
        moments: (count, mean, population variance) over all ranks, from ``moments`` and ``merge_moments``. None: taken
            from ``x`` alone.
    Returns:
        ``[B, T]``, without a graph, exactly 0 off the mask. An empty mask gives zeros.
    Raises:
        DataError: shapes do not fit.
    """
    check_mask(mask, x=x)
    count, mean, variance = measure(x, mask) if moments is None else moments
    (x,) = widen(x)
    if count < 2:
        return torch.where(mask, x, 0.0)
    scaled = (x - mean) / math.sqrt(variance + EPSILON)
    return torch.where(mask, scaled if shift_mean else scaled + mean, 0.0)
