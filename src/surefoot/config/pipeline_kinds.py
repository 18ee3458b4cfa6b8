"""What the kinds of stages leave, and what of a config they read. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

RUNS: Final = ("sft", "reward-model", "train")
"""Kinds that make a run folder."""
_RUN_FOLDER: Final = (
    *(
        "model",
        "checkpoints",
        "samples",
        "evaluations",
        "config.yaml",
        "lineage.json",
        "experiment.yaml",
        "status.json",
    ),
    *("memory.json", "metrics.jsonl", "evaluations.jsonl", "findings.jsonl", "to_judge.jsonl"),
)
LEAVES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(RUNS, _RUN_FOLDER),
    "sample": ("tasks.jsonl",),
    "eval-reward-model": ("report.json",),
}
"""What a reference may name in the folder of a stage; of a command its outputs."""
_SERVICES: Final = ("serve", "cluster", "registry", "gateway")
_PPO_ONLY: Final = ("critic", "reward", "rollout", "ppo", "sample", *_SERVICES)
UNREAD: Final[Mapping[str, tuple[str, ...]]] = {
    "sft": (*_PPO_ONLY, "reward_model"),
    "reward-model": (*_PPO_ONLY, "sft"),
    "sample": (
        *("critic", "reward", "ppo", "optim", "evaluate", "checkpoint", "stop", "track", "guard"),
        *("sft", "reward_model", *_SERVICES),
    ),
    "train": ("sft", "reward_model", "sample"),
}
"""Sections that a command does not read. Its stage never sees them, so that they cannot change what it makes."""
READ: Final[Mapping[str, tuple[str, ...]]] = {"data": ("allow", "require_card"), "evaluate": ("every",)}
"""Keys of sections of which fine-tuning and reward models read no others."""


def read_by(kind: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config's tree what a command reads."""
    found = {key: value for key, value in tree.items() if key not in UNREAD[kind]}
    if kind in ("sft", "reward-model"):
        for key, read in READ.items():
            if isinstance(found.get(key), Mapping):
                found[key] = {name: value for name, value in found[key].items() if name in read}
    return found
