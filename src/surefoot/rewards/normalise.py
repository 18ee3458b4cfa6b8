"""Scores brought to mean 0 and deviation 1 by statistics that are stored, reported and never assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surefoot.errors import CheckpointError, RewardError

# A deviation below this share of the mean is rounding, not spread: dividing by it would blow up noise.
ROUNDING = 1e-12

Mode = Literal["running", "reference"]


@dataclass
class RunningMoments:
    """Count, mean and sum of squared deviations of all numbers seen so far.

    Batches are merged by the pairwise update of Chan, Golub and LeVeque (1979), which does not cancel.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def update(self, values: Sequence[float]) -> None:
        """Take in a batch of finite numbers; an empty one changes nothing."""
        if not values:
            return
        n = len(values)
        mean = math.fsum(values) / n
        m2 = math.fsum((x - mean) ** 2 for x in values)
        delta, count = mean - self.mean, self.count + n
        self.m2 += m2 + delta * delta * self.count * n / count
        self.mean += delta * n / count
        self.count = count

    @property
    def std(self) -> float:
        """Population deviation; 0 for fewer than two numbers and for numbers that are equal up to rounding."""
        std = math.sqrt(self.m2 / self.count) if self.count > 1 else 0.0
        return std if std > ROUNDING * abs(self.mean) else 0.0

    def state(self) -> dict[str, float | int]:
        """For a checkpoint."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def load(self, state: Mapping[str, Any]) -> None:
        """Back to a stored state.

        Raises:
            CheckpointError: a number is missing.
        """
        try:
            self.count, self.mean, self.m2 = int(state["count"]), float(state["mean"]), float(state["m2"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError("stored reward statistics cannot be read", got=dict(state)) from error


class ScoreNormaliser:
    """``(x - mean) / std`` with the statistics of all scores so far, or of the first step's alone.

    Args:
        mode: ``running``: every update counts; ``reference``: the first update with any score, those of the starting
            policy, and none after it.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.moments = RunningMoments()

    @property
    def ready(self) -> bool:
        """Whether there are statistics."""
        return self.moments.count > 0

    def update(self, scores: Sequence[float | None]) -> None:
        """Take in a step's scores; failed ones (None) are left out. In ``reference`` mode only the first time."""
        if self.mode == "running" or not self.ready:
            self.moments.update([x for x in scores if x is not None])

    def apply(self, scores: Sequence[float | None]) -> list[float | None]:
        """Normalised scores, statistics unchanged. With a deviation of 0 they are only centred; None stays None.

        Raises:
            RewardError: there are no statistics yet: mean 0 and deviation 1 are not assumed.
        """
        if not self.ready and any(x is not None for x in scores):
            raise RewardError(
                "scores cannot be normalised without statistics", hint="update with the first step's scores"
            )
        scale = self.moments.std or 1.0
        return [None if x is None else (x - self.moments.mean) / scale for x in scores]

    def transform(self, scores: Sequence[float | None]) -> list[float | None]:
        """A training step's scores: update, then apply."""
        self.update(scores)
        return self.apply(scores)

    def metrics(self) -> dict[str, float | None]:
        """The statistics in use: ``normaliser/mean`` and ``normaliser/std``; None before the first update."""
        known = self.ready
        return {
            "normaliser/mean": self.moments.mean if known else None,
            "normaliser/std": self.moments.std if known else None,
        }

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"mode": self.mode, **self.moments.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Back to a stored state.

        Raises:
            CheckpointError: it was stored under another mode, or cannot be read.
        """
        if state.get("mode") != self.mode:
            raise CheckpointError(
                "the stored reward statistics are of another kind", got=state.get("mode"), allowed=self.mode
            )
        self.moments.load(state)
