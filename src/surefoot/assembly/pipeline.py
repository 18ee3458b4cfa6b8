"""``run_pipeline(...)``: stages one after the other, each in a process of its own; what is done already is left out.

Torch-free: a stage's process loads what it needs and gives its memory back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

from surefoot.assembly.pipeline_state import Record, State, difference, made_from, outputs_of, places_in
from surefoot.config import dump_config
from surefoot.config.pipeline import Pipeline, Stage
from surefoot.config.pipeline_kinds import RUNS
from surefoot.errors import ConfigError, RunError, RunFolderError
from surefoot.training.durable import write_file, writing
from surefoot.training.folder_lock import FolderLock, is_held
from surefoot.training.signals import ENDING

logger = logging.getLogger("surefoot")

LOCK_FILE: Final = ".pipeline.lock"
WAIT_S: Final = 120.0
"""How long a stage that an earlier pipeline left running may take to end."""
MAIN: Final = "from surefoot.cli.main import main; main()"
LAUNCHER: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:]) if os.getppid() != 1 else sys.exit(143)"
)
"""Asks for SIGTERM at the parent's death, which outlives exec, and becomes the command."""
PYTHON: Final = (sys.executable, "-P", "-c")
"""What lies in the folder where a stage runs must not stand in for modules of Python or Surefoot."""
ASKED_FOR: Final = "asked for"
Action = Literal["skip", "resume", "run"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Decision:
    """What becomes of a stage.

    Attributes:
        stage: its name.
        action: it is left out, goes on, or runs from its beginning.
        reason: why.
    """

    stage: str
    action: Action
    reason: str


class StageFailed(RunError):
    """A stage ended with an exit code that is not 0.

    Attributes:
        code: which.
    """

    def __init__(self, stage: str, code: int, *, hint: str) -> None:
        super().__init__(f"stage {stage} ended with exit code {code}", hint=hint)
        self.code = code


class Stopped(RunError):
    """A signal ended the pipeline.

    Attributes:
        code: exit code.
    """

    def __init__(self, name: signal.Signals, stage: str) -> None:
        super().__init__(f"stopped by {name.name} in stage {stage}; the same command goes on from there")
        self.code = 128 + name


def decide(pipeline: Pipeline, state: State, *, start: str | None = None) -> Iterator[tuple[Stage, Decision]]:
    """What is to be done about each stage, as things stand when it is asked for.

    Args:
        pipeline: what is run.
        state: what is known.
        start: this stage is run anew, whatever is known.
    """
    changed: set[str] = set()
    for stage in pipeline.stages:
        decision = _decide(stage, state, changed, pipeline.file.parent, anew=stage.name == start)
        if decision.action != "skip":
            changed.add(stage.name)
        yield stage, decision


def _decide(stage: Stage, state: State, changed: set[str], base: Path, *, anew: bool) -> Decision:
    record = state.records.get(stage.name)
    # What was begun because it was asked for, and was killed, is asked for by the same command once more.
    if anew and (record is None or (record.status, record.reason) != ("running", ASKED_FOR)):
        return Decision(stage.name, "run", ASKED_FOR)
    if record is None:
        return Decision(stage.name, "run", "it has not been run")
    try:
        now = made_from(stage, state.digests, base)
    except ConfigError:
        if not stage.takes & changed:
            raise
        return Decision(stage.name, "run", f"{', '.join(sorted(stage.takes & changed))} runs before it")
    reason = difference(record.made_from, now)
    if reason is not None:
        return Decision(stage.name, "run", reason)
    if record.status != "finished" and stage.entry.kind == "sample" and os.path.lexists(stage.folder):
        return Decision(stage.name, "run", "it was not finished")  # it takes a moment, and writes over nothing
    if record.status != "finished":
        return Decision(stage.name, "resume", "it was not finished")
    for name, digest in record.outputs.items():
        found = state.digests.of(stage.folder / name)
        if found != digest:
            return Decision(stage.name, "run", f"its output {name} is {'gone' if found is None else 'another one now'}")
    return Decision(stage.name, "skip", "nothing changed")


def check_inputs(pipeline: Pipeline) -> None:
    """Every input that no stage makes must be there before the first stage runs.

    Raises:
        ConfigError: naming stage and key.
    """
    made = [stage.folder for stage in pipeline.stages]
    for stage in pipeline.stages:
        for key, place, kind in places_in(stage):
            path = Path(place)
            checked = path.is_absolute() or stage.entry.kind == "command"
            if kind != "module" and checked and not path.exists() and not any(map(path.is_relative_to, made)):
                raise ConfigError(f"stage {stage.name}: {key} is not there", got=place, hint="correct the path")
        for folder in sorted(stage.borrows):
            _check_borrowed(stage.name, folder, pipeline.folder.parent)


def _check_borrowed(name: str, folder: Path, runs: Path) -> None:
    """What another pipeline made counts only where it has been finished."""
    other, *stages = folder.relative_to(runs).parts
    state = State(runs / other, other)
    unfinished = state.unfinished(stages)
    if unfinished or not state.records:
        raise ConfigError(
            f"stage {name} takes what another pipeline has not finished",
            got=", ".join(f"{other}/{one}" for one in unfinished) or str(runs / other),
            hint=f"run the pipeline {other} to its end first",
        )


def run_pipeline(pipeline: Pipeline, *, start: str | None = None, say: Say = lambda text: None) -> list[Decision]:
    """Run what has to be run.

    Args:
        pipeline: from :func:`surefoot.config.pipeline.load_pipeline`.
        start: this stage is run anew, whatever is known.
        say: told a line for each stage.
    Returns:
        what was done about each stage.
    Raises:
        StageFailed: a stage ended with another exit code than 0; those after it were not run.
        Stopped: a signal ended it.
        ConfigError, RunFolderError: something is to be put right; or another process runs this pipeline.
    """
    with writing(pipeline.folder):
        pipeline.folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock.take(pipeline.folder / LOCK_FILE)
    try:
        state = State(pipeline.folder, pipeline.name)
        check_inputs(pipeline)
        state.begin([stage.name for stage in pipeline.stages])
        done = []
        count = len(pipeline.stages)
        for number, (stage, decision) in enumerate(decide(pipeline, state, start=start), start=1):
            word = {"skip": "left out", "resume": "goes on", "run": "runs"}[decision.action]
            say(f"[{number}/{count}] {stage.name} ({stage.entry.kind}) {word}: {decision.reason}")
            if decision.action != "skip":
                _run(stage, decision, state, pipeline.file.parent)
            done.append(decision)
        return done
    finally:
        lock.release()


def _run(stage: Stage, decision: Decision, state: State, base: Path) -> None:
    _wait_for_other(stage)
    before = state.records.get(stage.name)
    if decision.action == "run":
        before = None
        _set_aside(stage.folder)
    spent = before.seconds if before is not None else 0.0
    reason = before.reason if before is not None else decision.reason
    record = Record("running", made_from(stage, state.digests, base), {}, reason, spent)
    state.put(stage.name, record)
    begun = time.monotonic()
    code, received = _process(_command(stage), base, {"SUREFOOT_STAGE_DIR": str(stage.folder)})
    spent += time.monotonic() - begun
    if code != 0 and received is not None:
        state.put(stage.name, Record("running", record.made_from, {}, reason, spent))
        raise Stopped(received, stage.name)
    if code != 0:
        failed = stage.entry.kind == "eval-reward-model" and code == 1
        state.put(stage.name, Record("failed" if failed else "running", record.made_from, {}, reason, spent))
        raise StageFailed(stage.name, code, hint=_after_failure(stage, code))
    state.put(
        stage.name,
        Record("finished", record.made_from, outputs_of(stage, state.digests), reason, spent),
    )
    if received is not None:  # it came to its end all the same
        raise Stopped(received, stage.name)


def _after_failure(stage: Stage, code: int) -> str:
    if stage.entry.kind == "eval-reward-model" and code == 1:
        return f"the reward model did not pass: see {stage.folder / 'report.json'}"
    return "put right what it said, then run the same command: finished stages are left out, this one goes on"


def _command(stage: Stage) -> list[str]:
    """The process of a stage; its config is written into the pipeline's folder."""
    entry, python = stage.entry, [*PYTHON, MAIN]
    if entry.kind == "command":
        stage.folder.mkdir(parents=True, exist_ok=True)
        return [sys.executable if entry.run[0] == "python" else entry.run[0], *entry.run[1:]]
    if stage.config is None:
        arguments = ["--pairs", str(entry.pairs), "--out", str(stage.folder)]
        return [*python, "eval", "reward-model", str(entry.model), *arguments, *entry.settings]
    file = stage.folder.with_name(f"{stage.name}.yaml")
    with writing(file):
        write_file(file, dump_config(stage.config).encode())
    # A run folder without a whole checkpoint starts at step 1, so this is right after any kill.
    more = ["--resume"] if entry.kind in RUNS and stage.folder.exists() else []
    return [*python, entry.kind, str(file), *more]


def _set_aside(folder: Path) -> None:
    """What an earlier run left is renamed, never removed."""
    if not os.path.lexists(folder):
        return
    number = 1
    while os.path.lexists(aside := folder.with_name(f"{folder.name}.before-{number}")):
        number += 1
    with writing(folder):
        folder.rename(aside)
    logger.info("what was in %s is in %s now", folder, aside.name)


def _wait_for_other(stage: Stage) -> None:
    """A stage whose pipeline was killed may still be saving its checkpoint."""
    lock = stage.folder / ".lock"
    end = time.monotonic() + WAIT_S
    said = False
    while is_held(lock):
        if time.monotonic() > end:
            raise RunFolderError(
                f"stage {stage.name} is still being run by another process", got=str(stage.folder), hint="end it first"
            )
        if not said:
            logger.info("stage %s is still being ended by an earlier process: waiting", stage.name)
            said = True
        time.sleep(0.2)


def _process(command: Sequence[str], folder: Path, more: Mapping[str, str]) -> tuple[int, signal.Signals | None]:
    """Run a process to its end; signals that end programs are handed on to it and what it has started.

    Returns:
        its exit code, and the first signal that was handed on.
    """
    environment = {**os.environ, **more}
    if shutil.which(command[0]) is None:
        raise ConfigError("a stage's command cannot be started: there is no such program", got=command[0])
    try:
        process = subprocess.Popen(
            [*_launcher(), *command],
            cwd=folder,
            env=environment,
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),  # what the pipeline itself says is data, what stages say is its log
        )
    except OSError as error:
        raise ConfigError("a stage's command cannot be started", got=f"{command[0]} ({error.strerror})") from None
    with _handing_on(process) as received:
        code = process.wait()
    return 128 - code if code < 0 else code, received[0] if received else None


@contextmanager
def _handing_on(process: subprocess.Popen[bytes]) -> Iterator[list[signal.Signals]]:
    received: list[signal.Signals] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    # What is ignored stays ignored, as the hang-up under nohup.
    wanted = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, hand_on) for number in wanted}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _launcher() -> list[str]:
    """On Linux a stage whose pipeline is killed gets SIGTERM: it saves its checkpoint and ends."""
    return [*PYTHON, LAUNCHER] if sys.platform == "linux" else []
