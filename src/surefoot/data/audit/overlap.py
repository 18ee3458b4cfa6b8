"""Evaluation rows that training rows repeat: exactly, nearly, or in long stretches.

A long stretch is a run of 13 words (the whole of a text of 8 to 12 words). Runs that many evaluation rows share are
their template and do not count; a text of fewer than 8 words is compared as a whole prompt only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surefoot.data.audit.characters import folded
from surefoot.data.audit.duplicates import Sketches, among, near_matches, shared_runs
from surefoot.data.audit.findings import AuditFinding
from surefoot.data.audit.passages import AuditRow
from surefoot.data.audit.words import Grams, TextWords, Vocabulary, counts_of

RUN: Final = 13
SHORTEST: Final = 8
CONTAINED: Final = 0.5
"""Share of an evaluation text's runs from which on a training row is said to contain it."""
SHARED_BY: Final = 0.01
SHARED_BY_AT_LEAST: Final = 3


class Folded(NamedTuple):
    """A row's texts as they are compared: folded, and as word numbers."""

    prompt: str
    answers: tuple[str, ...]
    prompt_words: list[int]
    answer_words: tuple[list[int], ...]


@dataclass
class Side:
    """Rows of one side of the comparison.

    Attributes:
        vocabulary: the same one on both sides.
        given, answers: words of prompts and of what is trained on, a text a row.
        places: file and line of each row.
        keys: hash of each row's folded prompt, 0 for none.
    """

    vocabulary: Vocabulary
    given: TextWords = field(default_factory=TextWords)
    answers: TextWords = field(default_factory=TextWords)
    places: list[tuple[str, int]] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    def add(self, row: AuditRow) -> Folded:
        """Add a row."""
        prompt, answers = folded(row.given), tuple(folded(answer) for answer in row.answers)
        prompt_words = self.vocabulary.numbers(prompt)
        answer_words = tuple(self.vocabulary.numbers(answer) for answer in answers)
        self.given.add(prompt_words)
        self.answers.add([number for answer in answer_words for number in answer])
        self.places.append((row.file, row.line))
        self.keys.append(hash(prompt) if prompt else 0)
        return Folded(prompt, answers, prompt_words, answer_words)

    def shown(self, row: int) -> str:
        """A row as ``FILE:LINE``."""
        return "{}:{}".format(*self.places[row])


def overlaps(training: Side, evaluation: Side) -> tuple[list[AuditFinding], int]:
    """Training rows that repeat evaluation rows, each with the strongest way in which it does.

    Returns:
        findings, all errors, and the number of evaluation rows that are repeated.
    """
    found: dict[int, tuple[str, int, str]] = {}
    first: dict[int, int] = {}
    for row, key in enumerate(evaluation.keys):
        if key:
            first.setdefault(key, row)
    for row, key in enumerate(training.keys):
        if key in first:
            found[row] = ("overlap/exact", first[key], "the prompt of")
    for row, (other, similarity) in _near(training, evaluation).items():
        found.setdefault(row, ("overlap/near", other, f"{similarity:.0%} like the prompt of"))
    for row, other, what, share in _contained(training, evaluation):
        found.setdefault(row, ("overlap/contained", other, f"holds {share:.0%} of the {what} of"))
    findings = [
        AuditFinding(*training.places[row], kind, "error", f"{how} {evaluation.shown(other)}")
        for row, (kind, other, how) in sorted(found.items())
    ]
    return findings, len({other for _, other, _ in found.values()})


def _near(training: Side, evaluation: Side) -> dict[int, tuple[int, float]]:
    shared = np.union1d(shared_runs(training.given), shared_runs(evaluation.given))
    return near_matches(Sketches.of(evaluation.given, shared), Sketches.of(training.given, shared))


def _contained(training: Side, evaluation: Side) -> Iterator[tuple[int, int, str, float]]:
    """Training row, evaluation row, what of it is contained, and how much; the fullest first."""
    best: dict[int, tuple[float, int, str]] = {}
    for what, probes in (("prompt", evaluation.given), ("answer", evaluation.answers)):
        lengths = np.diff(probes.ends)
        for n in range(SHORTEST, RUN + 1):
            wanted = lengths >= n if n == RUN else lengths == n
            if not wanted.any():
                continue
            runs = _telling(probes.grams(n), wanted)
            for texts in (training.given, training.answers):
                for row, other, share in _shares(texts, runs, n):
                    if share > best.get(row, (0.0,))[0]:
                        best[row] = (share, other, what)
    for row, (share, other, what) in sorted(best.items()):
        yield row, other, what, share


def _telling(grams: Grams, wanted: NDArray[np.bool_]) -> Grams:
    """The runs of the wanted texts that few texts have."""
    once = grams.kept(wanted[grams.texts]).once_a_text()
    _, _, counts = counts_of(once.hashes)
    limit = max(SHARED_BY_AT_LEAST, SHARED_BY * int(wanted.sum()))
    return once.kept(np.repeat(counts <= limit, counts))


def _shares(texts: TextWords, runs: Grams, n: int) -> Iterator[tuple[int, int, float]]:
    """Text, evaluation row and the share of its runs in the text, where that is enough; runs ordered by hash."""
    hashes, starts, counts = counts_of(runs.hashes)
    total = Counter(runs.texts.tolist())
    for first, last in texts.chunks():
        grams = texts.grams(n, first, last)
        hits = grams.kept(among(grams.hashes, hashes)).once_a_text()
        places = np.searchsorted(hashes, hits.hashes)
        common = Counter(
            (text, other)
            for text, place in zip(hits.texts.tolist(), places.tolist(), strict=True)
            for other in runs.texts[starts[place] : starts[place] + counts[place]].tolist()
        )
        for (text, other), number in common.items():
            if number / total[other] >= CONTAINED:
                yield text, other, number / total[other]
