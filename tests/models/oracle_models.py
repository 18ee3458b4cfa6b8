"""The five tiny models and the numbers that a forward pass in plain numpy gave for them."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from surefoot.models.critic import SeparateCritic, load_critic
from surefoot.models.output_head import OutputHead
from surefoot.models.policy import CausalPolicy, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout, Trajectory

ORACLES = Path(__file__).parents[1] / "oracles"
NAMES = ("llama", "gpt2", "qwen2", "qwen3", "gemma2")
BATCHES = ("plain", "pad_id_as_real_token")
PACKED, PADDED = BatchPlan(packing="on"), BatchPlan(packing="off")
ONE_ROW = BatchPlan(tokens=1)


@functools.cache
def oracle(name: str) -> Any:
    """A JSON file of the oracles."""
    return json.loads((ORACLES / f"{name}.json").read_text())


def folder(name: str) -> Path:
    """The folder of a tiny model."""
    return ORACLES / "models" / name


def rollout_of(inputs: dict[str, Any]) -> Rollout:
    """The oracle's left-padded prompts and right-padded responses in our one layout."""
    rows = []
    for prompt, kept, response, real in zip(
        inputs["prompt_ids"], inputs["prompt_mask"], inputs["response_ids"], inputs["response_mask"], strict=True
    ):
        given = [t for t, m in zip(prompt, kept, strict=True) if m]
        actions = [t for t, m in zip(response, real, strict=True) if m]
        rows.append(Trajectory(given + actions, [False] * len(given) + [True] * len(actions)))
    return Rollout.of(rows)


def real(array: Any, inputs: dict[str, Any]) -> np.ndarray:
    """The oracle's numbers at real response tokens, row after row."""
    return np.array(array)[np.array(inputs["response_mask"]) == 1]


def in_layout(array: Any, inputs: dict[str, Any], rollout: Rollout) -> np.ndarray:
    """An oracle array ``[B, R]`` spread over our ``[B, T]``."""
    out = np.zeros(rollout.tokens.shape)
    out[rollout.mask] = real(array, inputs)
    return out


@functools.cache
def shared_policy(name: str, dtype: str = "float32") -> CausalPolicy:
    """A policy that no test may change."""
    return load_policy(folder(name), dtype=dtype)


def reading(name: str, plan: BatchPlan, *, dtype: str = "float32", temperature: float = 1.0) -> CausalPolicy:
    """A policy that no test may change, read in some way."""
    lm = shared_policy(name, dtype).lm
    view = type(lm)(lm.model, lm.folder, replace(lm.head.settings, temperature=temperature))
    assert isinstance(view.head, OutputHead)
    return CausalPolicy(view, plan)


@functools.cache
def shared_value_model(name: str, dtype: str = "float32") -> SeparateCritic:
    """The tiny model as a critic with the oracle's head; no test may change it."""
    return load_critic(folder(name), dtype=dtype)


def altered(
    name: str,
    target: Path,
    *,
    config: dict[str, Any] | None = None,
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> Path:
    """A copy of a tiny model with something in its files changed."""
    shutil.copytree(folder(name), target)
    if config:
        file = target / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    if tensors:
        weights = target / "model.safetensors"
        save_file(tensors(load_file(weights)), weights, metadata={"format": "pt"})
    return target
