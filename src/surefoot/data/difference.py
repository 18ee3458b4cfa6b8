"""What parts two versions of a data set: rows added, removed and changed, and columns. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from surefoot.data.formats import raw_rows
from surefoot.errors import DataError

PROMPTS: Final = ("prompt", "messages", "conversation")
SHOWN: Final = 5


@dataclass
class Rows:
    """The rows of one version, by digests.

    Attributes:
        source: where they came from.
        values: for each row its place and the digest of each column.
        columns: how many rows have each column.
    """

    source: str
    values: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    columns: Counter[str] = field(default_factory=Counter)

    def keys(self, column: str) -> list[bytes] | None:
        """The digests of one column; None unless every row has it and no two rows share one."""
        found = [value.get(column) for _, value in self.values]
        return (
            [one for one in found if one is not None] if None not in found and len(set(found)) == len(found) else None
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """What parts two versions.

    Attributes:
        key: the column that rows are told by; None: the whole row, of which none can be changed.
        rows: number of rows of each.
        added, removed: places in the second and in the first.
        changed: place in the second -> the columns that differ.
        new_columns, lost_columns: columns that only one of them has.
    """

    key: str | None
    rows: tuple[int, int]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, tuple[str, ...]]
    new_columns: tuple[str, ...]
    lost_columns: tuple[str, ...]

    @property
    def none(self) -> bool:
        """Whether they have the same rows, in whatever order."""
        return not (self.added or self.removed or self.changed)


def read_digests(source: str) -> Rows:
    """The rows of a source, by digests.

    Raises:
        DataError: nothing is there, or a row cannot be read.
    """
    rows = Rows(source)
    for raw in raw_rows(source)[0]:
        if raw.value is None:
            raise DataError(
                "a row cannot be read, so it cannot be compared", got=f"{raw.file} line {raw.line}: {raw.fault}"
            )
        rows.values.append((f"{raw.file}:{raw.line}", {key: _digest(value) for key, value in raw.value.items()}))
        rows.columns.update(raw.value)
    return rows


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, default=lambda other: f"{type(other).__name__} {other!r}")
    return hashlib.blake2b(text.encode(), digest_size=12).digest()


def difference(first: Rows, second: Rows, *, key: str | None = None) -> Difference:
    """Compare two versions.

    Args:
        first, second: their rows.
        key: the column that rows are told by; None: ``id`` or the prompt where they tell all rows apart, else the whole
            row.
    Raises:
        DataError: a row lacks the key, or two rows share one.
    """
    if key is not None:
        for rows in (first, second):
            if rows.keys(key) is None:
                raise DataError(
                    f"the column {key!r} does not tell the rows of {rows.source} apart",
                    got="a row without it, or two rows with one value",
                    allowed=", ".join(column for column in rows.columns if rows.keys(column)) or "no single column",
                )
    else:
        candidates = ("id", *PROMPTS)
        key = next((c for c in candidates if first.keys(c) is not None and second.keys(c) is not None), None)
    if first.values == [] or second.values == []:
        key = None
    added, removed, changed = _by_rows(first, second) if key is None else _by_key(first, second, key)
    return Difference(
        key=key,
        rows=(len(first.values), len(second.values)),
        added=added,
        removed=removed,
        changed=changed,
        new_columns=tuple(sorted(set(second.columns) - set(first.columns))),
        lost_columns=tuple(sorted(set(first.columns) - set(second.columns))),
    )


_Parts = tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]]]


def _by_key(first: Rows, second: Rows, key: str) -> _Parts:
    old = {value[key]: (place, value) for place, value in first.values}
    new = {value[key]: (place, value) for place, value in second.values}
    changed = {}
    for one in new.keys() & old.keys():
        place, value = new[one]
        before = old[one][1]
        differing = tuple(sorted(c for c in {*value, *before} if value.get(c) != before.get(c)))
        if differing:
            changed[place] = differing
    in_order = {place: changed[place] for place, _ in second.values if place in changed}
    added = tuple(place for one, (place, _) in new.items() if one not in old)
    return added, tuple(place for one, (place, _) in old.items() if one not in new), in_order


def _by_rows(first: Rows, second: Rows) -> _Parts:
    return _surplus(second, first), _surplus(first, second), {}


def _surplus(rows: Rows, others: Rows) -> tuple[str, ...]:
    """Places of rows that the others do not have, or not as often."""
    left = Counter(_whole(value) for _, value in others.values)
    found = []
    for place, value in rows.values:
        whole = _whole(value)
        if left[whole]:
            left[whole] -= 1
        else:
            found.append(place)
    return tuple(found)


def _whole(value: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
    return tuple(sorted(value.items()))


def card_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields of two cards that differ, as (first, second)."""
    fields = dict.fromkeys((*first, *second))
    return {name: (first.get(name), second.get(name)) for name in fields if first.get(name) != second.get(name)}
