"""``surefoot eval reward-model``: the report as a table or as JSON; its verdict is the exit code."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from surefoot.cli.reward_tables import render
from surefoot.config import RewardModelSection
from surefoot.config.yaml_text import read_yaml
from surefoot.data.formats import raw_rows
from surefoot.errors import ConfigError
from surefoot.evals.criteria import Bounds
from surefoot.evals.gate import REPORT_FILE

KINDS: Final[Mapping[str, Any]] = {
    "segment": str,
    "words": list[str],
    "max_pairs": int,
    "probe_pairs": int,
    "min_gap": float,
    "accuracy": float,
    "shift": float,
    "segment_accuracy": float,
    "device": str,
    "dtype": Literal["float32", "float64", "bfloat16", "float16"],
    "ensemble": Literal["mean", "min", "lower"],
    "ensemble_c": float,
    "batch_tokens": int,
    "bad_rows": Literal["error", "skip"],
    "transcripts": Literal["auto", "chat", "text"],
}
EXAMPLES: Final[Mapping[str, str]] = {
    "words": "'[word, another]'",
    "max_pairs": "1000",
    "probe_pairs": "200",
    "device": "cpu",
    "dtype": "float32",
    "ensemble": "lower",
    "batch_tokens": "8192",
    "bad_rows": "skip",
    "transcripts": "text",
}
COUNTS: Final = ("max_pairs", "probe_pairs", "batch_tokens")
SHIFT: Final = "shift."
PARTS: Final = 10
"""Lines of progress where there is no terminal."""


def run_eval_reward_model(model: str, pairs: str, out: Path | None, settings: Sequence[str], *, as_json: bool) -> int:
    """Test a reward model and print the report. Returns the exit code: 1 when it fails.

    Raises:
        UserError: something that was named cannot be used.
    """
    chosen, shifts = read_settings(settings)
    bounds = Bounds(
        accuracy=chosen.get("accuracy", 0.5),
        shift=chosen.get("shift", 0.25),
        shifts=shifts,
        segment=chosen.get("segment_accuracy", 0.5),
    )
    folder = out or _beside(model)
    raw_rows(pairs)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from surefoot.assembly.reward_tests import Asked, try_reward_model
    from surefoot.models.reward_model import Ensemble

    reading = {k: chosen[k] for k in ("min_gap", "bad_rows", "transcripts") if k in chosen}
    asked = Asked(
        model,
        pairs,
        folder,
        segment=chosen.get("segment"),
        words=tuple(chosen.get("words", ())),
        bounds=bounds,
        section=RewardModelSection(data=pairs, **reading),
        device=chosen.get("device", "auto"),
        ensemble=Ensemble(chosen["ensemble"], chosen.get("ensemble_c", 1.0)) if "ensemble" in chosen else None,
        **{k: chosen[k] for k in (*COUNTS, "dtype") if k in chosen},
    )
    report = with_progress(lambda told: try_reward_model(asked, told))
    sys.stdout.write(json.dumps(report) + "\n" if as_json else render(report, folder / REPORT_FILE))
    return 0 if report["verdict"] == "pass" else 1


def _beside(model: str) -> Path:
    """Where the report goes unless that is said: into the run folder, or the model's."""
    place = Path(model)
    if not place.is_dir():
        raise ConfigError("there is no place for the report beside a hub id", got=model, hint="name one: --out DIR")
    return (place.parent if place.name == "model" else place) / "reward-model-tests"


def read_settings(settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Options, and bounds of single probes, from ``KEY=VALUE`` texts; of two for one key the later counts.

    Raises:
        ConfigError: there is no such setting, or its value cannot be read.
    """
    chosen: dict[str, Any] = {}
    shifts: dict[str, float] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        kind: Any = float if key.startswith(SHIFT) else KINDS.get(key)
        if not equals or kind is None:
            allowed = ", ".join([*(f"{k}=..." for k in KINDS), f"{SHIFT}PROBE=..."])
            raise ConfigError("this test has no such setting", got=setting, allowed=allowed)
        try:
            value: Any = text if kind is str else TypeAdapter(kind).validate_python(read_yaml(text))
        except (ValidationError, yaml.YAMLError):
            hint = f"{key}={EXAMPLES.get(key, '0.25')}"
            raise ConfigError(f"{key} cannot be read", got=setting, hint=hint) from None
        if key in COUNTS and value < 1:
            raise ConfigError(f"{key} counts from 1", got=setting, hint="leave it out")
        if key.startswith(SHIFT):
            shifts[key.removeprefix(SHIFT)] = value
        else:
            chosen[key] = value
    return chosen, shifts


def with_progress(work: Callable[[Callable[[str, int, int], None]], dict[str, Any]]) -> dict[str, Any]:
    """Do something that tells how far it is: a bar on a terminal, a line a tenth elsewhere. All on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told: set[tuple[str, int]] = set()

        def plain(what: str, done: int, total: int) -> None:
            part = done * PARTS // max(total, 1)
            if part and (what, part) not in told:
                told.add((what, part))
                sys.stderr.write(f"{what}: {done} of {total}\n")
                sys.stderr.flush()

        return work(plain)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def live(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        return work(live)
