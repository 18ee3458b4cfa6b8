"""Constraints on how many there are: words, sentences, bullets, keywords and so on. Torch-free."""

from __future__ import annotations

import re
from typing import ClassVar, Final, Literal

from pydantic import Field, field_validator

from surefoot.rewards.checks.constraint import Constraint, Counted
from surefoot.rewards.checks.segments import BULLET, NUMBERED, paragraphs, sentences, words

PLACEHOLDER: Final = re.compile(r"\[[^\[\]\n]{1,200}\]")
HIGHLIGHT: Final = re.compile(r"(?<!\*)\*\*?(?![\s*])[^*\n]{1,1000}(?<!\s)\*\*?(?!\*)")


class Words(Counted):
    """Words: runs of letters and digits, with apostrophes and hyphens inside."""

    kind: ClassVar[str] = "words"

    def count(self, text: str) -> int:
        """Count words."""
        return len(words(text))


class Sentences(Counted):
    """Sentences."""

    kind: ClassVar[str] = "sentences"

    def count(self, text: str) -> int:
        """Count sentences."""
        return len(sentences(text))


class Paragraphs(Counted):
    """Paragraphs."""

    kind: ClassVar[str] = "paragraphs"
    divider: Literal["blank", "stars"] = "blank"
    """What stands between: an empty line, or a line with `***`."""

    def count(self, text: str) -> int:
        """Count paragraphs."""
        return len(paragraphs(text, self.divider))


class Keyword(Counted):
    """How often a keyword occurs, as whole words, in any case; at least once without bounds."""

    kind: ClassVar[str] = "keyword"
    unbounded: ClassVar[bool] = True
    keyword: str = Field(min_length=1)
    """The word or phrase."""

    @property
    def what(self) -> str:
        """The keyword."""
        return f"times {self.keyword!r}"

    def count(self, text: str) -> int:
        """Count the keyword."""
        return occurrences(self.keyword, text)

    def fault(self, text: str) -> str | None:
        """Without bounds: it must occur."""
        bounded = any(bound is not None for bound in (self.at_least, self.at_most, self.exactly))
        if bounded:
            return super().fault(text)
        return None if self.count(text) else f"{self.keyword!r} does not occur"


class Letter(Counted):
    """How often a letter occurs, in any case."""

    kind: ClassVar[str] = "letter"
    letter: str = Field(min_length=1, max_length=1)
    """The letter."""

    @property
    def what(self) -> str:
        """The letter."""
        return f"times the letter {self.letter!r}"

    def count(self, text: str) -> int:
        """Count the letter."""
        return text.casefold().count(self.letter.casefold())


class CapitalWords(Counted):
    """Words all in capitals, of at least one letter: `A` and `I` are some."""

    kind: ClassVar[str] = "capital_words"

    def count(self, text: str) -> int:
        """Count words in capitals."""
        return sum(word.isupper() for word in words(text))


class Bullets(Counted):
    """Lines that begin with `*`, `-`, `+` or a bullet, and space."""

    kind: ClassVar[str] = "bullets"

    def count(self, text: str) -> int:
        """Count bullets."""
        return len(BULLET.findall(text))


class NumberedItems(Counted):
    """Lines that begin with a number and a full stop or bracket; they must count up from 1 by one."""

    kind: ClassVar[str] = "numbered_items"

    def count(self, text: str) -> int:
        """Count items."""
        return len(NUMBERED.findall(text))

    def fault(self, text: str) -> str | None:
        """The count, and the order."""
        numbers = [int(re.sub(r"\D", "", mark)) for mark in NUMBERED.findall(text)]
        wrong = next((n for n, number in enumerate(numbers, start=1) if number != n), None)
        in_order = None if wrong is None else f"item {wrong} is numbered {numbers[wrong - 1]}"
        return super().fault(text) or in_order


class Sections(Counted):
    """Lines that begin with a word and a number, as `Section 1`, or Markdown headings."""

    kind: ClassVar[str] = "sections"
    marker: str = Field("Section", min_length=1)
    """What each section begins with, before its number; `#` for Markdown headings."""

    def count(self, text: str) -> int:
        """Count sections."""
        if self.marker == "#":
            return len(re.findall(r"^#{1,6}[ \t]+\S", text, re.MULTILINE))
        decoration = r"^[ \t]*(?:#{1,6}[ \t]+)?[*_]{0,2}"
        return len(re.findall(rf"{decoration}{re.escape(self.marker)}\s?\d", text, re.MULTILINE | re.IGNORECASE))


class Placeholders(Counted):
    """Placeholders in square brackets, as `[name]`."""

    kind: ClassVar[str] = "placeholders"

    def count(self, text: str) -> int:
        """Count placeholders."""
        return len(PLACEHOLDER.findall(text))


class Highlights(Counted):
    """Parts between single or double stars, as `*this*`."""

    kind: ClassVar[str] = "highlights"

    def count(self, text: str) -> int:
        """Count highlights."""
        return len(HIGHLIGHT.findall(text))


class Keywords(Constraint):
    """Words or phrases that must all occur, or must not, as whole words, in any case."""

    kind: ClassVar[str] = "keywords"
    present: list[str] = Field(default_factory=list)
    """All of these occur."""
    absent: list[str] = Field(default_factory=list)
    """None of these occurs."""

    @field_validator("present", "absent")
    @classmethod
    def _texts(cls, texts: list[str]) -> list[str]:
        if not all(text.strip() for text in texts):
            raise ValueError("a keyword is empty")
        return texts

    def fault(self, text: str) -> str | None:
        """The first keyword that breaks the constraint."""
        if not self.present and not self.absent:
            return None
        lacking = [word for word in self.present if not occurrences(word, text)]
        if lacking:
            return f"{lacking[0]!r} does not occur"
        found = [word for word in self.absent if occurrences(word, text)]
        return f"{found[0]!r} occurs" if found else None


def occurrences(phrase: str, text: str) -> int:
    """How often a phrase stands in a text, in any case, with no letter or digit touching it."""
    parts = r"\s+".join(map(re.escape, phrase.casefold().split()))
    return len(re.findall(rf"(?<![^\W_]){parts}(?![^\W_])", text.casefold()))
