"""How this process keeps memory that it has freed.

Training allocates and frees the same gigabytes at every step. By default the C library hands large blocks back to the
system at once and asks for them again, and the system clears each page anew: a fifth of the time of a step on a CPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
# Of M_TRIM_THRESHOLD: never. The largest number it takes is 2 GB, which a training pass may free at once.
NEVER = -1
TOP_PAD = 256 * 2**20
OPT_OUT = "SUREFOOT_ALLOCATOR"


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory and grow in large steps; gives whether that could be set.

    ``SUREFOOT_ALLOCATOR=system`` leaves everything as it is, and so does a system without glibc.
    """
    if not sys.platform.startswith("linux") or os.environ.get(OPT_OUT) == "system":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER), (M_TOP_PAD, TOP_PAD))
    done = [mallopt(name, value) == 1 for name, value in settings]
    return all(done)


def hand_back(address: int, size: int) -> int:
    """Give the whole pages of a block back to the system; gives how many bytes that were.

    The block stays allocated and reads as zeros there, so it is for contents that nobody reads any more. Systems other
    than Linux keep them.

    Args:
        address, size: of the block, in bytes; of private memory, as the C library's.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if not sys.platform.startswith("linux") or length <= 0:
        return 0
    madvise = ctypes.CDLL(None).madvise
    done: bool = madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_DONTNEED) == 0
    return length if done else 0


class MappedFiles:
    """Where files lie in this process's memory as of now, changes to them private: weights as they were read."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int]] = []
        if sys.platform.startswith("linux"):
            for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                block, rights, _, _, inode, *_ = line.split()
                if inode != "0" and rights.endswith("p"):
                    first, end = block.split("-")
                    self._blocks.append((int(first, 16), int(end, 16)))

    def hand_back(self, address: int, size: int) -> int:
        """Let the whole pages of a part of a file go out of main memory; gives how many bytes that were.

        Who reads there again gets what the file holds; what was written over it is lost. Nothing happens where no file
        lies.

        Args:
            address, size: of the part, in bytes.
        """
        inside = any(first <= address and address + size <= end for first, end in self._blocks)
        return hand_back(address, size) if inside else 0


def hand_back_next(size: int) -> None:
    """Hand back the pages of the block that the C library has ready for this size; the next such block is likely it.

    Args:
        size: in bytes.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    address = library.malloc(size)
    if address:
        hand_back(address, size)
        library.free(address)
