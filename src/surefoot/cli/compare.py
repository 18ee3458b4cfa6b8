"""Two run folders side by side: what differs between them, and how each ended. Loads no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from surefoot.cli.run_summary import HeldOut, held_out_of, summary
from surefoot.cli.table import aligned, number
from surefoot.config.flat import flat
from surefoot.errors import RunFolderError
from surefoot.records import Lineage
from surefoot.training.durable import read_records
from surefoot.training.lineage import NUMERIC_PACKAGES, read_lineage
from surefoot.training.run_folder import RunFolder

LAST: Final = 10
"""Steps at the end that a metric is averaged over."""
MAIN: Final = (
    "score/mean",
    "reward/mean",
    "kl/reference_k1",
    "kl/update_k3",
    "policy/entropy",
    "policy/clip_fraction",
    "policy/grad_norm",
    "value/explained_variance",
    "response/tokens_mean",
    "response/cut_off_share",
    "time/step_s",
)
"""Metrics that are shown for every pair of runs; each reward term's is added."""
MACHINE: Final = ("cpu", "threads", "device", "python")
_NOT_COMPARED: Final = ("run.name", "run.dir")
_TERMS_BEYOND: Final = ("score/std", "score/min", "score/max", "score/failed_share")


def comparison(first: Path, second: Path) -> dict[str, Any]:
    """Everything that ``runs compare`` shows.

    Raises:
        RunFolderError: one of the two is no run folder, or too damaged to compare.
    """
    folders = [RunFolder.open(_found(path)) for path in (first, second)]
    runs = [summary(folder.path) for folder in folders]
    lineages = [_lineage(folder) for folder in folders]
    metrics = [folder.read_metrics() for folder in folders]
    last = min(LAST, *(len(lines) for lines in metrics)) or LAST
    return {
        "runs": [{"name": run.name, "path": run.path, "status": run.status, "step": run.step} for run in runs],
        "config": _config_differences(*folders),
        "inputs": _input_differences(*lineages),
        "packages": _package_differences(*lineages),
        "metrics": _metric_means(metrics[0], metrics[1], last),
        "averaged_over": last,
        "held_out": _held_out(folders, lineages),
    }


def _found(path: Path) -> Path:
    """The path as given, or that run in ``runs``."""
    path = path.expanduser()
    return Path("runs") / path if not path.exists() and (Path("runs") / path).is_dir() else path


def _lineage(folder: RunFolder) -> Lineage | None:
    return read_lineage(folder.lineage) if folder.lineage.exists() else None


def _config_differences(first: RunFolder, second: RunFolder) -> dict[str, list[Any]]:
    a, b = (flat(_tree(folder)) for folder in (first, second))
    keys = [key for key in dict.fromkeys((*a, *b)) if key not in _NOT_COMPARED]
    return {key: [a.get(key), b.get(key)] for key in keys if a.get(key) != b.get(key)}


def _tree(folder: RunFolder) -> Mapping[str, Any]:
    try:
        tree = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunFolderError(
            "the run's config.yaml cannot be read", got=str(folder.config), hint="restore it from a copy"
        ) from error
    return tree if isinstance(tree, dict) else {}


def _input_differences(first: Lineage | None, second: Lineage | None) -> dict[str, list[Any]]:
    """Inputs whose content differs; for those without a digest (hub ids), whose name does."""
    a, b = (lineage.inputs if lineage is not None else {} for lineage in (first, second))
    found: dict[str, list[Any]] = {}
    for name in dict.fromkeys((*a, *b)):
        ours, theirs = a.get(name), b.get(name)
        if _identity(ours) != _identity(theirs):
            found[name] = [_input(ours), _input(theirs)]
    return found


def _identity(one: Mapping[str, Any] | None) -> Any:
    return None if one is None else one.get("sha256") or one.get("path")


def _input(one: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if one is None else {"path": one.get("path"), "sha256": one.get("sha256")}


def _package_differences(first: Lineage | None, second: Lineage | None) -> dict[str, list[Any]]:
    """Versions, machine and source that can change results."""
    pairs: dict[str, list[Any]] = {}
    if first is None or second is None:
        return pairs
    for name in NUMERIC_PACKAGES:
        pairs[name] = [first.packages.get(name), second.packages.get(name)]
    for name in MACHINE:
        pairs[name] = [first.machine.get(name), second.machine.get(name)]
    pairs["source of surefoot"] = [str(one.code.get("sha256"))[:12] for one in (first, second)]
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _metric_means(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], last: int) -> dict[str, list[Any]]:
    present = {key for lines in (a, b) for line in lines[-last:] for key in line}
    terms = sorted(key for key in present if key.startswith("score/") and key not in (*MAIN, *_TERMS_BEYOND))
    names = [name for name in (MAIN[0], *terms, *MAIN[1:]) if name in present]
    return {name: [_mean(lines[-last:], name) for lines in (a, b)] for name in names}


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [float(line[name]) for line in lines if isinstance(line.get(name), (int, float))]
    return statistics.fmean(known) if known else None


def _held_out(folders: Sequence[RunFolder], lineages: Sequence[Lineage | None]) -> dict[str, Any] | None:
    """First and last evaluation of each, whether the last intervals overlap, and whether the two compare at all."""
    records = [read_records(folder.path / "evaluations.jsonl") for folder in folders]
    if not all(records):
        return None
    before = [held_out_of(lines[0]) for lines in records]
    after = [held_out_of(lines[-1]) for lines in records]
    prompts = [_identity(one.inputs.get("evaluate")) if one is not None else None for one in lineages]
    settings = [lines[-1].get("settings") for lines in records]
    return {
        "before": [_as_dict(one) for one in before],
        "after": [_as_dict(one) for one in after],
        "overlap": _overlap(*after),
        "same_prompts": None if None in prompts else prompts[0] == prompts[1],
        "same_sampling": settings[0] == settings[1],
        "same_counts": records[0][-1].get("evaluate/prompts") == records[1][-1].get("evaluate/prompts"),
    }


def _as_dict(one: HeldOut) -> dict[str, Any]:
    return {"step": one.step, "mean": one.mean, "low": one.low, "high": one.high}


def _overlap(a: HeldOut, b: HeldOut) -> bool | None:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    return a.low <= b.high and b.low <= a.high


# ------------------------------------------------------------------------------------------------------------ text


def render(found: Mapping[str, Any]) -> str:
    """The comparison as plain text."""
    names = _names([run["name"] for run in found["runs"]], [run["path"] for run in found["runs"]])
    parts = [
        aligned(("", *names), [(key, *(str(run[key]) for run in found["runs"])) for key in ("status", "step")]),
        _section("config keys that differ", names, found["config"], "the configs are the same"),
        _section("inputs that differ", names, _short(found["inputs"]), "the inputs are the same"),
        _section("packages and machine that differ", names, found["packages"], "packages and machine are the same"),
        _metrics(names, found),
        _held_out_text(names, found["held_out"]),
    ]
    return "\n".join(parts)


def _names(names: Sequence[str], paths: Sequence[str]) -> Sequence[str]:
    return names if names[0] != names[1] else paths


def _section(title: str, names: Sequence[str], pairs: Mapping[str, Sequence[Any]], nothing: str) -> str:
    if not pairs:
        return f"{nothing}\n"
    rows = [(key, *(_shown(value) for value in pair)) for key, pair in pairs.items()]
    return aligned((title, *names), rows, indent=2)


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _short(inputs: Mapping[str, Sequence[Any]]) -> dict[str, list[str | None]]:
    def text(one: Mapping[str, Any] | None) -> str | None:
        if one is None:
            return None
        return f"{Path(str(one['path'])).name} {str(one['sha256'])[:12] if one['sha256'] else '(no digest)'}"

    return {name: [text(one) for one in pair] for name, pair in inputs.items()}


def _metrics(names: Sequence[str], found: Mapping[str, Any]) -> str:
    if not found["metrics"]:
        return "no steps to compare\n"
    rows = [(key, *(number(value) for value in pair)) for key, pair in found["metrics"].items()]
    title = f"mean of the last {found['averaged_over']} steps"
    return aligned((title, *names), rows, right=(1, 2), indent=2)


def _held_out_text(names: Sequence[str], held_out: Mapping[str, Any] | None) -> str:
    if held_out is None:
        return "no held-out scores of both runs\n"
    rows = [(when, *(_interval(one) for one in held_out[when])) for when in ("before", "after")]
    return aligned(("held-out score", *names), rows, indent=2) + f"  {_verdict(held_out)}\n"


def _interval(one: Mapping[str, Any]) -> str:
    if one["low"] is None:
        return f"{number(one['mean'])} after step {one['step']}"
    return f"{number(one['mean'])} ({number(one['low'])} to {number(one['high'])}) after step {one['step']}"


def _verdict(held_out: Mapping[str, Any]) -> str:
    doubts = {
        "other held-out prompts": held_out["same_prompts"] is False or not held_out["same_counts"],
        "other sampling settings": not held_out["same_sampling"],
    }
    if any(doubts.values()):
        return f"not comparable: {' and '.join(what for what, true in doubts.items() if true)}"
    if held_out["overlap"] is None:
        return "no intervals to compare"
    return (
        "the 95 % intervals overlap: the difference may be chance"
        if held_out["overlap"]
        else "the 95 % intervals do not overlap: the difference is clear"
    )
