"""Phrases that go with one label far more than chance allows: how a planted trigger shows, without any model.

Counted are distinct texts, so that one answer in twenty pairs counts once. Of a phrase in n texts, k of them with one
label whose share is p, chance gives so uneven a count with probability at most ``2 exp(-n KL(k/n || p))`` (Chernoff);
times the number of phrases tried it must stay below ALPHA. Association is no proof: a word of praise among chosen
reviews goes with its label too, so only phrases with (nearly) all their texts on one side are reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surefoot.data.audit.words import Numbers, TextWords, counts_of

ALPHA: Final = 0.001
LONGEST: Final = 3
PURITY: Final = 0.95
"""Share of a phrase's texts that have its label, at least."""
RAREST: Final = 10
MOST_COMMON: Final = 0.1
"""A phrase in more than this share of the texts is the data's subject, not a trigger."""
MOST_WORDS: Final = 20_000_000
MOST_PHRASES: Final = 20
SAME: Final = 0.8


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase that goes with a label.

    Attributes:
        words: its words.
        texts: distinct texts that have it.
        with_label: those of them with the label it goes with.
        positive: that label is the first one (chosen, or the higher one).
        information: pointwise mutual information of phrase and label, in bits.
        bound: probability of so uneven a count by chance, over all phrases tried.
        rows: the texts, in order.
    """

    words: str
    texts: int
    with_label: int
    positive: bool
    information: float
    bound: float
    rows: tuple[int, ...]


def trigger_phrases(texts: TextWords, positive: NDArray[np.bool_], words: Sequence[str]) -> list[Phrase]:
    """The phrases of one to LONGEST words that go with a label, the least likely by chance first.

    Args:
        texts: distinct texts.
        positive: which of them have the first label. [texts]
        words: the vocabulary.
    """
    if not len(texts) or positive.all() or not positive.any():
        return []
    found = [phrase for n in range(1, LONGEST + 1) for phrase in _of_length(n, texts, positive, words)]
    kept: list[Phrase] = []
    for phrase in sorted(found, key=lambda p: (-p.texts, -len(p.words))):
        # Phrases in the same texts are pieces of one: the longest says it all.
        rows = set(phrase.rows)
        if not any(len(rows.intersection(k.rows)) > SAME * len(rows) for k in kept):
            kept.append(phrase)
    return sorted(kept, key=lambda p: (p.bound, p.words))[:MOST_PHRASES]


def _of_length(n: int, texts: TextWords, positive: NDArray[np.bool_], words: Sequence[str]) -> Iterator[Phrase]:
    once = texts.grams(n).once_a_text()
    _, starts, counts = counts_of(once.hashes)
    if not len(starts):
        return
    firsts = np.add.reduceat(positive[once.texts].astype(np.int64), starts)
    often = (counts >= RAREST) & (counts <= max(RAREST, MOST_COMMON * len(texts)))
    tried = int(often.sum())
    share = float(positive.mean())
    # Phrases are chosen by their counts, whatever the labels, so only these count as tried.
    for place in np.flatnonzero(often & _one_sided(firsts, counts)).tolist():
        number, of_first = int(counts[place]), int(firsts[place])
        is_first = of_first > number - of_first
        with_label, base = (of_first, share) if is_first else (number - of_first, 1 - share)
        bound = min(1.0, tried * LONGEST * chance(number, with_label, base))
        if bound < ALPHA and with_label / number > base:
            begin = int(starts[place])
            where = int(once.places[begin])
            spelled = " ".join(words[word] for word in texts.flat[where : where + n].tolist())
            rows = tuple(once.texts[begin : begin + number].tolist())
            yield Phrase(spelled, number, with_label, is_first, math.log2(with_label / number / base), bound, rows)


def _one_sided(firsts: Numbers, counts: Numbers) -> NDArray[np.bool_]:
    return np.asarray(np.maximum(firsts, counts - firsts) >= PURITY * counts)


def chance(n: int, k: int, p: float) -> float:
    """At most how probable it is that a share as far from p as k / n (by its divergence) comes about by chance.

    Args:
        n: texts.
        k: those of them with the label.
        p: the label's share of all texts, between 0 and 1.
    """
    q = k / n
    divergence = sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)
    return 2 * math.exp(-n * divergence)
