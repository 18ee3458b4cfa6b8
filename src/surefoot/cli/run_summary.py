"""A run folder in a line: how it stands, how far it got, how it scored. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from surefoot.cli.table import number
from surefoot.errors import RunFolderError, SurefootError
from surefoot.training.durable import read_records
from surefoot.training.run_folder import RunFolder
from surefoot.training.run_status import RunState

MARKS: Final = ("config.yaml", "status.json", "metrics.jsonl", "lineage.json", "checkpoints")
"""What makes a folder a run folder, or what is left of one."""


@dataclass(frozen=True)
class HeldOut:
    """One held-out evaluation: after which step, score and 95 % interval."""

    step: int
    mean: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return number(self.mean)


@dataclass(frozen=True)
class Run:
    """A run folder in a line.

    Attributes:
        name, path: of the folder.
        status: as in ``status.json``; KILLED for one that says RUNNING and has no process; DAMAGED when it cannot
            be read.
        step, steps: made, and asked for.
        score, kl: ``score/mean`` and ``kl/reference_k1`` of the last step.
        before, after: first and last held-out evaluation; ``after`` is None with only one.
        reason: why it ended, or what is damaged.
        active: when something was last written, UTC, ISO 8601.
    """

    name: str
    path: str
    status: str
    step: int = 0
    steps: int | None = None
    score: float | None = None
    kl: float | None = None
    before: HeldOut | None = None
    after: HeldOut | None = None
    reason: str = ""
    active: str | None = None


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder, by name; the folder itself when it is one."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise RunFolderError(
            "there is no such folder of runs", got=str(folder), hint="name the folder that run.dir names, as runs"
        )
    if (folder / "config.yaml").is_file():
        return [folder]
    inside = (p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    return sorted(p for p in inside if any((p / mark).exists() for mark in MARKS))


def summary(path: Path) -> Run:
    """One run; what cannot be read is said, and the rest shown."""
    run = RunFolder(path)
    faults: list[str] = []
    config = _read_config(run, faults)
    metrics = _records(run.metrics, faults)
    held_out = [held_out_of(record) for record in _records(path / "evaluations.jsonl", faults)]
    state = _state(run, faults)
    last: Mapping[str, Any] = metrics[-1] if metrics else {}
    steps = (config.get("run") or {}).get("steps") if isinstance(config.get("run"), dict) else None
    return Run(
        name=path.name,
        path=str(path),
        status="DAMAGED" if faults else str(state.status) if state is not None else "unknown",
        step=max(int(last.get("step") or 0), state.step if state is not None else 0),
        steps=steps if isinstance(steps, int) else None,
        score=_number(last.get("score/mean")),
        kl=_number(last.get("kl/reference_k1")),
        before=held_out[0] if held_out else None,
        after=held_out[-1] if len(held_out) > 1 else None,
        reason="; ".join(faults) or (state.reason if state is not None else None) or "",
        active=_last_written(run),
    )


def summary_or_damage(path: Path) -> Run:
    """As :func:`summary`; a folder that cannot even be looked into is shown as damaged, beside the others."""
    try:
        return summary(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SurefootError) as error:
        return Run(path.name, str(path), "DAMAGED", reason=f"{type(error).__name__}: {error}")


def held_out_of(record: Mapping[str, Any]) -> HeldOut:
    """A line of ``evaluations.jsonl``."""
    mean, low, high = (_number(record.get(f"evaluate/score_{name}")) for name in ("mean", "low", "high"))
    step = record.get("step")
    return HeldOut(step if isinstance(step, int) else 0, mean, low, high)


def _read_config(run: RunFolder, faults: list[str]) -> Mapping[str, Any]:
    try:
        tree = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        faults.append("config.yaml is missing")
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        faults.append("config.yaml cannot be read")
    else:
        if isinstance(tree, dict):
            return tree
        faults.append("config.yaml holds no sections")
    return {}


def _records(path: Path, faults: list[str]) -> list[dict[str, Any]]:
    try:
        return read_records(path)
    except (SurefootError, OSError) as error:
        what = error.what if isinstance(error, SurefootError) else f"{path} cannot be read"
        faults.append(what.replace(str(path), path.name))
        return []


def _state(run: RunFolder, faults: list[str]) -> RunState | None:
    try:
        state = run.last_status()
    except (SurefootError, OSError):
        return None  # the damaged metrics are named already
    if state is None:
        faults.append("status.json is missing")
    elif state.reason == f"{run.status.name} cannot be read":
        faults.append(state.reason)
    return state


def _last_written(run: RunFolder) -> str | None:
    times = [path.stat().st_mtime for path in (run.status, run.metrics, run.config) if path.exists()]
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds") if times else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def age(moment: str | None, *, now: datetime | None = None) -> str:
    """How long ago, in the largest unit that fits."""
    if moment is None:
        return "-"
    seconds = max(0.0, ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
