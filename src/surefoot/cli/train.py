"""``surefoot train``, and what every command that makes a run has in common: refusals, Ctrl-C, the end in words."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.cli.interrupts import Stopped
from surefoot.config import Config, ineffective, load_config, require
from surefoot.data.formats import raw_rows
from surefoot.training.durable import plain
from surefoot.training.run_folder import in_the_way

if TYPE_CHECKING:
    from surefoot.training.trainer import RunResult

logger = logging.getLogger("surefoot")

SIGNAL_EXITS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def run_train(config: Path, overrides: Sequence[str], *, resume: bool, as_json: bool) -> int:
    """Train; prints where everything lies. Returns the exit code.

    Raises:
        Stopped: by Ctrl-C, without a checkpoint of the last step.
    """
    cfg = load_config(config, overrides)
    require(cfg, "train")
    refuse_early(cfg, (cfg.data.prompts, cfg.evaluate.prompts), resume=resume)
    for sentence in ineffective(cfg):
        logger.warning("%s", sentence)

    def run() -> RunResult:
        from surefoot.assembly.train import train

        return train(cfg, resume=resume)

    return finish(run, cfg, line=_line, as_json=as_json)


def _line(record: Mapping[str, Any]) -> str:
    mean, low, high = (record[f"evaluate/score_{name}"] for name in ("mean", "low", "high"))
    if mean is None:
        return "no valid score"
    return f"score {mean:.4f}" + ("" if low is None else f", 95 % interval {low:.4f} to {high:.4f}")


def refuse_early(cfg: Config, sources: Sequence[str | None], *, resume: bool) -> None:
    """What can be found without torch: a run folder in the way, data files that do not exist.

    Raises:
        RunFolderError, DataError: saying which.
    """
    folder = run_folder(cfg)
    if not resume and os.path.lexists(folder):
        raise in_the_way(folder)
    for source in sources:
        if source is not None:
            raw_rows(source)


def finish(
    run: Callable[[], RunResult], cfg: Config, *, line: Callable[[Mapping[str, Any]], str], as_json: bool
) -> int:
    """Make a run and print where everything lies. Returns the exit code.

    Args:
        run: imports what it needs: torch and transformers take seconds, and by now mistakes in the config were found.
        cfg: its config.
        line: from a record of ``evaluations.jsonl`` to a line for people.
        as_json: print JSON.
    Raises:
        Stopped: by Ctrl-C, without a checkpoint of the last step.
    """
    try:
        result = run()
    except KeyboardInterrupt:
        raise Stopped(stopped_at_once(run_folder(cfg))) from None
    finished = str(result.status) == "FINISHED"
    summary = {
        "run": str(result.folder),
        "status": str(result.status),
        "reason": result.reason,
        "step": result.step,
        "evaluations": [
            {key: value for key, value in record.items() if key != "settings"} for record in result.evaluations
        ],
        # A run that was stopped may have the model of an earlier, shorter one.
        "model": str(result.folder / "model") if finished else None,
    }
    sys.stdout.write(json.dumps(plain(summary)) + "\n" if as_json else describe(summary, line))
    return 0 if finished else next((code for name, code in SIGNAL_EXITS.items() if name in result.reason), 0)


def run_folder(cfg: Config) -> Path:
    """Where the run lies or will lie."""
    return Path(cfg.run.dir).expanduser() / (cfg.run.name or "run")


def stopped_at_once(folder: Path) -> str:
    """What is left of a run that was not allowed to save."""
    steps = [int(p.name.removeprefix("step-")) for p in folder.glob("checkpoints/step-*") if p.name[5:].isdigit()]
    if steps:
        return f"stopped at once; the last checkpoint is of step {max(steps)}: the same command with --resume goes on"
    if folder.exists():
        return "stopped at once, before the first checkpoint: the same command with --resume starts at step 1"
    return "stopped at once, before anything was written: run the same command again"


def describe(summary: Mapping[str, Any], line: Callable[[Mapping[str, Any]], str]) -> str:
    """The end of a run in a few lines."""
    lines = [f"{summary['status'].lower()} after step {summary['step']}: {summary['reason']}"]
    lines += [f"held out, after step {record['step']}: {line(record)}" for record in summary["evaluations"]]
    lines.append(f"run folder: {summary['run']}")
    lines.append(
        f"model: {summary['model']}"
        if summary["model"]
        else "no model yet: run the same command with --resume to go on"
    )
    return "\n".join(lines) + "\n"
