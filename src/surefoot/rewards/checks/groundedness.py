"""Check ``groundedness``: what the response says stands, word by word, in the sources. Torch-free.

Words that stand in the sources can still be put together into something false, and a copy of the sources is perfectly
grounded: this is one term of a reward, next to one for the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from typing import ClassVar, Final, Literal

from pydantic import Field, field_validator

from surefoot.rewards.checks.check import Answer, Check, Judgement, Options, shown
from surefoot.rewards.checks.citations import MARK
from surefoot.rewards.checks.languages import PROFILES
from surefoot.rewards.checks.numbers import DecimalMark, find_numbers
from surefoot.rewards.checks.options import nearest
from surefoot.rewards.checks.segments import LIST_MARK, sentences, words
from surefoot.rewards.checks.sources import read_sources

DIGIT: Final = re.compile(r"\d")
LONGEST_CHUNK: Final = 100
SHOWN: Final = 5
ENDINGS: Final = re.compile(r"(?:'s|’s|ies|es|s|ing|ed|y|e)$")


class GroundednessOptions(Options):
    """Options of check ``groundedness``."""

    sources: str = Field("sources", min_length=1)
    """Column with the sources, or `prompt` where the prompt itself is the source."""
    numbers: Literal["must", "count", "ignore"] = "must"
    """A number that no source holds: the score is 0; it counts as a word that is not there; or it is not looked at."""
    names: Literal["must", "count"] = "count"
    """The same for capitalised words inside a sentence."""
    at_least: float | None = Field(None, ge=0, le=1)
    """With it the score is 1 or 0: whether the share is at least this. Null: the score is the share."""
    language: str = "en"
    """Whose small words do not count; English words are compared without their endings."""
    decimal: DecimalMark = "point"
    """How numbers are written, in sources and response."""
    min_words: int = Field(1, ge=1)
    """A response with fewer different content words and numbers scores 0."""

    @field_validator("language")
    @classmethod
    def _known(cls, code: str) -> str:
        if code not in PROFILES:
            raise ValueError(f"no small words are known of {code!r}, {nearest(code, list(PROFILES))}")
        return code


class GroundednessCheck(Check[GroundednessOptions]):
    """The share of the response's different content words and numbers that the sources hold."""

    name: ClassVar[str] = "groundedness"
    options_type: ClassVar[type[Options]] = GroundednessOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the sources."""
        return () if self.options.sources == "prompt" else (self.options.sources,)

    def judge(self, answer: Answer) -> Judgement:
        """Look each word and number up."""
        sources = "\n".join(source.text for source in read_sources(answer, self.options.sources))
        text = LIST_MARK.sub("", MARK.sub(" ", answer.response))
        known_words, known_numbers = set(self._content(sources)), self._numbers(sources)
        said, numbers = self._content(text), self._numbers(text) if self.options.numbers != "ignore" else {}
        total, least = len(said) + len(numbers), self.options.min_words
        if total < least:
            return Judgement(0.0, f"{total} different content words, at least {least} asked for")
        new = {word: said[word] for word in said if word not in known_words}
        invented = {value: number for value, number in numbers.items() if value not in known_numbers}
        if invented and self.options.numbers == "must":
            return Judgement(0.0, f"number in no source: {_listed(invented.values())}")
        names = _names(text)
        if self.options.names == "must" and (unknown := [word for word in new.values() if word in names]):
            return Judgement(0.0, f"name in no source: {_listed(unknown)}")
        share = 1.0 - (len(new) + len(invented)) / total
        missing = [*new.values(), *invented.values()]
        note = f"{share:.0%} in the sources, not: {_listed(missing)}" if missing else None
        if self.options.at_least is None:
            return Judgement(share, note)
        return Judgement(1.0 if share >= self.options.at_least else 0.0, note)

    def _content(self, text: str) -> dict[str, str]:
        """Content words by their stem, each as it first stood."""
        small = set(PROFILES[self.options.language].split())
        found: dict[str, str] = {}
        for word in dict.fromkeys(words(text)):
            plain = word.casefold()
            if len(plain) > 2 and plain not in small and not any(c.isdigit() for c in plain):
                found.setdefault(self._stem(plain), word)
        return found

    def _stem(self, word: str) -> str:
        if self.options.language != "en":
            return word
        short = ENDINGS.sub("", word)
        return short if len(short) > 2 else word

    def _numbers(self, text: str) -> dict[Decimal | str, str]:
        """Numbers by their value, and by their text where they have none (dates, versions), as they stood."""
        found: dict[Decimal | str, str] = {}
        for chunk in dict.fromkeys(text.split()):
            if len(chunk) > LONGEST_CHUNK or not DIGIT.search(chunk):
                continue
            if chunk.isascii() and chunk.isdigit():
                found[Decimal(chunk)] = chunk
            else:
                for number in islice(find_numbers(chunk, decimal=self.options.decimal), LONGEST_CHUNK):
                    found[number.text if number.value is None else number.value] = number.text
        return found


def _names(text: str) -> set[str]:
    """Capitalised words that do not begin a sentence."""
    return {word for sentence in sentences(text) for word in words(sentence)[1:] if word[0].isupper()}


def _listed(found: Iterable[str]) -> str:
    entries = list(found)
    more = f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return ", ".join(map(shown, entries[:SHOWN])) + more
