"""Rows laid out for one forward pass: side by side, or end to end with what several begin with only once.

The states of a common beginning (a system prompt, a prompt with several samples, the turns before a fork) are the same
in every row of a causal model, so they are computed once and attended to by all. This changes no number: it leaves out
repetitions, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from surefoot.models.attention import Packed, Padded
from surefoot.records import IntArray

# A piece of its own costs some small calls per layer, which this many tokens left out are worth.
WORTH = 8


@dataclass(frozen=True)
class LaidRows:
    """Rows of token ids in one array.

    Attributes:
        ids, positions: ``[R, C]`` tokens, and their positions in their rows.
        layout: how attention parts the rows.
        places: for each row, where its tokens are among the flat ``R * C``.
    """

    ids: IntArray
    positions: IntArray
    layout: Packed | Padded
    places: list[IntArray]


@dataclass
class _Pieces:
    """Pieces found so far, and the row of each with the columns it covers."""

    rows: Sequence[IntArray]
    cuts: list[tuple[int, int, int]] = field(default_factory=list)
    before: list[tuple[int, ...]] = field(default_factory=list)
    chains: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add(self, row: int, start: int, end: int, before: tuple[int, ...]) -> tuple[int, ...]:
        """Add a piece; gives the chain that ends with it."""
        if start == end:
            return before
        self.cuts.append((row, start, end))
        self.before.append(before)
        return (*before, len(self.cuts) - 1)


def pad(rows: Sequence[IntArray]) -> LaidRows:
    """Lay rows of token ids side by side, with zeros on the right; at least one row, none empty."""
    width = max(map(len, rows))
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row)] = row
    positions = np.broadcast_to(np.arange(width), ids.shape)
    places = [n * width + np.arange(len(row)) for n, row in enumerate(rows)]
    return LaidRows(ids, positions, Padded(), places)


def pack(rows: Sequence[IntArray]) -> LaidRows:
    """Lay rows of token ids end to end, common beginnings once; at least one row, none empty."""
    order = sorted_rows(rows)
    common = [shared_length(rows[a], rows[b]) for a, b in pairwise(order)]
    pieces = _Pieces(rows)
    _cut(pieces, order, common, 0, ())
    lengths = [end - start for _, start, end in pieces.cuts]
    starts = np.cumsum([0, *lengths])[:-1]
    spans = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    return LaidRows(
        ids=np.concatenate([rows[row][start:end] for row, start, end in pieces.cuts])[None],
        positions=np.concatenate([np.arange(start, end) for _, start, end in pieces.cuts])[None],
        layout=Packed(tuple(lengths), tuple(pieces.before)),
        places=[np.concatenate([spans[piece] for piece in pieces.chains[row]]) for row in range(len(rows))],
    )


def groups_within(rows: Sequence[IntArray], tokens: int, *, packed: bool) -> Iterator[list[int]]:
    """Numbers of rows in groups of at most ``tokens`` tokens once laid out; one row always fits.

    Padded, rows of one length class come together, so that little is padded. Packed, rows that begin alike do, and
    what a row shares with the one before it counts once if it surely lies there once.
    """
    order = sorted_rows(rows) if packed else sorted(range(len(rows)), key=lambda i: (len(rows[i]), i))
    group: list[int] = []
    used = 0
    for i in order:
        shared = shared_length(rows[group[-1]], rows[i]) if group and packed else 0
        shared = shared if shared >= WORTH else 0
        used = used + len(rows[i]) - shared if packed else len(rows[i]) * (len(group) + 1)
        if group and used > tokens:
            yield group
            group, used = [], len(rows[i])
        group.append(i)
    if group:
        yield group


def sorted_rows(rows: Sequence[IntArray]) -> list[int]:
    """Row numbers in an order that brings common beginnings together."""
    return sorted(range(len(rows)), key=lambda r: (rows[r].tolist(), r))


def shared_length(a: IntArray, b: IntArray) -> int:
    """How many tokens two rows have in common at their beginning."""
    size = min(len(a), len(b))
    differ = np.nonzero(a[:size] != b[:size])[0]
    return int(differ[0]) if len(differ) else size


def _cut(pieces: _Pieces, order: list[int], common: list[int], depth: int, before: tuple[int, ...]) -> None:
    """Cut sorted rows, of which the first ``depth`` tokens are laid down as ``before``, into pieces.

    Args:
        order: rows.
        common: tokens that each shares with the next one.
    """
    if len(order) == 1:
        row = order[0]
        pieces.chains[row] = pieces.add(row, depth, len(pieces.rows[row]), before)
        return
    least = min(common)
    if (least - depth) * (len(order) - 1) >= WORTH:
        before, depth = pieces.add(order[0], depth, least, before), least
    for start, end in _runs(common, least):
        _cut(pieces, order[start:end], common[start : end - 1], depth, before)


def _runs(common: list[int], least: int) -> Iterator[tuple[int, int]]:
    """Runs of rows that share more than ``least`` tokens with their neighbours."""
    start = 0
    for i, length in enumerate(common):
        if length <= least:
            yield start, i + 1
            start = i + 1
    yield start, len(common) + 1
