"""Many texts as arrays of word numbers, and hashes of their n-grams: what duplicates, overlap and phrases rest on.

A word is a run of letters and digits, or one symbol, or one character of a script written without blanks. The numbers
belong to one :class:`Vocabulary`; all texts that are compared must share it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]

CHUNK: Final = 500_000
"""Words that are worked on at once."""
_ASCII = re.compile(r"[a-z0-9_]+")
_UNSPACED: Final = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ANY = re.compile(rf"[{_UNSPACED}\u2190-\u2bff\U0001f000-\U0001faff]|[^\W{_UNSPACED}]+")
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def mixed(values: Any) -> Hashes:
    """Well-spread 64-bit hashes of whole numbers (the finaliser of SplitMix64)."""
    x = np.asarray(values, np.uint64) + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Vocabulary:
    """Words and their numbers, in the order in which they were met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, folded: str) -> list[int]:
        """The words of a folded text (see :func:`surefoot.data.audit.characters.folded`)."""
        known = self._numbers
        return [known.setdefault(w, len(known)) for w in (_ASCII if folded.isascii() else _ANY).findall(folded)]

    def words(self) -> list[str]:
        """All words; a word's place is its number."""
        return list(self._numbers)


class TextWords:
    """Texts as one array of word numbers, in the order in which they were added."""

    def __init__(self) -> None:
        self._flat, self._ends = array("I"), array("q", [0])

    def add(self, numbers: Iterable[int]) -> None:
        """Add a text by the numbers of its words; not while an array of this object is in use."""
        self._flat.extend(numbers)
        self._ends.append(len(self._flat))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def flat(self) -> NDArray[np.uint32]:
        """Word numbers of all texts, one after the other."""
        return np.frombuffer(self._flat, np.uint32) if self._flat else np.zeros(0, np.uint32)

    @property
    def ends(self) -> Numbers:
        """Where the texts begin and end in ``flat``: [texts + 1]."""
        return np.frombuffer(self._ends, np.int64)

    def of(self, text: int) -> NDArray[np.uint32]:
        """Word numbers of one text."""
        return self.flat[self._ends[text] : self._ends[text + 1]]

    def grams(self, n: int, first: int = 0, last: int | None = None) -> Grams:
        """All n-grams of the texts ``first`` to ``last`` (not included), none across two texts."""
        last = len(self) if last is None else last
        ends = self.ends[first : last + 1]
        words = mixed(self.flat[ends[0] : ends[-1]])
        lengths = np.diff(ends)
        if len(words) < n:
            return Grams(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        rolled = np.zeros(len(words) - n + 1, np.uint64)
        for place in range(n):
            rolled = rolled * np.uint64(0x5851F42D4C957F2D) + words[place : len(words) - n + 1 + place]
        owner = np.repeat(np.arange(first, last), lengths)
        places = np.arange(len(rolled), dtype=np.int64)
        inside = owner[: len(rolled)] == owner[n - 1 :]
        return Grams(mixed(rolled[inside]), owner[: len(rolled)][inside], places[inside] + ends[0])

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Consecutive ranges of texts with about CHUNK words each, so that work on n-grams takes bounded memory."""
        ends, first = self.ends, 0
        while first < len(self):
            last = int(np.searchsorted(ends, ends[first] + CHUNK, side="right")) - 1
            last = min(len(self), max(first + 1, last))
            yield first, last
            first = last


@dataclass(frozen=True, slots=True)
class Grams:
    """n-grams of some texts, in order.

    Attributes:
        hashes: 64-bit hash of each. [N]
        texts: the text it stands in. [N]
        places: where it begins in the array of all words. [N]
    """

    hashes: Hashes
    texts: Numbers
    places: Numbers

    def once_a_text(self) -> Grams:
        """Each n-gram of a text once (its first occurrence), ordered by hash, then text."""
        order = np.argsort(self.hashes, kind="stable")
        hashes, texts, places = self.hashes[order], self.texts[order], self.places[order]
        new = np.ones(len(order), bool)
        new[1:] = (hashes[1:] != hashes[:-1]) | (texts[1:] != texts[:-1])
        return Grams(hashes[new], texts[new], places[new])

    def kept(self, which: NDArray[np.bool_]) -> Grams:
        """Some of them."""
        return Grams(self.hashes[which], self.texts[which], self.places[which])


def counts_of(ordered: Hashes) -> tuple[Hashes, Numbers, Numbers]:
    """Distinct hashes of an ordered array, where each begins in it, and how often it stands there."""
    if not len(ordered):
        return ordered, np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return ordered[starts], starts, np.diff(np.r_[starts, len(ordered)])
