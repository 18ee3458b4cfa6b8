"""Messages of the protocol that are sound, for tests to send, bend and break."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from surefoot.serving.wire import CriticCard, Handshake, Inferred, InferRequest, Limits, RewardCard, TrainRequest


def rows(
    batch: int = 3, width: int = 5, *, vocabulary: int = 50, seed: int = 0
) -> tuple[Any, Any, tuple[int, ...], np.random.Generator]:
    """Tokens, mask and lengths of made-up trajectories; the first is as long as the array is wide."""
    rng = np.random.default_rng(seed)
    lengths = (width, *(int(n) for n in rng.integers(2, width + 1, batch - 1)))
    there = np.arange(width) < np.array(lengths)[:, None]
    tokens = np.where(there, rng.integers(0, vocabulary, (batch, width)), 0)
    mask = there & (np.arange(width) >= 1)
    return tokens, mask, lengths, rng


def infer_request(batch: int = 3, width: int = 5, **changes: Any) -> InferRequest:
    """Ask for values."""
    tokens, mask, lengths, _ = rows(batch, width)
    asked = InferRequest(tuple(range(batch)), lengths, ("values",), tokens, mask, run="run-1", trained_step=3)
    return dataclasses.replace(asked, **changes)


def score_request(*items: Any) -> InferRequest:
    """Ask for scores of texts or conversations."""
    return InferRequest(tuple(range(len(items))), (4,) * len(items), ("scores",), items=items)


def inferred(request: InferRequest, *, dtype: Any = np.float32, seed: int = 1, **changes: Any) -> Inferred:
    """An answer to it."""
    rng, batch = np.random.default_rng(seed), len(request.ids)
    values = request.tokens is not None
    answer = Inferred(
        request.ids,
        request.lengths,
        request.trained_step or 0,
        rng.normal(size=request.tokens.shape).astype(dtype) if request.tokens is not None else None,
        rng.normal(size=batch).astype(dtype) if values else None,
        rng.normal(size=batch) if request.items is not None else None,
    )
    return dataclasses.replace(answer, **changes)


def train_request(batch: int = 3, width: int = 5, *, dtype: Any = np.float32, **changes: Any) -> TrainRequest:
    """Train on two epochs of it."""
    tokens, mask, lengths, rng = rows(batch, width)
    values, returns = (np.where(mask, rng.normal(size=mask.shape), 0).astype(dtype) for _ in range(2))
    plan = [[[row] for row in range(batch)], [list(range(batch))]]
    asked = TrainRequest("run-1", 4, lengths, plan, tokens, mask, values, returns)
    return dataclasses.replace(asked, **changes)


def handshake(**changes: Any) -> Handshake:
    """A service with both roles."""
    settings = {"optim.critic_lr": 1e-5, "ppo.value_clip": 0.2, "optim.betas": [0.9, 0.999], "critic.lora": None}
    found = Handshake(
        software="surefoot 1.2.3",
        roles=["critic", "reward"],
        critic=CriticCard("a" * 64, "b" * 64, 50, 1024, "float32", 1, settings),
        reward=RewardCard("c" * 64, None, "quality", has_chat_template=True),
        run="run-1",
        trained_step=3,
        limits=Limits(1 << 20, 8, 4096),
    )
    return dataclasses.replace(found, **changes)
