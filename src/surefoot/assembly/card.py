"""The model card that goes with an aligned model."""

from __future__ import annotations

import json
from typing import Any

import surefoot
from surefoot.config import Config
from surefoot.training.durable import read_records
from surefoot.training.run_folder import RunFolder


def model_card(config: Config, folder: RunFolder) -> str:
    """README.md of ``model/``: what it is, from what it was made, how it scored, and what was not checked."""
    evaluations = read_records(folder.path / "evaluations.jsonl")
    steps = folder.read_metrics()
    front = {"base_model": config.model.policy, "library_name": "transformers", "tags": ["ppo", "rlhf", "surefoot"]}
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", ""]
    lines += [
        f"# {config.run.name or 'run'}",
        "",
        f"Aligned with PPO by Surefoot {surefoot.__version__}. Config, inputs with their digests and the metrics of",
        "each step are in the run folder that this model came from.",
        "",
        "| | |",
        "|---|---|",
        f"| starting policy | `{config.model.policy}` |",
        f"| trained | {'LoRA adapters (merged here; apart in `adapter/`)' if config.model.lora else 'all weights'} |",
        *_quantised(config),
        f"| reward | {', '.join(f'{t.name} (weight {t.weight:g})' for t in config.reward.terms)} |",
        f"| steps | {steps[-1]['step'] if steps else 0} |",
        f"| KL to the start | {_kl(steps, evaluations)} |",
        f"| sampling | temperature {config.rollout.temperature:g}, at most {config.rollout.max_new_tokens} tokens |",
        "",
    ]
    if evaluations:
        lines += [
            "Held-out prompts, mean score with a 95 % interval:",
            "",
            "| after step | score | interval | prompts |",
        ]
        lines += ["|---|---|---|---|", *(_row(record) for record in evaluations), ""]
    lines += [
        *quantised_note(config),
        "The score is the training reward: it says how well the reward was learned, not how good the answers are.",
        "Evaluate on an independent set before use.",
        "",
    ]
    return "\n".join(lines)


def quantised_note(config: Config) -> list[str]:
    """What adapters trained on quantised weights mean for the saved model; nothing without."""
    if config.model.quantize is None:
        return []
    return [
        f"The adapters were trained on {config.model.quantize} weights. The weights here are those, in full, with",
        "the adapters folded in: the trained model itself. `adapter/` on the unquantised starting policy is",
        "another model, by as much as quantising changed it.",
        "",
    ]


def _quantised(config: Config) -> list[str]:
    kind = config.model.quantize
    return [] if kind is None else [f"| frozen weights | {kind}, policy and KL's reference alike |"]


def _row(record: dict[str, Any]) -> str:
    mean, low, high = (record[f"evaluate/score_{name}"] for name in ("mean", "low", "high"))
    if mean is None:
        return f"| {record['step']} | none valid | | {record['evaluate/prompts']} |"
    interval = "" if low is None else f"{low:.4f} to {high:.4f}"
    return f"| {record['step']} | {mean:.4f} | {interval} | {record['evaluate/prompts']} |"


def _kl(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> str:
    """Of held-out responses where there are any, else of the last step's."""
    held_out = evaluations[-1].get("evaluate/reference_k1") if evaluations else None
    if held_out is not None:
        return f"{held_out:.3f} nats per response, held-out prompts"
    return f"{_number(steps, 'kl/reference_k1')} nats per response, last training step"


def _number(steps: list[dict[str, Any]], key: str) -> str:
    value = steps[-1].get(key) if steps else None
    return "unknown" if value is None else f"{value:.3f}"
