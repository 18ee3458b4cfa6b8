"""How a run stands or ended: ``status.json``. Torch-free."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from surefoot.training.durable import json_bytes, overwrite_in_place, parse_json, write_file

logger = logging.getLogger("surefoot")


class RunStatus(StrEnum):
    """How a run stands."""

    RUNNING = "RUNNING"
    """A process is at it."""
    FINISHED = "FINISHED"
    """It ended by itself, for the stated reason."""
    FAILED = "FAILED"
    """It ended with an error."""
    KILLED = "KILLED"
    """It was ended from outside: Ctrl-C, a signal, a machine that went down."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What ``status.json`` holds.

    Attributes:
        status: how the run stands.
        reason: why it ended; None while it runs.
        step: the last step with a line in ``metrics.jsonl``.
        started, ended: UTC, ISO 8601; ``started`` is that of the process that wrote last.
        pid, host: the process that wrote last.
        resumes: for each resume the ``step`` it went on from, ``at``, the ``status`` and ``reason`` before, the keys
            ``changed`` in the config (``[stored, new]``) and the ``warnings`` given.
    """

    status: RunStatus
    reason: str | None = None
    step: int = 0
    started: str | None = None
    ended: str | None = None
    pid: int | None = None
    host: str | None = None
    resumes: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    @classmethod
    def running(cls, step: int = 0, resumes: Sequence[Mapping[str, Any]] = ()) -> RunState:
        """This process is at it, from now on."""
        return cls(
            RunStatus.RUNNING,
            step=step,
            started=now(),
            pid=os.getpid(),
            host=socket.gethostname(),
            resumes=tuple(resumes),
        )

    def at(self, step: int) -> RunState:
        """The same, after another step."""
        return replace(self, step=step)

    def ended_by(self, status: RunStatus, reason: str, step: int, *, at: str | None = None) -> RunState:
        """The same, ended; ``at`` is None where nobody saw it."""
        return replace(self, status=status, reason=reason, step=step, ended=at)


def read_state(path: Path) -> RunState:
    """What the file holds; KILLED, with the reason, where it cannot be read."""
    try:
        stored = parse_json(path.read_bytes())
        return RunState(**{**stored, "status": RunStatus(stored["status"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("%s cannot be read: %s", path, error)
        return RunState(RunStatus.KILLED, reason=f"{path.name} cannot be read")


def write_state(path: Path, state: RunState) -> None:
    """Write the file whole; on a full disk in the room it has, which is better than a run that seems to go on.

    Raises:
        OSError: neither could be done.
    """
    data = json_bytes(asdict(state), indent=1)
    try:
        write_file(path, data)
    except OSError:
        if not path.exists():
            raise
        overwrite_in_place(path, data)


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
