"""``surefoot eval reward-model``: the report as a table or as JSON; its verdict is the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from surefoot.cli.table import aligned, number
from surefoot.config import RewardModelSection
from surefoot.config.yaml_text import read_yaml
from surefoot.data.formats import raw_rows
from surefoot.errors import ConfigError
from surefoot.evals.gate import REPORT_FILE
from surefoot.evals.reward_report import Bounds

KINDS: Mapping[str, Any] = {
    "segment": str,
    "words": list[str],
    "max_pairs": int,
    "min_gap": float,
    "accuracy": float,
    "shift": float,
    "segment_accuracy": float,
    "device": str,
    "batch_tokens": int,
    "bad_rows": str,
}
SHIFT = "shift."


def run_eval_reward_model(model: str, pairs: str, out: Path | None, settings: Sequence[str], *, as_json: bool) -> int:
    """Test a reward model and print the report. Returns the exit code: 1 when it fails.

    Raises:
        UserError: something that was named cannot be used.
    """
    chosen, shifts = _settings(settings)
    bounds = Bounds(
        accuracy=chosen.get("accuracy", 0.5),
        shift=chosen.get("shift", 0.25),
        shifts=shifts,
        segment=chosen.get("segment_accuracy", 0.5),
    )
    folder = out or _beside(model)
    raw_rows(pairs)
    from surefoot.assembly.reward_tests import Asked, try_reward_model

    section = RewardModelSection(data=pairs, **{k: chosen[k] for k in ("min_gap", "bad_rows") if k in chosen})
    asked = Asked(
        model,
        pairs,
        folder,
        segment=chosen.get("segment"),
        words=tuple(chosen.get("words", ())),
        bounds=bounds,
        max_pairs=chosen.get("max_pairs"),
        section=section,
        device=chosen.get("device", "auto"),
        batch_tokens=chosen.get("batch_tokens", 8192),
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


def _settings(settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Options, and bounds of single probes, from ``KEY=VALUE`` texts."""
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
            raise ConfigError(f"{key} cannot be read", got=setting, hint=f"{key}={_example(kind)}") from None
        if key.startswith(SHIFT):
            shifts[key.removeprefix(SHIFT)] = value
        else:
            chosen[key] = value
    if chosen.get("max_pairs", 1) < 1 or chosen.get("batch_tokens", 1) < 1:
        raise ConfigError("max_pairs and batch_tokens count from 1", got=f"{chosen}", hint="leave them out")
    if chosen.get("bad_rows", "skip") not in ("error", "skip"):
        raise ConfigError("bad_rows is error or skip", got=chosen["bad_rows"], hint="bad_rows=skip")
    return chosen, shifts


def _example(kind: Any) -> str:
    return {int: "200", float: "0.25", str: "name"}.get(kind, "'[word, another]'")


def with_progress(work: Callable[[Callable[[str, int, int], None]], dict[str, Any]]) -> dict[str, Any]:
    """Do something that tells how far it is: a bar on a terminal, a line a part elsewhere. All on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told: set[str] = set()

        def plain(what: str, done: int, total: int) -> None:
            if done >= total and what not in told:
                told.add(what)
                sys.stderr.write(f"{what}: {total} texts scored\n")

        return work(plain)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def live(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        return work(live)


def render(report: Mapping[str, Any], file: Path) -> str:
    """The report as text: order, probes, roles, findings, verdict."""
    order, used = report["order"], report["pairs"]["used"]
    share, calibration = order["accuracy"], order["calibration"]
    lines = [
        f"{report['model']['path']} on {used} pairs of {report['pairs']['path']}\n\n",
        aligned(
            ("pairs", "count", "accuracy", "low", "high"),
            [
                _row("all", share),
                *(_row(f"chosen {name.replace('_', ' ')}", part) for name, part in order["by_length"].items()),
                *(_row(f"segment {name}", part) for name, part in order["by_segment"].items()),
            ],
            right=(1, 2, 3, 4),
        ),
        f"calibration error {number(calibration['expected_calibration_error'])}, at temperature "
        f"{number(calibration['temperature'])} {number(calibration['expected_calibration_error_at_temperature'])}; "
        f"leads and lengths correlate by {number(order['length_correlation'])}\n\n",
        aligned(
            ("change of the surface", "shift", "low", "high", "rise", "flips"),
            [
                (
                    name,
                    *(number(probe["shift"][key]) for key in ("mean", "low", "high")),
                    number(probe["raised"]),
                    number(probe["flips"]),
                )
                for name, probe in report["probes"].items()
            ],
            right=(1, 2, 3, 4, 5),
        ),
        "shift: of the scores, in their deviation; flips: rightly ordered pairs that the change turns round\n\n",
        _roles(report["roles"]),
    ]
    lines += [f"{f['severity']}: {f['message']}\n  {f['advice']}\n" for f in report["findings"]]
    return "".join([*lines, f"verdict: {report['verdict']}\nreport: {file}\n"])


def _row(name: str, part: Mapping[str, Any]) -> tuple[str, ...]:
    return name, str(part["count"]), *(number(part[key]) for key in ("share", "low", "high"))


def _roles(roles: Mapping[str, Any]) -> str:
    if roles["chats"] == 0:
        return "roles: the model reads texts, where nobody has one\n"
    tried = f"{len(roles['spellings'])} control tokens and a turn of the template typed into {roles['chats']} chats"
    return f"roles: {tried}: {len(roles['broken'])} became real\n"
