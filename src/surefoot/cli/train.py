"""``surefoot train``."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.cli.interrupts import Stopped
from surefoot.config import Config, ineffective, load_config, require
from surefoot.data.formats import raw_rows
from surefoot.training.run_folder import in_the_way

logger = logging.getLogger("surefoot")

SIGNAL_EXITS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def run_train(config: Path, overrides: Sequence[str], *, resume: bool, as_json: bool) -> int:
    """Train; prints where everything lies. Returns the exit code.

    Raises:
        Stopped: by Ctrl-C, without a checkpoint of the last step.
    """
    cfg = load_config(config, overrides)
    require(cfg, "train")
    refuse_early(cfg, resume=resume)
    for sentence in ineffective(cfg):
        logger.warning("%s", sentence)
    try:
        # Importing torch and transformers takes seconds; a mistake in the config has been found by now.
        from surefoot.assembly.train import train

        result = train(cfg, resume=resume)
    except KeyboardInterrupt:
        raise Stopped(stopped_at_once(run_folder(cfg))) from None
    summary = {
        "run": str(result.folder),
        "status": str(result.status),
        "reason": result.reason,
        "step": result.step,
        "evaluations": [
            {key: value for key, value in record.items() if key != "settings"} for record in result.evaluations
        ],
        # A run that was stopped may have the model of an earlier, shorter one.
        "model": str(result.folder / "model") if str(result.status) == "FINISHED" else None,
    }
    sys.stdout.write(json.dumps(summary) + "\n" if as_json else describe(summary))
    return next((code for name, code in SIGNAL_EXITS.items() if name in result.reason and summary["model"] is None), 0)


def refuse_early(cfg: Config, *, resume: bool) -> None:
    """What can be found without torch: a run folder in the way, prompt files that do not exist.

    Raises:
        RunFolderError, DataError: saying which.
    """
    folder = run_folder(cfg)
    if not resume and os.path.lexists(folder):
        raise in_the_way(folder)
    for source in (cfg.data.prompts, cfg.evaluate.prompts):
        if source is not None:
            raw_rows(source)


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


def describe(summary: Mapping[str, Any]) -> str:
    """The end of a run in a few lines."""
    lines = [f"{summary['status'].lower()} after step {summary['step']}: {summary['reason']}"]
    for record in summary["evaluations"]:
        mean, low, high = (record[f"evaluate/score_{name}"] for name in ("mean", "low", "high"))
        interval = "" if low is None else f", 95 % interval {low:.4f} to {high:.4f}"
        if mean is not None:
            lines.append(f"held-out score after step {record['step']}: {mean:.4f}{interval}")
    lines.append(f"run folder: {summary['run']}")
    if summary["model"]:
        lines.append(f"model: {summary['model']}")
    else:
        lines.append("no model yet: run the same command with --resume to go on")
    return "\n".join(lines) + "\n"
