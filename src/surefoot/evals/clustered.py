"""Means of values that come in groups, with intervals that know it. Torch-free.

Pairs of one prompt, and answers of one film, are not independent: whole groups are drawn again, not single values
(Davison and Hinkley 1997, section 3.8).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from surefoot.records import BoolArray, FloatArray

DRAWS: Final = 4000
_CHUNK: Final = 250


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95 % interval.

    Attributes:
        mean: over all values; None without any.
        low, high: percentiles 2.5 and 97.5 over draws of whole groups; None with fewer than two groups.
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
    index: dict[Hashable, int] = {}
    places = np.array([index.setdefault(group, len(index)) for group in groups])
    k = len(index)
    sums, counts = np.bincount(places, numbers, k), np.bincount(places, minlength=k).astype(np.float64)
    if k < 2:
        return Mean(float(numbers.mean()), None, None, len(numbers), k)
    generator = np.random.default_rng(seed)
    found: list[Any] = []
    for start in range(0, draws, _CHUNK):
        drawn = generator.integers(0, k, (min(_CHUNK, draws - start), k))
        found.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    low, high = np.percentile(np.concatenate(found), (2.5, 97.5))
    return Mean(float(numbers.mean()), float(low), float(high), len(numbers), k)
