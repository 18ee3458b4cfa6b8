"""Prompt files to rows: each with an id that lasts, or refused with its place and the reason. Torch-free.

Nothing is skipped silently: a bad row refuses the file, and where skipping was asked for it is counted and listed.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from surefoot.data.formats import raw_rows
from surefoot.errors import DataError
from surefoot.models.messages import messages_fault, plain_messages, text_fault

logger = logging.getLogger("surefoot")

SHOWN = 5
DEFAULT_COLUMN = "prompt"
CHAT_COLUMN = "messages"


@dataclass(frozen=True, slots=True)
class Row:
    """One usable row.

    Attributes:
        id: ``FILE:LINE``, the line counted from 1 with blank ones; it goes along into the rollouts.
        index: place among the kept rows, from 0.
        prompt: a text, or chat messages.
        columns: the other columns.
    """

    id: str
    index: int
    prompt: str | tuple[Mapping[str, Any], ...]
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that cannot be used, its place and the reason."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RowSet:
    """What a source held.

    Attributes:
        rows: the usable rows, in order.
        read: rows read, blank lines not counted.
        skipped: the others; empty unless skipping was asked for.
        files: where they came from, empty for a hub id.
    """

    rows: tuple[Row, ...]
    read: int
    skipped: tuple[BadRow, ...]
    files: tuple[Path, ...]

    @property
    def kept(self) -> int:
        """Number of usable rows."""
        return len(self.rows)


def read_rows(
    source: str | Path, *, column: str = DEFAULT_COLUMN, bad_rows: Literal["error", "skip"] = "error"
) -> RowSet:
    """Read prompts.

    Args:
        source: a JSONL or Parquet file, a folder of such files, or a hub id ``NAME`` or ``NAME:SPLIT``.
        column: where the prompt is: a text or a list of messages. A row without the default column ``prompt`` may
            have ``messages`` instead.
        bad_rows: refuse a source with unusable rows, or skip them.
    Raises:
        DataError: nothing is there, no row is usable, or some are not and skipping was not asked for.
    """
    raw, files = raw_rows(str(source))
    rows: list[Row] = []
    bad: list[BadRow] = []
    columns: dict[str, None] = {}
    without = chats = 0
    for one in raw:
        value = one.value or {}
        columns |= dict.fromkeys(value)
        name = _column_of(value, column)
        fault = one.fault if one.value is None else _row_fault(value, name)
        if fault is not None:
            without += one.value is not None and name not in value
            bad.append(BadRow(one.file, one.line, fault))
            continue
        chats += name != column
        others = {key: other for key, other in value.items() if key != name}
        rows.append(Row(f"{one.file}:{one.line}", len(rows), _plain(value[name]), others))
    read = len(rows) + len(bad)
    if not rows and without == read > 0:
        raise _no_column(str(source), column, list(columns))
    if bad and (bad_rows == "error" or not rows):
        raise refusal(str(source), bad, read)
    if not rows:
        raise DataError("the prompts are empty", got=f"{source} has no rows", hint="write one JSON object a line")
    if chats:
        logger.info("%s: %d rows have no column %r, their %r are used", source, chats, column, CHAT_COLUMN)
    if bad:
        shown = "; ".join(map(str, bad[:SHOWN]))
        logger.warning("%s: %d rows read, %d kept, %d skipped: %s", source, read, len(rows), len(bad), shown)
    return RowSet(tuple(rows), read, tuple(bad), files)


def _column_of(value: Mapping[str, Any], column: str) -> str:
    return CHAT_COLUMN if column == DEFAULT_COLUMN and column not in value and CHAT_COLUMN in value else column


def _row_fault(value: Mapping[str, Any], name: str) -> str | None:
    if name not in value:
        return f"no column {name!r}{_listed(list(value), name)}"
    fault = _prompt_fault(value[name])
    return fault if fault is None or name == CHAT_COLUMN else f"{name}: {fault}"


def _plain(prompt: Any) -> str | tuple[Mapping[str, Any], ...]:
    return prompt if isinstance(prompt, str) else tuple(plain_messages(prompt))


def _prompt_fault(prompt: Any) -> str | None:
    if prompt is None:
        return "is null"
    if isinstance(prompt, str):
        return text_fault(prompt) if prompt.strip() else "is empty"
    if isinstance(prompt, Mapping):
        return "is a single object; chat messages are a list of objects with role and content"
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return messages_fault(prompt)
    return f"must be a text or a list of chat messages, not {type(prompt).__name__}"


def _listed(columns: Sequence[str], column: str) -> str:
    if not columns:
        return ", nor any other"
    near = difflib.get_close_matches(column, columns, n=1)
    return f" (columns: {', '.join(columns[:12])}){f', did you mean {near[0]!r}?' if near else ''}"


def _no_column(source: str, column: str, columns: Sequence[str]) -> DataError:
    near = difflib.get_close_matches(column, columns, n=1)
    guess = near[0] if near else CHAT_COLUMN if CHAT_COLUMN in columns else None
    return DataError(
        f"no row of {source} has the column {column!r}",
        got=f"columns {', '.join(columns)}" if columns else "rows without columns",
        hint=f"set data.column: {guess}" if guess else "set data.column to the one with the prompts",
    )


def refusal(source: str, bad: Sequence[BadRow], read: int, *, key: str = "data.bad_rows") -> DataError:
    """The error for rows that cannot be used; ``key`` is the setting that would skip them."""
    shown = "; ".join(map(str, bad[:SHOWN])) + (f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else "")
    skip = "" if len(bad) == read else f", or set {key}: skip to go on without them"
    hint = f"correct them{skip}"
    unreadable = any(word in bad[0].reason for word in ("JSON", "an array", "a bare "))
    if unreadable and (len(bad) == read or "an array" in bad[0].reason):
        hint = f"write one JSON object a line, without an array around all of them{skip}"
    return DataError(f"{len(bad)} of {read} rows of {source} cannot be used: {shown}", hint=hint)
