"""Random ragged batches as real rollouts have them, and the garbage that may stand off their masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

GARBAGE = (
    float("nan"),
    float("inf"),
    float("-inf"),
    torch.finfo(torch.float32).max,
    torch.finfo(torch.float32).min,
    1e30,
    -1e4,
    1.0,
)


def ragged_mask(rng: random.Random, rows: int, width: int) -> Tensor:
    """Rows of every kind: empty, one token, whole, a block behind a prompt, and with holes (a tool's answers)."""
    mask = torch.zeros(rows, width, dtype=torch.bool)
    for row in mask:
        kind = rng.choice(("empty", "one", "whole", "block", "holes", "holes"))
        if kind == "one":
            row[rng.randrange(width)] = True
        elif kind == "whole":
            row[:] = True
        elif kind == "block":
            start = rng.randrange(width)
            row[start : rng.randrange(start, width) + 1] = True
        elif kind == "holes":
            row[:] = torch.tensor([rng.random() < 0.6 for _ in range(width)])
    return mask


def make_batch(seed: int, *, dtype: torch.dtype = torch.float64) -> SimpleNamespace:
    """All arrays of one rollout, ``[B, T]`` and ``[B]``, reproducible, 1 to 7 rows of 1 to 12 tokens."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, width = rng.randint(1, 7), rng.randint(1, 12)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)

    old_logp = -draw(rows, width).abs() - 0.01
    return SimpleNamespace(
        mask=ragged_mask(rng, rows, width),
        old_logp=old_logp,
        logp=old_logp + draw(rows, width, scale=0.4),
        ref_logp=old_logp + draw(rows, width, scale=0.3),
        advantages=draw(rows, width),
        rewards=draw(rows, width),
        values=draw(rows, width),
        old_values=draw(rows, width),
        returns=draw(rows, width),
        scores=draw(rows, scale=2.0),
        after=draw(rows),
        rng=rng,
        generator=generator,
    )


def poison(x: Tensor, mask: Tensor, start: int = 0) -> Tensor:
    """A copy with garbage off the mask, of kinds drawn anew for every ``start``; some places stay as they are."""
    rng, out = random.Random(start), x.detach().clone()
    for place in (~mask).nonzero():
        kind = rng.randrange(len(GARBAGE) + 2)
        if kind < len(GARBAGE):
            out[tuple(place)] = GARBAGE[kind]
    return out


@pytest.fixture
def batch() -> Callable[..., SimpleNamespace]:
    return make_batch


@pytest.fixture
def poisoned() -> Callable[..., Tensor]:
    return poison
