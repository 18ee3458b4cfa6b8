"""What ``surefoot sft`` and ``surefoot reward-model`` have in common: refusals, the end in words, rows to look at."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from surefoot.cli.train import SIGNAL_EXITS, run_folder, stopped_at_once
from surefoot.config import Config
from surefoot.data.formats import raw_rows
from surefoot.errors import ConfigError
from surefoot.training.durable import plain
from surefoot.training.run_folder import in_the_way

if TYPE_CHECKING:
    from surefoot.assembly.shown import Shown
    from surefoot.training.trainer import RunResult

logger = logging.getLogger("surefoot")


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
    """Run a stage and print where everything lies. Returns the exit code.

    Args:
        run: the stage.
        cfg: its config.
        line: from a record of ``evaluations.jsonl`` to a line for people.
        as_json: print JSON.
    """
    try:
        result = run()
    except KeyboardInterrupt:
        sys.stderr.write(stopped_at_once(run_folder(cfg)))
        return SIGNAL_EXITS["SIGINT"]
    finished = str(result.status) == "FINISHED"
    summary = {
        "run": str(result.folder),
        "status": str(result.status),
        "reason": result.reason,
        "step": result.step,
        "evaluations": list(result.evaluations),
        "model": str(result.folder / "model") if finished else None,
    }
    sys.stdout.write(json.dumps(plain(summary)) + "\n" if as_json else describe(summary, line))
    return 0 if finished else next((code for name, code in SIGNAL_EXITS.items() if name in result.reason), 0)


def describe(summary: Mapping[str, Any], line: Callable[[Mapping[str, Any]], str]) -> str:
    """The end of a stage in a few lines."""
    lines = [f"{summary['status'].lower()} after step {summary['step']}: {summary['reason']}"]
    lines += [f"held out, after step {record['step']}: {line(record)}" for record in summary["evaluations"]]
    lines.append(f"run folder: {summary['run']}")
    lines.append(
        f"model: {summary['model']}"
        if summary["model"]
        else "no model yet: run the same command with --resume to go on"
    )
    return "\n".join(lines) + "\n"


def check_count(show: int) -> None:
    """Refuse to show fewer rows than one.

    Raises:
        ConfigError: saying so.
    """
    if show < 1:
        raise ConfigError("--show takes a number of rows", got=show, allowed="at least 1", hint="--show 3")


def print_rows(rows: Sequence[Shown], *, as_json: bool) -> int:
    """Rows in parts, one a line, line breaks written out. Returns the exit code."""
    if as_json:
        sys.stdout.write(json.dumps(plain([asdict(row) for row in rows])) + "\n")
        return 0
    for row in rows:
        total = sum(part.tokens for part in row.parts)
        sys.stdout.write(f"{row.id}  {total} tokens\n")
        for part in row.parts:
            sys.stdout.write(f"  {part.role:<8} {part.tokens:>5}  {json.dumps(part.text, ensure_ascii=False)}\n")
    return 0


def warn_of_idle(cfg: Config) -> None:
    """Settings of PPO that a stage does not look at, where a user may expect it to."""
    idle = {
        "run.steps": cfg.run.steps is not None,
        "stop.kl_budget": cfg.stop.kl_budget is not None,
        "stop.score": cfg.stop.score is not None,
    }
    for key, given in idle.items():
        if given:
            logger.info("%s is PPO's and has no effect here", key)
