"""Means and shares of values that come in groups, with intervals that know it. Torch-free.

Pairs of one prompt, and answers of one film, are not independent. Of means whole groups are drawn again, not single
values (Davison and Hinkley 1997, section 3.8). Draws say nothing of a share that is 0 or 1 in the sample, so shares
have Wilson's interval at the number of independent values that they amount to (Korn and Graubard 1998).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from surefoot.evals.calibration import Z, wilson
from surefoot.evals.student import student_t_975
from surefoot.records import BoolArray, FloatArray, IntArray

DRAWS: Final = 4000
_CHUNK: Final = 250


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95 % interval.

    Attributes:
        mean: over all values; None without any.
        low, high: of a mean percentiles 2.5 and 97.5 over draws of whole groups; None with fewer than two groups.
        count, groups: values, and groups that they come from.
    """

    mean: float | None
    low: float | None
    high: float | None
    count: int
    groups: int

    @property
    def above(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low is not None and self.low > 0

    @property
    def below(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high is not None and self.high < 0

    def as_json(self, name: str = "mean") -> dict[str, float | int | None]:
        """For a report, the mean under a name of its own."""
        return {name: self.mean, "low": self.low, "high": self.high, "count": self.count, "groups": self.groups}


def clustered_mean(
    values: Sequence[float] | FloatArray | BoolArray, groups: Sequence[Hashable], *, seed: int = 0, draws: int = DRAWS
) -> Mean:
    """The mean of values, every value weighing the same, with an interval over draws of whole groups.

    Args:
        values: N finite numbers; booleans count as 0 and 1.
        groups: the group of each.
        seed: of the draws.
        draws: how many.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) == 0:
        return Mean(None, None, None, 0, 0)
    sums, counts = _by_group(numbers, groups)
    k = len(sums)
    if k < 2:
        return Mean(float(numbers.mean()), None, None, len(numbers), k)
    generator = np.random.default_rng(seed)
    found: list[Any] = []
    for start in range(0, draws, _CHUNK):
        drawn = generator.integers(0, k, (min(_CHUNK, draws - start), k))
        found.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    low, high = np.percentile(np.concatenate(found), (2.5, 97.5))
    return Mean(float(numbers.mean()), float(low), float(high), len(numbers), k)


def clustered_share(hits: Sequence[bool] | BoolArray, groups: Sequence[Hashable]) -> Mean:
    """The share of hits, every value weighing the same, with Wilson's interval at the effective number of values.

    With s hits and n values in each of k groups, N values in all and share p, the share's variance over groups is
    v = k / (k − 1) · Σ (s − p n)² / N², and the N values amount to min(N, p (1 − p) / v) independent ones, fewer by
    (z / t)² since v was estimated from k groups. Where all values are alike, v says nothing, and a group counts as one.

    Args:
        hits: N of them.
        groups: the group of each.
    """
    numbers = np.asarray(hits, dtype=np.float64)
    count = len(numbers)
    if count == 0:
        return Mean(None, None, None, 0, 0)
    sums, counts = _by_group(numbers, groups)
    k, share = len(sums), float(numbers.mean())
    if k < 2:
        return Mean(share, None, None, count, k)
    effective = float(count)
    if k < count:
        variance = k / (k - 1) * float(((sums - share * counts) ** 2).sum()) / count**2
        independent = min(effective, share * (1 - share) / variance) if variance > 0 else effective
        effective = float(k) if share in (0.0, 1.0) else independent * (Z / student_t_975(k - 1)) ** 2
    low, high = wilson(share * effective, effective)
    return Mean(share, low, high, count, k)


def _by_group(numbers: FloatArray, groups: Sequence[Hashable]) -> tuple[FloatArray, FloatArray]:
    """Sum and count of each group."""
    index: dict[Hashable, int] = {}
    places: IntArray = np.array([index.setdefault(group, len(index)) for group in groups])
    k = len(index)
    return np.bincount(places, numbers, k).astype(np.float64), np.bincount(places, minlength=k).astype(np.float64)
