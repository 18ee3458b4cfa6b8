"""Collects who said what with which label, and asks for phrases that tell the label: planted triggers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.data.audit.findings import AuditFinding, Suspicion
from surefoot.data.audit.overlap import Folded
from surefoot.data.audit.passages import AuditRow
from surefoot.data.audit.triggers import MOST_WORDS, Phrase, trigger_phrases
from surefoot.data.audit.words import TextWords, Vocabulary

Place = tuple[str, int]


class _Labelled:
    """Distinct texts with a label each."""

    def __init__(self) -> None:
        self.texts = TextWords()
        self.labels: list[Any] = []
        self.places: list[Place] = []
        self.words = 0
        self._seen: set[tuple[int, Any]] = set()

    def add(self, text: str, numbers: Sequence[int], label: Any, place: Place) -> None:
        key = (hash(text), label)
        if not text or key in self._seen or self.words + len(numbers) > MOST_WORDS:
            return
        self._seen.add(key)
        self.texts.add(numbers)
        self.words += len(numbers)
        self.labels.append(label)
        self.places.append(place)


class Sayings:
    """Texts by label: chosen and rejected, or the values of a label column; and the prompts of pairs.

    Args:
        vocabulary: that of the word numbers handed in.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._answers, self._labelled = _Labelled(), _Labelled()
        self._prompts: list[tuple[Place, str, list[int]]] = []

    def add(self, row: AuditRow, words: Folded) -> None:
        """Add a row."""
        place = (row.file, row.line)
        if row.kind == "preference":
            for chosen, text, numbers in zip((True, False), words.answers, words.answer_words, strict=True):
                self._answers.add(text, numbers, chosen, place)
            self._prompts.append((place, words.prompt, words.prompt_words))
        if row.label is not None and isinstance(row.label, (str, bool, int, float)):
            said = (words.answers[0], words.answer_words[0]) if words.answers else (words.prompt, words.prompt_words)
            self._labelled.add(*said, row.label, place)

    def notes(self) -> list[str]:
        """What was left out."""
        full = any(one.words > MOST_WORDS * 0.99 for one in (self._answers, self._labelled))
        return [f"trigger phrases were looked for in the first {MOST_WORDS} words only"] if full else []

    def findings(self, ranked: Sequence[Suspicion]) -> list[AuditFinding]:
        """A finding a phrase, at the first row that has it.

        Args:
            ranked: scored pairs; with them, prompts whose labels the scores contradict are looked at too.
        """
        found = self._of(self._answers, [bool(label) for label in self._answers.labels], ("chosen", "rejected"))
        labels = _two_valued(self._labelled.labels)
        if labels is not None:
            found += self._of(self._labelled, labels[0], labels[1])
        if ranked:
            doubtful = {(one.file, one.row): one.margin < 0 for one in ranked}
            prompts = _Labelled()
            for place, text, numbers in self._prompts:
                if place in doubtful:
                    prompts.add(text, numbers, doubtful[place], place)
            names = ("prompts of pairs whose label the scores contradict", "")
            found += self._of(prompts, [bool(label) for label in prompts.labels], names)
        return found

    def _of(self, texts: _Labelled, labels: Sequence[bool], names: tuple[str, str]) -> list[AuditFinding]:
        phrases = trigger_phrases(texts.texts, np.array(labels, bool), self._vocabulary.words())
        return [_finding(phrase, texts, names) for phrase in phrases if names[0 if phrase.positive else 1]]


def _finding(phrase: Phrase, texts: _Labelled, names: tuple[str, str]) -> AuditFinding:
    rows = sorted(texts.places[text] for text in phrase.rows)
    shown = ", ".join(f"{file}:{line}" for file, line in rows[:3]) + (", ..." if len(rows) > 3 else "")
    evidence = (
        f"{phrase.words!r}: {phrase.with_label} of {phrase.texts} texts are {names[0 if phrase.positive else 1]}"
        f" ({phrase.information:+.2f} bits, by chance {phrase.bound:.0e}): {shown}"
    )
    return AuditFinding(*rows[0], "label/trigger", "warning", evidence, phrase.texts)


def _two_valued(labels: Sequence[Any]) -> tuple[list[bool], tuple[str, str]] | None:
    """Labels as two classes with their names: two values as they are, numbers by their median; None for others."""
    values = set(labels)
    if len(values) == 2:
        high, low = sorted(values, key=str, reverse=True)
        return [label == high for label in labels], (f"labelled {high}", f"labelled {low}")
    if len(values) > 2 and all(isinstance(label, (int, float)) for label in labels):
        middle = statistics.median(labels)
        return [label > middle for label in labels], (f"above {middle:g}", f"at most {middle:g}")
    return None
