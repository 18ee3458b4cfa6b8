"""Data files and hub data sets as a stream of raw rows, each with its place. Torch-free.

A fault in one row is part of the stream; a fault of the whole file (missing, compressed badly, no Parquet) is an error.
"""

from __future__ import annotations

import codecs
import difflib
import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from surefoot.errors import DataError

logger = logging.getLogger("surefoot")

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".json.gz")
PARQUET_SUFFIXES: Final = (".parquet",)
SUFFIXES: Final = JSONL_SUFFIXES + PARQUET_SUFFIXES
BATCH_ROWS: Final = 1024
DEEPEST: Final = 100
"""Objects and arrays within each other; what is passed on to rewards must not be deeper."""
_HUB_ID = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<split>[\w.%:+\[\]-]+))?")


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as read.

    Attributes:
        file: its file as shown to users, or the hub id.
        line: physical line of a text file (blank ones count), row of a columnar one; from 1.
        value: its columns; None when it could not be read.
        fault: why not.
    """

    file: str
    line: int
    value: Mapping[str, Any] | None
    fault: str | None = None


def raw_rows(source: str) -> tuple[Iterator[RawRow], tuple[Path, ...]]:
    """The rows of a file, of all data files under a folder in the order of their names, or of a hub data set.

    Returns:
        the rows, read as they are asked for, and the files (none for a hub id).
    Raises:
        DataError: there is no such thing, or it holds no data files.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        files = prompt_files(path)
        return _chained(files, path), files
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise DataError(
                "data files are JSONL or Parquet, known by their ending", got=str(path), allowed=", ".join(SUFFIXES)
            )
        return _chained((path,), path.parent), (path,)
    match = _HUB_ID.fullmatch(source)
    if match is None or source.lower().endswith(SUFFIXES) or source.startswith("."):
        raise DataError("the data file does not exist", got=source, hint=_missing_hint(path))
    return _hub_rows(source, match["name"], match["split"] or "train"), ()


def prompt_files(folder: Path) -> tuple[Path, ...]:
    """All data files under a folder in the order of their names; hidden ones (``.ipynb_checkpoints``) left out.

    Raises:
        DataError: there are none.
    """

    def hidden(path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)

    found = (p for p in folder.rglob("*") if p.name.lower().endswith(SUFFIXES) and not hidden(p) and p.is_file())
    try:
        files = tuple(sorted(found))
    except OSError as error:
        raise DataError(
            "the folder of prompts could not be read",
            got=f"{folder} ({error})",
            hint="name the file, or a folder that holds prompts alone",
        ) from error
    if not files:
        inside = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            "the folder holds no data files", got=f"{folder} (it holds: {inside})", allowed=", ".join(SUFFIXES)
        )
    return files


def _missing_hint(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    return f"did you mean {path.with_name(near[0])}?" if near else "check the path"


def _chained(files: Sequence[Path], root: Path) -> Iterator[RawRow]:
    for file in files:
        shown = file.relative_to(root).as_posix()
        read = _parquet_rows if file.name.lower().endswith(PARQUET_SUFFIXES) else _jsonl_rows
        yield from read(file, shown)


# ------------------------------------------------------------------------------------------------------- JSONL


class _RepeatedKey(ValueError):
    """An object names a key twice, so one of the two values would be lost."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKey(f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands twice")
    return whole


def _jsonl_rows(file: Path, shown: str) -> Iterator[RawRow]:
    try:
        with _opened(file) as stream:
            # Line ends are those of bytes: U+2028 and its like may stand within a JSON string.
            for number, physical in enumerate(stream, start=1):
                line = _without_mark(physical, file) if number == 1 else physical
                if line.strip():
                    yield _jsonl_row(shown, number, line)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("the data file could not be read", got=f"{file} ({error})", hint="is it whole?") from error


def _opened(file: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file, "rb") if file.name.lower().endswith(".gz") else file.open("rb"))


def _without_mark(line: bytes, file: Path) -> bytes:
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError("the data file is not UTF-8", got=f"{file} is UTF-16", hint="save it as UTF-8")
    return line.removeprefix(codecs.BOM_UTF8)


def _jsonl_row(shown: str, number: int, line: bytes) -> RawRow:
    fault: str
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        fault = f"not UTF-8 (byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line)"
    except json.JSONDecodeError as error:
        nul = ", it holds NUL bytes" if b"\x00" in line else ""
        array = ", it begins an array" if line.lstrip().startswith(b"[") else ""
        fault = f"not JSON ({error.msg} at character {error.colno}{nul}{array})"
    except (_RepeatedKey, RecursionError) as error:
        fault = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    except ValueError as error:
        fault = f"not usable JSON ({error})"
    else:
        if isinstance(value, dict):
            deep = line.count(b"[") + line.count(b"{") > DEEPEST and _is_deep(value)
            return RawRow(shown, number, None, "nested too deeply") if deep else RawRow(shown, number, value)
        kind = "an array" if isinstance(value, list) else f"a bare {type(value).__name__}"
        fault = f"{kind}, not an object with named columns"
    return RawRow(shown, number, None, fault)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inner = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list)))
        level = [item for items in inner for item in items]
    return any(isinstance(x, (dict, list)) for x in level)


# ---------------------------------------------------------------------------------------------- Parquet and hub


def _parquet_rows(file: Path, shown: str) -> Iterator[RawRow]:
    import pyarrow as pa  # half a second, which JSONL does without
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=BATCH_ROWS):
                for value, fault in _batch_rows(batch):
                    number += 1
                    yield RawRow(shown, number, value, fault)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            "the Parquet file could not be read", got=f"{file} ({reason})", hint="is it whole, and Parquet at all?"
        ) from error


def _batch_rows(batch: Any) -> Iterator[tuple[Mapping[str, Any] | None, str | None]]:
    """Rows of a batch with their faults; a value that Python cannot hold (a year 16000, broken UTF-8) is one."""
    try:
        yield from [(value, None) for value in batch.to_pylist()]
    except (ValueError, OverflowError):
        for row in range(batch.num_rows):
            value: dict[str, Any] = {}
            fault = None
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    value[name] = column[row].as_py()
                except (ValueError, OverflowError) as error:
                    fault = f"{name}: {' '.join(str(error).split())}"
            yield (value, None) if fault is None else (None, fault)


def _hub_rows(source: str, name: str, split: str) -> Iterator[RawRow]:
    import datasets  # a second, and only hub ids need it

    try:
        rows = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{source} is no file here, and no data set of that name could be loaded",
            got=reason,
            allowed="a JSONL or Parquet file, a folder of them, or a hub id NAME or NAME:SPLIT",
            hint="check the path; a hub id needs a network or a filled cache",
        ) from error
    for number, value in enumerate(rows, start=1):
        yield RawRow(f"{name}:{split}", number, value)
