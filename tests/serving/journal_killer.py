"""Uses a journal in child processes and really kills them before each call to the system; prints what was left as JSON.

Run as a script, so that the children fork from a process that has imported nothing heavy.

    journal_killer.py FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surefoot.serving.journal import Journal

CALLS = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir", "ftruncate")


def kill_before_call(number: int) -> None:
    """Kill this process just before its ``number``-th call to the system from now on."""
    count = 0

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, call)

    for name in CALLS:
        counted(name)


def in_child(work: Callable[[], None]) -> bool:
    """Run ``work`` in a fork; whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(f"child failed: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed")
    return os.WIFEXITED(status)


def filled(folder: Path) -> Journal:
    """Three steps with their results."""
    shutil.rmtree(folder, ignore_errors=True)
    journal = Journal(folder)
    for step in (1, 2, 3):
        journal.write(step, f"request {step}".encode())
        journal.write_result(step, {"step": step})
    return journal


def kill_at_points(folder: Path, work: Callable[[Journal], None]) -> list[dict[str, Any]]:
    """What each kill left: steps, results and hidden files; the last entry is of a child that nobody killed."""
    seen = []
    for number in range(1, 1000):
        journal = filled(folder)

        def child(journal: Journal = journal, number: int = number) -> None:
            kill_before_call(number)
            work(journal)

        finished = in_child(child)
        hidden = sum(path.name.startswith(".") for path in folder.iterdir())
        journal.clean()
        left = sum(path.name.startswith(".") for path in folder.iterdir())
        bodies = {step: journal.read(step).decode() for step in journal.steps()}
        results = {step: journal.result(step) for step in range(1, 6)}
        seen.append({"bodies": bodies, "results": results, "hidden": hidden, "left": left})
        if finished:
            return seen
    raise SystemExit("it never ended")


if __name__ == "__main__":
    works: dict[str, Callable[[Journal], None]] = {
        "write": lambda journal: journal.write(4, b"request 4"),
        "result": lambda journal: journal.write_result(3, {"step": 3, "again": True}),
        "drop_after": lambda journal: journal.drop_after(1),
        "drop_through": lambda journal: journal.drop_through(2),
    }
    print(json.dumps({name: kill_at_points(Path(sys.argv[1]) / name, work) for name, work in works.items()}))
