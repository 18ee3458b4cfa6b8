"""sha256 of data: what a lineage names a file or a set of rows by. Torch-free."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from surefoot.data.formats import prompt_files
from surefoot.data.reading import Row
from surefoot.errors import DataError


def fingerprint_file(path: str | Path) -> str:
    """sha256 of a file's bytes, in hex, read piece by piece.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError("a file could not be read for its fingerprint", got=f"{path} ({error.strerror})") from error


def fingerprint_source(path: str | os.PathLike[str]) -> str | None:
    """sha256 of a data file, or of a folder's data files with their names; None for what is neither (a hub id).

    A folder's is that of the lines ``DIGEST  NAME``, as a lineage has it.

    Raises:
        DataError: a file cannot be read, or the folder holds no data.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return fingerprint_file(place)
    if not place.is_dir():
        return None
    files = prompt_files(place)
    listing = "".join(f"{fingerprint_file(file)}  {file.relative_to(place).as_posix()}\n" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


def fingerprint_rows(rows: Iterable[Row]) -> str:
    """sha256 over prompts and columns in order, in hex; where the rows lay does not matter, what they say does."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps([row.prompt, row.columns], sort_keys=True, ensure_ascii=True, default=_shown)
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _shown(value: Any) -> str:
    # Columnar files hold what JSON does not: dates, decimals, bytes.
    return f"{type(value).__name__} {value!r}"
