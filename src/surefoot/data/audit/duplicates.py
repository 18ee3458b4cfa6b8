"""Texts that are nearly the same, by the share of runs of three words that they have in common.

MinHash names the pairs worth a look (64 hashes in 16 bands of 4: of pairs as alike as the limit 99 in 100 are looked
at), and each is then compared in full, so no pair is reported on an estimate. What many texts share, such as the words
of a template, does not count; a text with too few words left is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surefoot.data.audit.words import Hashes, Numbers, TextWords, counts_of, mixed

RUN: Final = 3
MIN_WORDS: Final = 12
MIN_RUNS: Final = 8
HASHES: Final = 64
BANDS: Final = 16
ALIKE: Final = 0.7
"""Share of common runs from which on two texts are near duplicates."""
MARGIN: Final = 0.15
PARTNERS: Final = 4
SAMPLE: Final = 20_000
SHARED_BY: Final = 0.01
SHARED_BY_AT_LEAST: Final = 20

_FACTORS = mixed(np.arange(HASHES)) | np.uint64(1)
_SHIFTS = mixed(np.arange(HASHES) + HASHES)


def shared_runs(texts: TextWords) -> Hashes:
    """Runs of words that more than one text in a hundred has (and at least twenty have): they tell no two apart."""
    step = -(-len(texts) // SAMPLE)
    sample = TextWords()
    for text in range(0, len(texts), max(1, step)):
        sample.add(texts.of(text).tolist())
    hashes, _, counts = counts_of(sample.grams(RUN).once_a_text().hashes)
    return hashes[counts > max(SHARED_BY_AT_LEAST, SHARED_BY * len(sample))]


def among(hashes: Hashes, ordered: Hashes) -> NDArray[np.bool_]:
    """Which hashes are in an ordered array."""
    if not len(ordered):
        return np.zeros(len(hashes), bool)
    places = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    return np.asarray(ordered[places] == hashes)


@dataclass(frozen=True)
class Sketches:
    """MinHash signatures of texts.

    Attributes:
        texts: what they are of.
        shared: runs of words that do not count.
        signatures: the least of each hash function. [texts, HASHES]
        compared: which texts have enough runs. [texts]
    """

    texts: TextWords
    shared: Hashes
    signatures: NDArray[np.uint32]
    compared: NDArray[np.bool_]

    @classmethod
    def of(cls, texts: TextWords, shared: Hashes) -> Sketches:
        """The signatures of texts."""
        signatures = np.zeros((len(texts), HASHES), np.uint32)
        compared = np.zeros(len(texts), bool)
        for first, last in texts.chunks():
            grams = texts.grams(RUN, first, last)
            grams = grams.kept(~among(grams.hashes, shared))
            owners, starts, counts = counts_of(grams.texts.astype(np.uint64))
            enough = (counts >= MIN_RUNS) & (np.diff(texts.ends)[owners.astype(np.int64)] >= MIN_WORDS)
            compared[owners[enough].astype(np.int64)] = True
            if len(starts):
                for one in range(HASHES):
                    least = np.minimum.reduceat((grams.hashes * _FACTORS[one] + _SHIFTS[one]) >> np.uint64(32), starts)
                    signatures[owners.astype(np.int64), one] = least.astype(np.uint32)
        return cls(texts, shared, signatures, compared)

    def bands(self) -> Iterator[Hashes]:
        """One key a text for each band; texts with equal keys may be alike."""
        for band in np.split(self.signatures.astype(np.uint64), BANDS, axis=1):
            key = np.zeros(len(band), np.uint64)
            for column in band.T:
                key = mixed(key ^ column)
            yield key

    def runs(self, text: int) -> Hashes:
        """The distinct runs of a text that count."""
        hashes = np.unique(self.texts.grams(RUN, text, text + 1).hashes)
        return hashes[~among(hashes, self.shared)]


def near_duplicates(
    sketches: Sketches, also: Callable[[int, int], bool] = lambda earlier, later: True
) -> dict[int, tuple[int, float]]:
    """Texts that nearly repeat an earlier one.

    Args:
        sketches: of the texts.
        also: a further condition on an earlier and a later text.
    Returns:
        later text -> (the earlier one most like it, share of common runs).
    """
    rows = np.flatnonzero(sketches.compared)
    pairs = [_within_band(key[rows]) for key in sketches.bands()]
    return _verified(sketches, sketches, rows[_unique_pairs(pairs)], also)


def near_matches(left: Sketches, right: Sketches) -> dict[int, tuple[int, float]]:
    """Texts on the right that are nearly one on the left: right text -> (left text, share of common runs)."""
    rows, others = np.flatnonzero(left.compared), np.flatnonzero(right.compared)
    pairs = [_between_bands(a[rows], b[others]) for a, b in zip(left.bands(), right.bands(), strict=True)]
    found = _unique_pairs(pairs)
    return _verified(left, right, np.stack([rows[found[:, 0]], others[found[:, 1]]], axis=1), lambda a, b: True)


def _within_band(keys: Hashes) -> Numbers:
    """Pairs (earlier, later) with one key: each with its predecessors and with the first of its kind. [pairs, 2]"""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    found = []
    for back in range(1, min(PARTNERS, len(keys) - 1) + 1):
        same = ordered[back:] == ordered[:-back]
        found.append(np.stack([order[:-back][same], order[back:][same]], axis=1))
    _, starts, counts = counts_of(ordered)
    firsts = np.repeat(order[starts], counts) if len(starts) else order
    found.append(np.stack([firsts, order], axis=1)[firsts != order])
    return np.concatenate(found)


def _between_bands(left: Hashes, right: Hashes) -> Numbers:
    order = np.argsort(left, kind="stable")
    ordered = left[order]
    low, high = np.searchsorted(ordered, right, "left"), np.searchsorted(ordered, right, "right")
    found = [np.zeros((0, 2), np.int64)]
    for forward in range(2 * PARTNERS):
        has = low + forward < high
        found.append(np.stack([order[(low + forward)[has]], np.flatnonzero(has)], axis=1))
    return np.concatenate(found)


def _unique_pairs(found: list[Numbers]) -> Numbers:
    pairs = np.concatenate(found)
    if not len(pairs):
        return pairs
    width = int(pairs.max()) + 1
    codes = np.unique(pairs[:, 0] * width + pairs[:, 1])
    return np.stack([codes // width, codes % width], axis=1)


def _verified(
    left: Sketches, right: Sketches, pairs: Numbers, also: Callable[[int, int], bool]
) -> dict[int, tuple[int, float]]:
    """Of the pairs those that are alike indeed; for each text on the right the best one, the likeliest tried first."""
    estimates = np.concatenate(
        [
            (left.signatures[part[:, 0]] == right.signatures[part[:, 1]]).mean(axis=1)
            for part in np.array_split(pairs, max(1, len(pairs) // 100_000))
        ]
    )
    hopeful = estimates >= ALIKE - MARGIN
    pairs, estimates = pairs[hopeful], estimates[hopeful]
    found: dict[int, tuple[int, float]] = {}
    for one, other in pairs[np.lexsort((-estimates, pairs[:, 1]))].tolist():
        if other in found:
            continue
        similarity = jaccard(left.runs(one), right.runs(other))
        if similarity >= ALIKE and also(one, other):
            found[other] = (one, similarity)
    return found


def jaccard(a: Hashes, b: Hashes) -> float:
    """Common elements over all elements of two sets."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / max(1, len(a) + len(b) - common)
