"""Freed memory stays with the process, unless the user wants it otherwise or hands it back."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from surefoot.parallel.allocator import MappedFiles, hand_back
from tests.resident import resident

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc, Linux's madvise")
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


@linux
def test_pages_are_not_asked_for_again() -> None:
    kept, faults = run()
    assert kept == "True"
    left, faults_left = run(SUREFOOT_ALLOCATOR="system")
    assert left == "False"
    # 64 MB are 16,000 pages, twenty times.
    assert int(faults) * 20 < int(faults_left)


@linux
def test_pages_handed_back_leave_memory_and_the_ends_of_the_block_stay() -> None:
    block = torch.ones(64_000_000, dtype=torch.uint8)
    address, size = block.data_ptr() + 100, len(block) - 200
    before = resident()
    given = hand_back(address, size)
    assert given % mmap.PAGESIZE == 0 and size - 2 * mmap.PAGESIZE < given <= size
    assert before - resident() > 0.9 * given
    assert block[:100].min() == block[-100:].min() == 1
    assert int(block.sum(dtype=torch.int64)) == len(block) - given, "only whole pages inside the block read as zeros"


@linux
def test_pages_of_a_file_leave_memory_and_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    file.write_bytes(bytes(range(256)) * 250_000)
    block = torch.from_file(str(file), shared=False, size=64_000_000, dtype=torch.uint8)
    total, before = int(block.sum(dtype=torch.int64)), resident()
    given = MappedFiles().hand_back(block.data_ptr(), len(block))
    assert given > 0.99 * len(block) and before - resident() > 0.9 * given
    assert int(block.sum(dtype=torch.int64)) == total


@linux
@pytest.mark.parametrize("shared", [False, True])
def test_what_lies_in_no_file_of_our_own_is_left_alone(tmp_path: Path, shared: bool) -> None:
    """Memory that is handed back reads as zeros; changes of a shared mapping belong to others too."""
    file = tmp_path / "numbers"
    file.write_bytes(bytes(4_000_000))
    block = torch.ones(4_000_000, dtype=torch.uint8)
    if shared:
        block = torch.from_file(str(file), shared=True, size=4_000_000, dtype=torch.uint8).fill_(1)
    assert MappedFiles().hand_back(block.data_ptr(), len(block)) == 0
    assert int(block.sum(dtype=torch.int64)) == len(block)


@linux
def test_a_block_without_a_whole_page_is_left_alone() -> None:
    block = torch.ones(3 * mmap.PAGESIZE, dtype=torch.uint8)
    start = -block.data_ptr() % mmap.PAGESIZE
    assert hand_back(block.data_ptr() + start + 1, mmap.PAGESIZE + 10) == 0
    assert int(block.sum()) == len(block)
