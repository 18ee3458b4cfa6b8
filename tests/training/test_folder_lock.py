"""One writer a run folder, whatever becomes of the writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from surefoot.errors import RunFolderError
from surefoot.training.folder_lock import FolderLock, is_held

HOLD = """
import os, sys, time
from pathlib import Path
from surefoot.training.folder_lock import FolderLock
lock = FolderLock.take(Path(sys.argv[1]))
worker = os.fork() if sys.argv[2:] else None
if worker != 0:
    print(worker or os.getpid(), flush=True)
time.sleep(60)
"""


@contextmanager
def holder(path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock, and the number it printed: its own, or that of the worker it forked."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_process_is_told_which_one_is_there(tmp_path: Path) -> None:
    with holder(tmp_path / ".lock") as (process, pid):
        assert pid == process.pid
        assert is_held(tmp_path / ".lock")
        with pytest.raises(RunFolderError, match=f"in use by process {pid} on .*hint:"):
            FolderLock.take(tmp_path / ".lock")
        process.kill()
        process.wait()
        assert not is_held(tmp_path / ".lock")
        FolderLock.take(tmp_path / ".lock").release()


def test_a_worker_that_outlives_its_killed_run_does_not_keep_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path / ".lock", "fork") as (process, worker):
        try:
            assert is_held(tmp_path / ".lock")
            process.kill()
            process.wait()
            os.kill(worker, 0)  # it lives
            FolderLock.take(tmp_path / ".lock").release()
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_worker_that_ends_does_not_free_the_folder_of_its_run(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from surefoot.training.folder_lock import FolderLock, is_held
lock = FolderLock.take(Path(sys.argv[1]))
if os.fork() == 0:
    os._exit(0)
os.wait()
print(is_held(Path(sys.argv[1])))
"""
    command = [sys.executable, "-c", program, str(tmp_path / ".lock")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


def test_the_same_process_cannot_take_it_twice(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path / ".lock")
    with pytest.raises(RunFolderError, match=f"process {os.getpid()}"):
        FolderLock.take(tmp_path / ".lock")
    assert is_held(tmp_path / ".lock")
    lock.release()
    lock.release()
    assert not is_held(tmp_path / ".lock")


def test_a_reader_that_looks_for_a_moment_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    look = (
        "import sys, time\nfrom pathlib import Path\nfrom surefoot.training.folder_lock import is_held\n"
        "print('ready', flush=True)\nend = time.monotonic() + 20\n"
        "while time.monotonic() < end: is_held(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", look, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        try:
            for _ in range(20):
                FolderLock.take(tmp_path / ".lock").release()
        finally:
            reader.kill()


def test_no_lock_file_is_not_held(tmp_path: Path) -> None:
    assert not is_held(tmp_path / ".lock")
    assert list(tmp_path.iterdir()) == []
