"""What this process takes of the main memory."""

from __future__ import annotations

import mmap
from pathlib import Path


def resident() -> int:
    """Bytes that are in main memory now (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
