"""Model cards of the stages before PPO: what the model is, from what it was made, how it did on held-out rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import surefoot
from surefoot.assembly.card import quantised_note
from surefoot.config import Config
from surefoot.training.durable import read_records
from surefoot.training.run_folder import RunFolder

ADAPTERS = "LoRA adapters (merged here{})"


def sft_card(config: Config, folder: RunFolder, step: int, counts: Mapping[str, int]) -> str:
    """README.md of a fine-tuned model.

    Args:
        config, folder: of the run.
        step: whose weights the model has.
        counts: of the demonstrations.
    """
    section = config.sft
    evaluations = read_records(folder.path / "evaluations.jsonl")
    facts = [
        ("starting model", f"`{config.model.policy}`"),
        ("trained", ADAPTERS.format("; apart in `adapter/`") if config.model.lora else "all weights"),
        ("demonstrations", f"{counts['kept']}, {counts['trained_tokens']} trained tokens"),
        ("optimizer steps", f"{step}, {section.rows_per_step} demonstrations each"),
        ("trained tokens", "the assistant's, the end of each turn included"),
    ]
    lines = _head(config, "Fine-tuned on demonstrations", ["sft", "surefoot"], str(config.model.policy), facts)
    if evaluations:
        lines += ["Held-out demonstrations:", "", "| after step | loss | perplexity | rows |", "|---|---|---|---|"]
        lines += [
            f"| {r['step']} | {_number(r['evaluate/loss'])} | {_number(r['evaluate/perplexity'])} |"
            f" {r['evaluate/rows']} |"
            for r in evaluations
        ]
        lines += [""]
    lines += quantised_note(config)
    lines += ["A low loss says that it imitates well, not that its answers are good. Evaluate it before use.", ""]
    return "\n".join(lines)


def reward_model_card(config: Config, folder: RunFolder, start: str, calibration: Mapping[str, Any]) -> str:
    """README.md of a reward model.

    Args:
        config, folder: of the run.
        start: what it started from.
        calibration: content of ``surefoot_reward.json``.
    """
    section = config.reward_model
    accuracy = f"{calibration['accuracy']:.3f} (95 % interval {calibration['low']:.3f} to {calibration['high']:.3f})"
    facts = [
        ("starting model", f"`{start}`"),
        ("trained", ADAPTERS.format("") if config.model.lora else "all weights"),
        ("loss", f"Bradley-Terry, margin scale {section.margin_scale:g}, centring {section.centering:g}"),
        ("heads", f"{section.heads}; the score layer is their mean" if section.heads > 1 else "1"),
        ("optimizer steps", f"{calibration['step']}, {section.pairs_per_step} pairs each"),
        (f"accuracy on {calibration['pairs']} {calibration['source']}", accuracy),
        ("mean and deviation of scores", f"{calibration['mean']:.3f}, {calibration['scale']:.3f}"),
        (
            "expected calibration error",
            f"{calibration['expected_calibration_error']:.3f}; with temperature {calibration['temperature']:.3g}"
            f" {calibration['expected_calibration_error_at_temperature']:.3f}",
        ),
    ]
    lines = _head(config, "A reward model from preferences", ["reward-model", "surefoot"], start, facts)
    lines += [
        "A sequence classifier with one label, read at the last token of the whole conversation or text.",
        "`surefoot_reward.json` has its calibration, by lead and by margin, and the digests of its data.",
        "",
        "Its accuracy is on pairs like those it was trained on. A policy trained against it will find texts that are",
        "not: look at what it scores highest before use.",
        "",
    ]
    return "\n".join(lines)


def _head(config: Config, what: str, tags: Sequence[str], start: str, facts: Sequence[tuple[str, str]]) -> list[str]:
    front = {"base_model": start, "library_name": "transformers", "tags": list(tags)}
    return [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        "---",
        "",
        f"# {config.run.name or 'run'}",
        "",
        f"{what} by Surefoot {surefoot.__version__}. Config, inputs with their digests and the metrics of each",
        "step are in the run folder that this model came from.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts),
        "",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
