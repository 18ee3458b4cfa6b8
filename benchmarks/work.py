"""The work that both sides do, the configurations that Surefoot does it in, and how a result is handed back.

Standard library only: the yardstick's side runs in an environment without Surefoot.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TEMPERATURE: Final = 0.7
LEARNING_RATE: Final = 3e-6
KL_COEF: Final = 0.05
VALUE_COEF: Final = 0.1
LORA_RANK: Final = 16

# What is trained, as overrides of a config. Those with a shared critic solve a smaller problem than the yardstick.
CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    "full-separate": ("critic.kind=separate",),
    "full-separate-checkpointing": ("critic.kind=separate", "model.gradient_checkpointing=true"),
    "full-shared": ("critic.kind=shared",),
    "lora-shared": ("critic.kind=shared", f"model.lora.rank={LORA_RANK}", f"model.lora.alpha={2 * LORA_RANK}"),
}

# Large blocks come from the heap and stay there, in huge pages: glibc else maps and unmaps every large temporary.
TUNED_ALLOCATOR: Final = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("hugetlb=1", "mmap_max=0", "trim_threshold=17179869184", "top_pad=268435456")
)
ALLOCATORS: Final[Mapping[str, Mapping[str, str]]] = {"default": {}, "tuned": {"GLIBC_TUNABLES": TUNED_ALLOCATOR}}
# Surefoot's side: what the command sets by itself, nothing, or the yardstick's settings instead.
OWN_ALLOCATORS: Final[Mapping[str, Mapping[str, str]]] = {
    "own": {},
    "default": {"SUREFOOT_ALLOCATOR": "system"},
    "tuned": {"SUREFOOT_ALLOCATOR": "system", "GLIBC_TUNABLES": TUNED_ALLOCATOR},
}
ALLOCATOR_VARIABLES: Final = ("GLIBC_TUNABLES", "SUREFOOT_ALLOCATOR", "THP_MEM_ALLOC_ENABLE")

# Phases of a step, in the order of the table. TRL has no policy_read: it keeps the logits of its generation.
PHASES: Final = (
    "generation",
    "policy_read",
    "reference",
    "values",
    "reward",
    "train_forward",
    "train_backward",
    "optimizer",
    "other",
)


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of every measured process."""
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefer", action="store_true", help="ask the scheduler to prefer this process")


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the processes that run PPO steps."""
    add_process_arguments(parser)
    parser.add_argument("--model", required=True, help="folder of the policy, the reference and the critic")
    parser.add_argument("--reward", required=True, help="folder of the reward model")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with messages and their input_ids")
    parser.add_argument("--num-prompts", type=int, help="use only the first ones")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=2, help="measured steps")
    parser.add_argument("--seed", type=int, default=0)


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the processes that only decode."""
    add_process_arguments(parser)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with input_ids")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeats", type=int, default=3, help="counted runs; one more comes before them")


def read_prompts(file: Path, count: int | None = None) -> list[dict[str, Any]]:
    """The rows of a prompts file, the first ``count`` of them."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return rows[:count]


def step_result(steps: Sequence[Mapping[str, Any]], warmup: int, **facts: Any) -> dict[str, Any]:
    """What a side hands back: the measured steps, the ones before them, and facts about the side.

    ``other_cores`` is the worst of the measured steps.
    """
    measured = list(steps[warmup:])
    return {
        **facts,
        "steps": measured,
        "warmup_steps": list(steps[:warmup]),
        "other_cores": max(step["other_cores"] for step in measured),
    }


def write_result(file: Path, result: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.partial")
    aside.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(file)
