"""MEM-01: no step leaves tensors behind, and no checkpoint takes a second copy of the state."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.training.clock import StepClock
from surefoot.training.state import write_state
from surefoot.training.step import StepResult, ppo_step
from tests.assembly.live_bytes import LiveBytes
from tests.builders import make_config, make_parts, make_prompts, merged, save_gpt2

PROMPTS = make_prompts((1, 2), (1, 2, 3, 4), (5,), (6, 7, 8))


def live_tensors() -> tuple[int, int]:
    """Number and bytes of all tensors that are alive."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return len(tensors), sum(t.numel() * t.element_size() for t in tensors)


def quality(actions: Sequence[int]) -> float:
    return sum(actions) / (11 * len(actions))


@pytest.mark.parametrize(
    "sections",
    [
        {"critic": {"kind": "separate"}},
        {"critic": {"kind": "shared"}, "model": {"lora": {"rank": 2}}, "ppo": {"entropy_coef": 0.1, "surrogate": "kl"}},
    ],
    ids=["separate", "shared"],
)
def test_fifty_steps_leave_no_tensor_behind(tmp_path: Path, sections: dict[str, Any]) -> None:
    base = {"ppo": {"epochs": 1, "minibatches": 1}, "rollout": {"max_new_tokens": 3}, "reward": {"normalise": True}}
    cfg = make_config(save_gpt2(tmp_path), **merged(base, sections))
    parts = make_parts(cfg, quality)
    counts = {}
    kept: list[StepResult | None] = [None]
    for step in range(1, 51):
        kept[0] = ppo_step(step, PROMPTS, parts, cfg, StepClock())
        if step in (10, 50):
            counts[step] = live_tensors()
    assert counts[50] == counts[10]
    assert counts[10][0] > 20, "the count must see the models at least"
    result = kept[0]
    assert result is not None
    graphs = [n for n, v in vars(result.batch).items() if isinstance(v, torch.Tensor) and v.requires_grad]
    assert graphs == []
    assert all(value is None or type(value) in (int, float) for value in result.report.metrics.values())
    assert all(p.grad is None for p in parts.learner.policy.trainable().values())


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_a_checkpoint_is_written_from_where_the_tensors_are(kind: str, tmp_path: Path) -> None:
    """Neither torch nor Python holds more than a part of one optimizer's moments besides."""
    cfg = make_config(save_gpt2(tmp_path / "model", hidden=64, layers=4), critic={"kind": kind})
    parts = make_parts(cfg, quality)
    ppo_step(1, PROMPTS, parts, cfg, StepClock())
    learner = parts.learner
    optimizers = [o for o in (learner.policy_optimizer, learner.critic_optimizer) if o is not None]
    moments = [tensor for o in optimizers for tensor in o.state()[0].values()]
    weights = [p for o in optimizers for p in o.named.values()]
    size = sum(t.numel() * t.element_size() for t in moments)
    assert size > 1_500_000
    tracemalloc.start()
    try:
        with LiveBytes(*moments, *weights) as live:
            write_state(tmp_path, parts, step=1, extra={})
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(file.stat().st_size for file in tmp_path.glob("*_optimizer.safetensors")) > size
    assert live.peak + python < size / len(optimizers) / 4, (live.peak, python)
