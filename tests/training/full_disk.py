"""Runs Python on a disk that is really full: a tiny file system of its own, or a limit on the size of files."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

_NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])


@functools.cache
def _namespace() -> list[str] | None:
    """A way to mount something that nobody else sees, or None where that is not permitted."""
    if shutil.which("unshare") is None:
        return None
    for command in _NAMESPACES:
        probe = [*command, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return command
    return None


def tiny_disk_available() -> bool:
    return _namespace() is not None


def run_on_tiny_disk(folder: Path, kilobytes: int, program: str) -> str:
    """Run a program with a disk of this size mounted at ``folder``; gives what it printed."""
    namespace = _namespace()
    assert namespace is not None
    mount = f'mount -t tmpfs -o size={kilobytes}k none "$0" && exec "$1" -c "$2" "$0"'
    return _run([*namespace, "sh", "-c", mount, str(folder), sys.executable, program])


def run_with_file_limit(folder: Path, size: int, program: str) -> str:
    """Run a program that may write no file beyond ``size`` bytes; gives what it printed."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    return _run([sys.executable, "-c", limit + program, str(folder)])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    return done.stdout
