"""Freed memory stays with the process, unless the user wants it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from surefoot.parallel.allocator import keep_freed_memory
print(keep_freed_memory())
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        b"x" * 64_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def run(**environment: str) -> list[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "SUREFOOT_ALLOCATOR")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=kept | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_pages_are_not_asked_for_again() -> None:
    kept, faults = run()
    assert kept == "True"
    left, faults_left = run(SUREFOOT_ALLOCATOR="system")
    assert left == "False"
    # 64 MB are 16,000 pages, twenty times.
    assert int(faults) * 20 < int(faults_left)
