"""Rows of any shape, parsed one by one: each fault with its file and row, nothing skipped in silence. Torch-free."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from surefoot.data.formats import raw_rows
from surefoot.data.reading import SHOWN, BadRow, refusal
from surefoot.errors import DataError

logger = logging.getLogger("surefoot")

T = TypeVar("T")


class RowFault(ValueError):
    """Why a row cannot be used: a clause, without its place."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """What a source held.

    Attributes:
        rows: the usable rows, in order.
        read: rows read, blank lines not counted.
        skipped: the others; empty unless skipping was asked for.
        files: where they came from, empty for a hub id.
    """

    rows: tuple[T, ...]
    read: int
    skipped: tuple[BadRow, ...]
    files: tuple[Path, ...]


def parse_rows(
    source: str, parse: Callable[[str, Mapping[str, Any]], T], *, bad_rows: Literal["error", "skip"], section: str
) -> Parsed[T]:
    """Read and parse a file, a folder of files or a hub data set.

    Args:
        source: as for :func:`surefoot.data.formats.raw_rows`.
        parse: from a row's id, ``FILE:LINE``, and its columns to what it says; raises RowFault.
        bad_rows: refuse a source with unusable rows, or skip them.
        section: of the config, for hints.
    Raises:
        DataError: nothing is there, no row is usable, or some are not and skipping was not asked for.
    """
    raw, files = raw_rows(source)
    rows: list[T] = []
    bad: list[BadRow] = []
    for one in raw:
        try:
            if one.value is None:
                raise RowFault(one.fault or "cannot be read")
            rows.append(parse(f"{one.file}:{one.line}", one.value))
        except RowFault as fault:
            bad.append(BadRow(one.file, one.line, str(fault)))
    read = len(rows) + len(bad)
    if read == 0:
        raise DataError("the data is empty", got=f"{source} has no rows", hint="write one JSON object a line")
    if bad and (bad_rows == "error" or not rows):
        raise refusal(source, bad, read, key=f"{section}.bad_rows")
    if bad:
        shown = "; ".join(map(str, bad[:SHOWN]))
        logger.warning("%s: %d rows read, %d kept, %d skipped: %s", source, read, len(rows), len(bad), shown)
    return Parsed(tuple(rows), read, tuple(bad), files)


def listed(items: Sequence[str], *, most: int = 10) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
