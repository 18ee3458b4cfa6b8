"""Check ``citations``: marks like [1] lead to given sources, sentences have one, quotations occur. Torch-free.

It looks at form only: whether the cited source says what the sentence says, it cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from pydantic import Field

from surefoot.rewards.checks.check import Answer, Check, Judgement, Options, shown
from surefoot.rewards.checks.segments import sentences, words
from surefoot.rewards.checks.sources import Source, flat, read_sources

MARK: Final = re.compile(r"\[\^?([^\[\]\n]{1,80})\](?![(:])")
LEADING_MARKS: Final = re.compile(r"\s*(?:\[\^?[^\[\]\n]{1,80}\](?![(:])[,;]?\s*)+[.]?")
RANGE: Final = re.compile(r"(\d{1,4})\s*[-–]\s*(\d{1,4})")
QUOTED: Final = re.compile(r"“([^“”]{1,2000})”|\"([^\"\n]{1,2000})\"|«([^«»]{1,2000})»|„([^„“”]{1,2000})[“”]")
MOST_FAULTS: Final = 3


class CitationOptions(Options):
    """Options of check ``citations``."""

    sources: str = Field("sources", min_length=1)
    """Column with the sources, or `prompt` where the prompt itself is the one source."""
    need: Literal["all", "numbers", "none"] = "all"
    """Sentences that need a mark: all, those with a number in them, or none. Questions, lines that end in a colon and
    sentences of fewer than `min_words` words never do."""
    min_words: int = Field(4, ge=1)
    """Words a sentence has before it needs a mark."""
    min_quote_words: int = Field(4, ge=1)
    """Words a quotation has before it is looked up; shorter ones may be a title or irony."""
    score: Literal["all", "share"] = "all"
    """`all`: 1 when nothing is wrong, else 0; `share`: sound marks, sentences and quotations divided by all of them."""


class CitationCheck(Check[CitationOptions]):
    """1 when every mark has a source, every sentence in need a mark, and every quotation occurs in a source."""

    name: ClassVar[str] = "citations"
    options_type: ClassVar[type[Options]] = CitationOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the sources."""
        return () if self.options.sources == "prompt" else (self.options.sources,)

    def judge(self, answer: Answer) -> Judgement:
        """Check marks, sentences and quotations."""
        sources = read_sources(answer, self.options.sources)
        text = answer.response
        if not text.strip():
            return Judgement(0.0, "the response is empty")
        known = {source.id.casefold() for source in sources}
        findings = [*_marks(text, known), *self._uncited(text, known), *self._quotations(text, sources)]
        faults = [fault for fault in findings if fault is not None]
        if not findings:
            nothing = self.options.need == "none"
            return Judgement(1.0 if nothing else 0.0, None if nothing else "no sentence that could be cited for")
        more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        note = "; ".join(faults[:MOST_FAULTS]) + more if faults else None
        if self.options.score == "share":
            return Judgement(1.0 - len(faults) / len(findings), note)
        return Judgement(0.0 if faults else 1.0, note)

    def _uncited(self, text: str, known: set[str]) -> Iterator[str | None]:
        for sentence in with_their_marks(text):
            if not self._needs_mark(sentence):
                continue
            # A mark without a source is a fault of its own: the sentence is not blamed again.
            yield (
                None
                if any(_names(mark[1], known) for mark in MARK.finditer(sentence))
                else (f"no citation in {shown(sentence)}")
            )

    def _needs_mark(self, sentence: str) -> bool:
        plain = MARK.sub("", sentence).strip()
        if self.options.need == "none" or plain.endswith(("?", ":")) or plain.startswith("#"):
            return False
        if self.options.need == "numbers" and not any(c.isdigit() for c in re.sub(r"^\s*\d+[.)]\s", "", plain)):
            return False
        return len(words(plain)) >= self.options.min_words

    def _quotations(self, text: str, sources: list[Source]) -> Iterator[str | None]:
        for found in QUOTED.finditer(text):
            quotation = next(group for group in found.groups() if group is not None)
            looked_up = flat(MARK.sub(" ", quotation))
            if len(looked_up.split()) < self.options.min_quote_words:
                continue
            occurs = any(looked_up in flat(source.text) for source in sources)
            yield None if occurs else f"in no source: {shown(quotation)}"


def with_their_marks(text: str) -> list[str]:
    """The sentences; a mark behind a full stop belongs to the sentence before it."""
    found: list[str] = []
    for sentence in sentences(text):
        leading = LEADING_MARKS.match(sentence) if found else None
        if leading is not None:
            found[-1] += " " + leading[0].strip()
        if rest := sentence[leading.end() if leading else 0 :].strip():
            found.append(rest)
    return found


def _marks(text: str, known: set[str]) -> Iterator[str | None]:
    for found in MARK.finditer(text):
        for name in _names(found[1], known):
            yield None if name in known else f"[{name}] is no source (there are {', '.join(sorted(known)[:5])})"


def _names(inside: str, known: set[str]) -> list[str]:
    """The sources that a mark names; empty when the brackets hold something else, as in ``[sic]``."""
    names: list[str] = []
    for part in re.split(r"\s*[,;]\s*", inside.strip().casefold()):
        if part in known or part.isdigit():
            names.append(part)
        elif (numbers := RANGE.fullmatch(part)) and 0 <= int(numbers[2]) - int(numbers[1]) < 100:
            names += [str(n) for n in range(int(numbers[1]), int(numbers[2]) + 1)]
        else:
            return []
    return names
