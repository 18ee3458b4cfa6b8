"""What a reward model answers. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from surefoot.records import FloatArray


@dataclass(frozen=True)
class Scores:
    """Of B items: a score each, 0 where there is none, and why there is none."""

    values: tuple[float, ...]
    reasons: tuple[str | None, ...]

    def array(self) -> FloatArray:
        """float64 ``[B]``."""
        return np.array(self.values, dtype=np.float64)
