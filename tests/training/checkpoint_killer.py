"""Saves checkpoints in child processes and really kills them; prints what was found afterwards as JSON.

Run as a script, so that the children fork from a process that has imported nothing heavy.

    checkpoint_killer.py points FOLDER    a kill before every call to the system that a save makes
    checkpoint_killer.py moments FOLDER   kills at random moments while saving in a loop
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surefoot.training.checkpoint import CheckpointStore, verify

CALLS = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir", "ftruncate")


def writer(content: str, size: int = 4000) -> Callable[[Path], None]:
    """Writes two files, one of them in a subfolder, in pieces, all made of ``content``."""

    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        for name in ("policy/weights.bin", "state.json"):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
            for _ in range(4):
                os.write(descriptor, content.encode() * (size // 4 // len(content)))
            os.close(descriptor)

    return write


def content_of(path: Path) -> set[str]:
    """The distinct contents of a checkpoint's files: one, when it is of one piece."""
    return {
        part for name in ("policy/weights.bin", "state.json") for part in (path / name).read_text().split(";") if part
    }


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


def kill_at_points(folder: Path, *, step: int) -> dict[str, Any]:
    """Save ``step`` over a store that holds step 1 only and keeps one, killed at each point in turn."""
    seen: list[str] = []
    problems: list[str] = []
    for number in range(1, 1000):
        shutil.rmtree(folder, ignore_errors=True)
        store = CheckpointStore(folder, keep=1)
        store.save(1, writer("old;"), meta={})

        def save(store: CheckpointStore = store, number: int = number) -> None:
            kill_before_call(number)
            store.save(step, writer("new;"), meta={})

        finished = in_child(save)
        for cleaned in (False, True):
            found = store.latest()
            if found is None:
                problems.append(f"killed at {number}: nothing whole, cleaned: {cleaned}")
                break
            contents = content_of(found.path)
            if contents not in ({"old"}, {"new"}) or (found.step, contents) == (2, {"old"}):
                problems.append(f"killed at {number}: step {found.step} holds {contents}")
            store.clean()
        else:
            seen.append(f"{found.step}{contents.pop()}")
            hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
            if hidden or verify(folder / f"step-{found.step}"):
                problems.append(f"killed at {number}: left over {hidden}")
            store.save(step, writer("again;"), meta={})
            again = store.latest()
            if again is None or content_of(again.path) != {"again"} or again.step != step:
                problems.append(f"killed at {number}: the next save is not the latest")
        if finished:
            break
    return {"points": number - 1, "seen": seen, "problems": problems}


def kill_at_moments(folder: Path, *, kills: int) -> dict[str, Any]:
    """Save in a loop, kill at a random moment, go on from the latest; each time what was promised must be there."""
    dice, problems, steps = random.Random(0), [], []
    store = CheckpointStore(folder, keep=1)
    for number in range(kills):
        before = store.latest()
        promised = before.step if before else 0
        reader, sender = os.pipe()
        pid = os.fork()
        if pid == 0:
            step = promised
            while True:
                step += 1
                store.save(step, writer(f"{step};", size=400_000), meta={"step": step})
                os.write(sender, b".")
        time.sleep(dice.uniform(0.01, 0.08) if number else 0.3)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(sender)
        promised += len(os.read(reader, 65536))
        os.close(reader)
        found = store.latest()
        if found is None or found.step not in (promised, promised + 1):
            problems.append(f"{promised} was saved, found {found}")
            continue
        if content_of(found.path) != {str(found.step)} or found.meta != {"step": found.step}:
            problems.append(f"step {found.step} is not what was saved")
        steps.append(found.step)
        if dice.random() < 0.5:
            store.clean()
    store.clean()
    left = sorted(path.name for path in folder.iterdir())
    if len(left) > 2 or any(name.startswith(".") for name in left):
        problems.append(f"left over: {left}")
    return {"steps": steps, "problems": problems}


if __name__ == "__main__":
    mode, place = sys.argv[1], Path(sys.argv[2])
    if mode == "points":
        print(json.dumps({str(step): kill_at_points(place / str(step), step=step) for step in (1, 2)}))
    else:
        print(json.dumps(kill_at_moments(place, kills=int(sys.argv[3]))))
