"""What both sides of the time to a gain are given: the quickstart's own inputs, in files that TRL's side can read."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer

from benchmarks.gain import Task
from benchmarks.work import write_result
from surefoot.cli.quickstart import prepare as prepare_quickstart
from surefoot.config import Config, load_config
from surefoot.data.order import PromptOrder
from surefoot.data.reading import read_rows
from surefoot.errors import ConfigError
from surefoot.models.tokenizer import load_codec

# The toy's own config trains all weights for another reward's sake; these make it the same kind of run, only small.
TINY: Final = (
    "model.lora.rank=4",
    "model.lora.alpha=8",
    "ppo.cut_off=penalise",
    "ppo.missing_eos_penalty=0.5",
    "rollout.prompts_per_step=8",
    "rollout.max_new_tokens=8",
)


def prepare(size: str, folder: Path, seeds: Sequence[int], steps: int) -> Task:
    """Write the quickstart's config, reward and prompts, and each seed's prompts in the order of its steps.

    Args:
        size: of the quickstart, ``full`` or ``tiny``.
        folder: for the files.
        seeds: of the runs.
        steps: that a run makes at most.

    Raises:
        ConfigError: the quickstart's config asks for something that TRL's trainer does not have.
    """
    file = prepare_quickstart(size, folder)
    overrides = TINY if size == "tiny" else ()
    config = load_config(file, overrides)
    refuse_what_trl_has_not(config)
    assert config.model.policy and config.data.prompts and config.evaluate.prompts and config.model.lora
    tokenizer: Any = AutoTokenizer.from_pretrained(config.model.policy)
    training = encoded(tokenizer, config.data.prompts)
    held_out = write_rows(folder / "held-out.jsonl", encoded(tokenizer, config.evaluate.prompts))
    order = {
        str(seed): write_rows(folder / f"prompts-{seed}-{steps}.jsonl", in_order(training, config, seed, steps))
        for seed in seeds
    }
    return Task(
        model=config.model.policy,
        config=str(file.resolve()),
        overrides=overrides,
        reward=str(file.resolve().with_name("reward.py")),
        held_out=str(held_out),
        prompts={seed: str(path) for seed, path in order.items()},
        pad_token=str(tokenizer.pad_token),
        **numbers(config),
    )


def numbers(config: Config) -> dict[str, Any]:
    """The task's numbers."""
    ppo, rollout, lora = config.ppo, config.rollout, config.model.lora
    assert lora is not None
    return {
        "prompts_per_step": rollout.prompts_per_step,
        "max_new_tokens": rollout.max_new_tokens,
        "temperature": rollout.temperature,
        "epochs": ppo.epochs,
        "minibatches": ppo.minibatches,
        "gamma": ppo.gamma,
        "lam": ppo.lam,
        "clip": ppo.clip_low,
        "value_clip": ppo.value_clip,
        "value_coef": ppo.value_coef,
        "kl_coef": ppo.kl.coef,
        "missing_eos_penalty": ppo.missing_eos_penalty,
        "lora_rank": lora.rank,
        "lora_alpha": lora.alpha,
        "policy_lr": config.optim.policy_lr,
        "critic_lr": config.optim.critic_lr,
    }


def refuse_what_trl_has_not(config: Config) -> None:
    """The comparison is only fair as long as the quickstart does what TRL's trainer can do too.

    Raises:
        ConfigError: naming the first setting that has no counterpart.
    """
    assert config.model.policy is not None
    codec = load_codec(config.model.policy)
    lora, ppo, evaluate = config.model.lora, config.ppo, config.evaluate
    settings: Mapping[str, tuple[Any, Any]] = {
        "model.lora.targets": (lora.targets if lora else None, "all-linear"),
        "rollout.samples_per_prompt": (config.rollout.samples_per_prompt, 1),
        "rollout.stop": (config.rollout.stop, []),
        "evaluate.temperature": (evaluate.temperature, config.rollout.temperature),
        "evaluate.max_new_tokens": (evaluate.max_new_tokens, None),
        "ppo.cut_off": (ppo.cut_off, "penalise"),
        "ppo.whiten": (ppo.whiten, True),
        "ppo.clip_high": (ppo.clip_high, ppo.clip_low),
        "ppo.surrogate": (ppo.surrogate, "clip"),
        "ppo.aggregate": (ppo.aggregate, "token-mean"),
        "ppo.kl.place": (ppo.kl.place, "reward"),
        "ppo.kl.controller": (ppo.kl.controller, "fixed"),
        "optim.schedule": (config.optim.schedule, "constant"),
        "the end-of-sequence tokens": (codec.stop_ids, frozenset([codec.tokenizer.eos_token_id])),
    }
    for name, (got, wanted) in settings.items():
        if got != wanted:
            raise ConfigError(f"{name} of the quickstart has no counterpart in TRL's trainer", got=got, allowed=wanted)


def encoded(tokenizer: Any, source: str) -> list[dict[str, Any]]:
    """Rows of a prompts file with ``input_ids`` by the model's own chat template."""
    return [
        {
            "prompt": row.prompt,
            "input_ids": tokenizer.apply_chat_template(row.prompt, add_generation_prompt=True, return_dict=False),
        }
        for row in read_rows(source, column="prompt", bad_rows="error").rows
    ]


def in_order(rows: Sequence[dict[str, Any]], config: Config, seed: int, steps: int) -> list[dict[str, Any]]:
    """All steps' prompts one after the other, as ``surefoot train`` would take them.

    The smaller last batch of an epoch is left out, since TRL leaves it out.
    """
    order = PromptOrder(len(rows), batch=config.rollout.prompts_per_step, seed=seed, drop_last=True)
    return [rows[i] for step in range(1, steps + 1) for i in order.batch(step)]


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A JSONL file; returns its absolute path."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file.resolve()


def main() -> None:
    """Prepare, and write the task beside its files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    file = args.cache.resolve() / "task.json"
    write_result(file, dataclasses.asdict(prepare(args.size, args.cache, args.seeds, args.steps)))
    write_result(args.out, {"task": str(file), "other_cores": 0.0})


if __name__ == "__main__":
    main()
