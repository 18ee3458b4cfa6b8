"""One writer a run folder: a lock that the operating system lets go when its holder dies. Torch-free."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RunFolderError
from surefoot.training.durable import json_bytes

logger = logging.getLogger("surefoot")

_TRIES: Final = 15
_PAUSE_S: Final = 0.02
_UNSUPPORTED: Final = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)
_BUSY: Final = (errno.EAGAIN, errno.EACCES)


class FolderLock:
    """The lock of one folder, held from :meth:`take` to :meth:`release`, or to the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(descriptor)

    @classmethod
    def take(cls, path: Path) -> FolderLock:
        """Take the lock whose file is ``path``.

        Raises:
            RunFolderError: another process, or another part of this one, holds it.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _lock(descriptor):
                raise RunFolderError(
                    f"the run folder {path.parent} is in use by {_holder(path)}",
                    hint="wait for that run to end, or end it, or choose another run.name",
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json_bytes({"pid": os.getpid(), "host": socket.gethostname()}), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock; True as well where the file system cannot tell."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (*_BUSY, *_UNSUPPORTED):
            return True
        raise
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                logger.warning("this file system has no locks: see to it that no two runs write in one folder")
                return True
            if error.errno not in _BUSY:
                raise
        if attempt < _TRIES - 1:
            time.sleep(_PAUSE_S)  # is_held() of a reader takes the lock for a moment
    return False


def _holder(path: Path) -> str:
    try:
        told: Any = json.loads(path.read_bytes())
        return f"process {told['pid']} on {told['host']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


def _let_go_in_child() -> None:
    # A fork shares the lock: a reward's worker that outlives a killed run would keep the folder locked.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


_held: Final[set[int]] = set()
os.register_at_fork(after_in_child=_let_go_in_child)
