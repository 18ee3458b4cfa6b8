"""Seeds: every draw of a run comes from ``(seed, purpose, rank, step)`` and nothing else.

Knows no torch: the numbers seed whichever generator the caller uses.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

PURPOSES: Final = ("data", "rollout", "minibatch", "init", "evaluate", "reward", "samples", "bootstrap")


def derive_seed(seed: int, purpose: str, *, rank: int = 0, step: int = 0, index: int = 0) -> int:
    """A 63-bit seed that differs whenever any of its parts differs.

    Args:
        seed: the run's seed.
        purpose: one of PURPOSES, so that two users of randomness never share a stream.
        rank, step, index: where in the run; ``index`` is for rows within a step.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose of randomness {purpose!r}; allowed: {PURPOSES}")
    text = f"{seed}/{purpose}/{rank}/{step}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *, rank: int = 0, step: int = 0, index: int = 0) -> np.random.Generator:
    """A numpy generator (Philox, counter-based) seeded with :func:`derive_seed`."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, rank=rank, step=step, index=index)))
