"""The run folder: where everything of a run lies, who may write there, and how the run ended. Torch-free.

::

    runs/NAME/
      config.yaml  lineage.json  experiment.yaml  status.json  .lock
      metrics.jsonl  findings.jsonl  samples/step-N.jsonl  evaluations/step-N.jsonl
      tensorboard/  checkpoints/step-N/  model/

Reading needs no lock and no process that wrote; writing needs the lock, which :meth:`RunFolder.create` takes.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from surefoot.errors import RunFolderError
from surefoot.records import Finding, StepReport, plain_number
from surefoot.training.durable import (
    append_line,
    files_in,
    json_bytes,
    keep_lines,
    publish_folder,
    read_records,
    remove,
    sync_file,
    sync_folder,
    temporary_sibling,
    write_file,
    writing,
)
from surefoot.training.folder_lock import FolderLock, is_held
from surefoot.training.resume_config import Changes, check_resumed_config
from surefoot.training.run_status import RunState, RunStatus, now, read_state, write_state

logger = logging.getLogger("surefoot")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SAMPLES: Final = re.compile(r"step-(\d+)\.jsonl")
_LEFTOVER: Final = re.compile(r"\.(.+)\.(tmp|replaced)-\d+-[0-9a-f]+")
_NO_WORD: Final = "the process ended without a word: killed, or the machine went down"


def in_the_way(folder: Path) -> RunFolderError:
    """The error for a run folder that exists when a new run is to begin."""
    return RunFolderError(
        f"the run folder {folder} exists",
        hint="add --resume to go on with that run, or choose another run.name, or remove the folder",
    )


class RunFolder:
    """A run folder. Made by ``RunFolder(path)`` it is a view; :meth:`create` gives the one that may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.lineage = path / "lineage.json"
        self.experiment = path / "experiment.yaml"
        self.metrics = path / "metrics.jsonl"
        self.findings = path / "findings.jsonl"
        self.samples = path / "samples"
        self.evaluations = path / "evaluations"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.tensorboard = path / "tensorboard"
        self.status = path / "status.json"
        self.lock_file = path / ".lock"
        self.resumed = False
        self.changed: Changes = {}
        self._lock: FolderLock | None = None
        self._pending_config: str | None = None
        self._state = RunState(RunStatus.RUNNING)
        # Until a run has begun here, what stands in status.json is another process's word.
        self._begun = False
        self._not_finite: set[str] = set()

    @classmethod
    def create(cls, dir: str | os.PathLike[str], name: str, *, resume: bool, config_text: str) -> RunFolder:
        """Make the folder of a new run, or take up that of an earlier one; either way hold its lock.

        Call it once everything else has been validated. A resumed folder is not written to before :meth:`begin`.

        Args:
            dir: the folder that holds run folders; made when missing.
            name: the run's name.
            resume: go on in an existing folder. Without one, the run starts afresh.
            config_text: the complete config as YAML.
        Raises:
            RunFolderError: the folder exists and ``resume`` is off, is in use, is no run folder, cannot be made, or was
                made by a config that differs in a key that must not change. Nothing has been written then.
        """
        if not _NAME.fullmatch(name):
            raise RunFolderError("a run's name must be a plain file name", got=name, allowed=_NAME.pattern)
        folder = cls(Path(dir).expanduser() / name)
        try:
            if os.path.lexists(folder.path):
                folder._take_up(resume, config_text)
            else:
                folder._make(config_text)
        except OSError as error:
            folder.close()
            raise RunFolderError(
                f"the run folder {folder.path} cannot be used: {error.strerror or error}",
                hint="choose a run.dir that exists or can be made, is writable and has room",
            ) from error
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A run folder for reading.

        Raises:
            RunFolderError: it is none.
        """
        folder = cls(Path(path).expanduser())
        if not folder.config.is_file():
            raise RunFolderError(
                "this is not a run folder: it has no config.yaml", got=str(path), hint="name a folder like runs/NAME"
            )
        return folder

    def _make(self, config_text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.mkdir()  # of two runs that start at once, one gets it
        except FileExistsError:
            raise in_the_way(self.path) from None
        self._lock = FolderLock.take(self.lock_file)
        try:
            self._start(config_text)
        except BaseException:
            remove(self.path)
            raise

    def _start(self, config_text: str) -> None:
        write_file(self.config, config_text.encode())
        self._state, self._begun = RunState.running(), True
        write_state(self.status, self._state)
        sync_folder(self.path.parent)

    def _take_up(self, resume: bool, config_text: str) -> None:
        if not self.path.is_dir():
            raise RunFolderError("there is a file where the run folder should be", got=str(self.path))
        if not resume:
            raise in_the_way(self.path)
        if self.config.exists():
            check_resumed_config(self._config_text(), config_text)
        else:
            self._refuse_strangers()
        self._lock = FolderLock.take(self.lock_file)
        if not self.config.exists():  # the process that made the folder was killed at once
            self._start(config_text)
            return
        # Again under the lock: another process may have resumed the run, and ended, in between.
        self.changed = check_resumed_config(self._config_text(), config_text)
        self.resumed = True
        self._pending_config = config_text

    def _config_text(self) -> str:
        try:
            return self.config.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RunFolderError(
                "the run's config.yaml cannot be read", got=f"{self.config} ({error})", hint="restore it from a copy"
            ) from error

    def _refuse_strangers(self) -> None:
        strangers = [p.name for p in self.path.iterdir() if p != self.lock_file and not _LEFTOVER.fullmatch(p.name)]
        if strangers:
            raise RunFolderError(
                f"{self.path} is not a run folder: it has no config.yaml",
                got=", ".join(sorted(strangers)[:5]),
                hint="choose another run.name or run.dir",
            )

    def begin(self, step: int, *, warnings: Sequence[str] = ()) -> list[int]:
        """Set a resumed run back to ``step`` and write down that it goes on from there. Does nothing in a new run.

        Args:
            step: the step of the checkpoint that was loaded; 0 to start at step 1.
            warnings: what the resume could not promise, for the record.
        Returns:
            the steps up to ``step`` that have no line in ``metrics.jsonl``.
        Raises:
            RunFolderError: a record that must be kept is damaged. RunError: the folder could not be written to.
        """
        self._must_hold_lock()
        if self._pending_config is None:
            return []
        with writing(self.path):
            missing = self._go_on(step, self._pending_config, warnings)
        self._pending_config = None
        return missing

    def _go_on(self, step: int, config_text: str, warnings: Sequence[str]) -> list[int]:
        self._clear_leftovers()
        before = read_state(self.status)
        if before.status is RunStatus.RUNNING:  # its lock was free: nobody is at it
            before = before.ended_by(RunStatus.KILLED, _NO_WORD, before.step)
        missing = self.truncate_metrics(step)
        entry = {
            "step": step,
            "at": now(),
            "status": str(before.status),
            "reason": before.reason,
            "changed": {key: list(values) for key, values in self.changed.items()},
            "warnings": list(warnings),
        }
        self._state, self._begun = RunState.running(step, (*before.resumes, entry)), True
        write_state(self.status, self._state)
        # Last, so that a kill in between leaves the change to be found, and noted, by the next resume.
        write_file(self.config, config_text.encode())
        return missing

    def _step_files(self) -> list[Path]:
        folders = (self.samples, self.evaluations)
        return [path for folder in folders if folder.is_dir() for path in folder.iterdir()]

    def _clear_leftovers(self) -> None:
        for path in (*self.path.iterdir(), *self._step_files()):
            match = _LEFTOVER.fullmatch(path.name)
            if match and match[2] == "replaced" and not path.with_name(match[1]).exists():
                path.rename(path.with_name(match[1]))
            elif match:
                remove(path)

    def truncate_metrics(self, step: int) -> list[int]:
        """Remove what was recorded after ``step``: lines of metrics and findings, files of samples and evaluations.

        Torn last lines go as well.

        Returns:
            the steps from 1 to ``step`` that have no line in ``metrics.jsonl``.
        Raises:
            RunFolderError: a line that must be kept is damaged.
        """
        self._must_hold_lock()
        kept = keep_lines(self.metrics, lambda record: _step_of(record) <= step)
        keep_lines(self.findings, lambda record: _step_of(record) <= step)
        for path in self._step_files():
            match = _SAMPLES.fullmatch(path.name)
            if match and int(match[1]) > step:
                path.unlink()
        missing = sorted(set(range(1, step + 1)) - {_step_of(record) for record in kept})
        if missing:
            logger.warning(
                "%s has no line for %d step(s) before %d: %s", self.metrics, len(missing), step, missing[:10]
            )
        return missing

    def append_metrics(self, report: StepReport, *, sync: bool = False) -> None:
        """Add a step's line to ``metrics.jsonl``, whole or not at all.

        Args:
            report: the step; what is not finite becomes null.
            sync: wait until it is on the disk.
        Raises:
            RunError: it could not be written.
        """
        new = {k for k, v in report.metrics.items() if v is not None and plain_number(v) is None} - self._not_finite
        if new:
            self._not_finite |= new
            logger.warning("step %d: not finite, written as null from now on: %s", report.step, ", ".join(sorted(new)))
        self._append(self.metrics, report.as_json(), sync=sync)
        self._state = self._state.at(report.step)

    def append_finding(self, finding: Finding, *, sync: bool = False) -> None:
        """Add a line to ``findings.jsonl``; raises as :meth:`append_metrics` does."""
        self._append(self.findings, asdict(finding), sync=sync)

    def _append(self, path: Path, record: Mapping[str, Any], *, sync: bool) -> None:
        self._must_hold_lock()
        assert self._pending_config is None, "begin() must come before the first record of a resumed run"
        with writing(path):
            append_line(path, json_bytes(record), sync=sync)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every whole line of ``metrics.jsonl``; one still being written is left out.

        Raises:
            RunFolderError: a line is damaged.
        """
        return read_records(self.metrics)

    def read_findings(self) -> list[dict[str, Any]]:
        """Every whole line of ``findings.jsonl``, as :meth:`read_metrics`."""
        return read_records(self.findings)

    def samples_file(self, step: int) -> Path:
        """Where the rollout record of a step lies."""
        return self.samples / f"step-{step}.jsonl"

    def sync(self) -> None:
        """Force all records onto the disk; to be called before a checkpoint, which counts on the lines up to it."""
        for path in (self.metrics, self.findings):
            if path.exists():
                sync_file(path)
        sync_folder(self.path)

    def publish_model(self, write: Callable[[Path], None]) -> Path:
        """Write ``model/`` aside and put it in place whole.

        Args:
            write: writes all files into the folder it is given.
        Raises:
            RunError: it could not be written; an earlier ``model/`` is untouched.
        """
        self._must_hold_lock()
        staged = temporary_sibling(self.model)
        try:
            with writing(self.model):
                staged.mkdir()
                write(staged)
                for path in files_in(staged):
                    sync_file(path)
                publish_folder(staged, self.model)
        except BaseException:
            remove(staged)
            raise
        return self.model

    def finish(self, status: RunStatus | str, reason: str, *, step: int | None = None) -> None:
        """Write down how the run ended. Never raises for the disk: it must not hide the error that ended the run.

        Args:
            status: FINISHED, FAILED or KILLED.
            reason: why, one line.
            step: the last step; None: the last one with a line in ``metrics.jsonl``.
        """
        self._must_hold_lock()
        last = self._state.step if step is None else step
        self._state = self._state.ended_by(RunStatus(status), reason, last, at=now())
        try:
            write_state(self.status, self._state)
        except OSError as error:
            logger.warning("could not write %s: %s", self.status, error)

    def last_status(self) -> RunState | None:
        """How the run stands, or stood when it ended; None when there is no telling.

        A run that says RUNNING and whose lock is free was killed without a chance to say so.
        """
        if not self.status.exists():
            return None
        state = read_state(self.status)
        if state.status is RunStatus.RUNNING and not is_held(self.lock_file):
            steps = [_step_of(line) for line in read_records(self.metrics)]
            return state.ended_by(RunStatus.KILLED, _NO_WORD, max(steps, default=state.step))
        return state

    def _must_hold_lock(self) -> None:
        assert self._lock is not None, "only a folder from RunFolder.create() may be written to, until it is closed"

    def close(self) -> None:
        """Let go of the lock; nothing may be written afterwards."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write down the end, unless :meth:`finish` has, and let go of the lock."""
        if self._lock is not None and self._begun and self._state.ended is None:
            if error is None:
                self.finish(RunStatus.FINISHED, "done")
            elif isinstance(error, (KeyboardInterrupt, SystemExit)):
                self.finish(RunStatus.KILLED, type(error).__name__)
            else:
                self.finish(RunStatus.FAILED, f"{type(error).__name__}: {error}")
        self.close()


def _step_of(record: Mapping[str, Any]) -> int:
    """0 for what was recorded before the run."""
    step = record.get("step")
    return step if isinstance(step, int) else 0
