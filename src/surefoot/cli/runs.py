"""``surefoot runs list`` and ``runs compare``: read from run folders alone. Loads no torch."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from surefoot.cli.compare import comparison, render
from surefoot.cli.run_summary import Run, age, run_folders, summary_or_damage
from surefoot.cli.table import aligned, number
from surefoot.config.paths import shown
from surefoot.errors import RunFolderError
from surefoot.training.durable import plain


def list_runs(folder: Path, *, as_json: bool) -> int:
    """Print the runs in a folder. Returns the exit code.

    Raises:
        RunFolderError: there is no such folder.
    """
    logging.getLogger("surefoot").setLevel(logging.ERROR)  # what is damaged is named in the table
    with reading(folder):
        runs = [summary_or_damage(path) for path in run_folders(folder)]
    if as_json:
        sys.stdout.write(json.dumps(plain([asdict(run) for run in runs])) + "\n")
    elif runs:
        sys.stdout.write(_table(runs))
    else:
        sys.stderr.write(f"no runs in {folder}\n")
    return 0


def compare_runs(first: Path, second: Path, *, as_json: bool) -> int:
    """Print two runs side by side. Returns the exit code.

    Raises:
        RunFolderError: one of the two is no run folder, or too damaged to compare.
    """
    with reading(f"{first}, {second}"):
        found = comparison(first, second)
    sys.stdout.write(json.dumps(plain(found)) + "\n" if as_json else render(found))
    return 0


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Put the system's refusals into our words.

    Raises:
        RunFolderError: instead of an OSError, or of a home that nobody has.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunFolderError(
            f"the run folders cannot be read: {reason}", got=shown(str(what)), hint="check the path"
        ) from error


def _table(runs: Sequence[Run]) -> str:
    head = ("run", "status", "step", "score", "KL", "held-out", "age", "why it ended")
    rows = [
        (
            run.name,
            run.status,
            f"{run.step}/{run.steps if run.steps is not None else '?'}",
            number(run.score),
            number(run.kl),
            _change(run),
            age(run.active),
            run.reason,
        )
        for run in runs
    ]
    return aligned(head, rows, right=(2, 3, 4))


def _change(run: Run) -> str:
    if run.before is None:
        return "-"
    return str(run.before) if run.after is None else f"{run.before} -> {run.after}"
