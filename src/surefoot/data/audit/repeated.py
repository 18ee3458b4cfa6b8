"""Rows that repeat other rows of the same data: exactly, nearly, or with the label the other way round."""

from __future__ import annotations

import numpy as np

from surefoot.data.audit.duplicates import ALIKE, MIN_WORDS, RUN, Sketches, jaccard, near_duplicates, shared_runs
from surefoot.data.audit.findings import AuditFinding, Severity
from surefoot.data.audit.overlap import Folded, Side
from surefoot.data.audit.passages import AuditRow
from surefoot.data.audit.words import TextWords

Key = tuple[int, ...]
PARTS = 3


class Repeats:
    """Collects rows; says which are repeated once all are there.

    Args:
        side: has each row's words already when the row is added here.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._first: dict[Key, int] = {}
        self._findings: dict[int, AuditFinding] = {}
        # What is compared: a prompt, or what is trained on; and apart what must be alike then: prompt and both answers.
        self._told, self._parts = TextWords(), TextWords()
        self.pairs: list[tuple[str, int]] = []
        self._like_a_template = (0, 0)

    def add(self, row: AuditRow, words: Folded) -> None:
        """Add a row."""
        number = len(self._side.places) - 1
        is_pair = row.kind == "preference"
        if is_pair:
            self.pairs.append((row.file, row.line))
        self._told.add([n for answer in words.answer_words for n in answer] if row.answers else words.prompt_words)
        parts = [words.prompt_words, *words.answer_words] if row.answers else []
        for part in (*parts, *[()] * PARTS)[:PARTS]:
            self._parts.add(part)
        if not (words.prompt or any(words.answers)):
            return
        if is_pair and words.answers[0] == words.answers[1]:
            self._find(number, "label/no-difference", "chosen and rejected are the same text")
            return
        key = (hash(words.prompt), *map(hash, words.answers))
        turned = (key[0], *reversed(key[1:])) if is_pair else None
        if key in self._first:
            self._find(number, "duplicate/exact", f"the same as {self._side.shown(self._first[key])}")
        elif turned in self._first:
            earlier = self._side.shown(self._first[turned])
            self._find(number, "label/swapped", f"the pair of {earlier} with the label the other way round")
        self._first.setdefault(key, number)

    def _find(self, number: int, kind: str, evidence: str) -> None:
        severity: Severity = "error" if kind == "label/swapped" else "warning"
        self._findings[number] = AuditFinding(*self._side.places[number], kind, severity, evidence)

    def findings(self) -> list[AuditFinding]:
        """All repeated rows, near duplicates among them."""
        sketches = Sketches.of(self._told, shared_runs(self._told))
        long = np.diff(self._told.ends) >= MIN_WORDS
        self._like_a_template = int((long & ~sketches.compared).sum()), int(long.sum())
        for row, (earlier, similarity) in near_duplicates(sketches, self._parts_alike).items():
            if row not in self._findings:
                self._find(row, "duplicate/near", f"{similarity:.0%} like {self._side.shown(earlier)}")
        return [self._findings[row] for row in sorted(self._findings)]

    def notes(self) -> list[str]:
        """What was not compared; to be asked for after the findings."""
        few, long = self._like_a_template
        if 100 * few <= long:
            return []
        said = "are mostly runs of words that many rows share: a template, or many copies of one text"
        return [f"{few} of {long} longer texts {said}; near duplicates among them are not reported"]

    def _parts_alike(self, earlier: int, later: int) -> bool:
        """A common answer to two questions is no duplicate, nor is one chosen text beside two rejected ones."""
        return all(self._alike(PARTS * earlier + part, PARTS * later + part) for part in range(PARTS))

    def _alike(self, one: int, other: int) -> bool:
        first, second = self._parts.of(one), self._parts.of(other)
        if np.array_equal(first, second):
            return True
        if min(len(first), len(second)) < MIN_WORDS:
            return False
        runs = [np.unique(self._parts.grams(RUN, text, text + 1).hashes) for text in (one, other)]
        return jaccard(runs[0], runs[1]) >= ALIKE
