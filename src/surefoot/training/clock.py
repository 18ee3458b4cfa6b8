"""A clock that times the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Wall time by phase; ``with clock("update"): ...`` adds to ``time/update_s``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the block under this name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    @property
    def total(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._start

    def metrics(self, *, tokens: int, rows: int) -> dict[str, float | int | None]:
        """``time/*`` and ``throughput/*`` of the step so far."""
        total = self.total
        out: dict[str, float | int | None] = {f"time/{phase}_s": s for phase, s in self.seconds.items()}
        out["time/step_s"] = total
        rollout = self.seconds.get("rollout", 0.0)
        out["throughput/rollout_tokens_per_s"] = tokens / rollout if rollout else None
        out["throughput/trajectories_per_s"] = rows / total if total else None
        return out
