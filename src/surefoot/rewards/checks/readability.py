"""Check ``readability``: how hard a text is to read, by three classic formulas. Torch-free.

With W words, S sentences, Y syllables and C letters and digits:

- Flesch reading ease, higher is easier: ``206.835 - 1.015 W/S - 84.6 Y/W`` (Flesch 1948).
- Flesch-Kincaid grade: ``0.39 W/S + 11.8 Y/W - 15.59`` (Kincaid, Fishburne, Rogers and Chissom 1975).
- Automated readability index, a grade too: ``4.71 C/W + 0.5 W/S - 21.43`` (Smith and Senter 1967).

All were fitted to English. Syllables are estimated from spelling.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from surefoot.rewards.checks.check import Answer, Check, Judgement, Options
from surefoot.rewards.checks.segments import sentences, words

Formula = Literal["flesch", "flesch_kincaid", "ari"]

VOWELS: Final = re.compile(r"[aeiouyáéíóúàèìòùâêîôûäëïöüæœø]+")
SPLIT_VOWELS: Final = re.compile(
    r"i[aou]|(?<!p)eo|[aeo]y?ing|yi(?!ng)|ua|ue(?=[lt]\b)|ie(?=t(?:y|s?\b)|nc|nt)|crea(?=t[eio])|oe(?=[mt])|eu(?=m)"
    r"|(?<=[aeiouy][^aeiouy])ea\b|thm\b"
)
"""Where one more syllable is than groups of vowels: sc-i-ence, vid-e-o, pl-ay-ing, us-u-al, cr-e-ate, rhy-thm."""
TOGETHER: Final = re.compile(r"(?:[tsg]|(?<!^s)c)i(?=on|ous|al|an|en)|qu|gu(?=[aei])|eous\b")
SILENT: Final = re.compile(r"(?:[^aeiouyl]|[aeiouy]l)e$|[^aeiouytd]ed$|[^aeiouyscxzgh]es$|(?:sh|ch)e$|[aeo]gue$")


class ReadabilityOptions(Options):
    """Options of check ``readability``; at least one of the bounds."""

    formula: Formula = "flesch_kincaid"
    """`flesch` (ease, 100 is very easy, 30 hard), or `flesch_kincaid` or `ari` (US school grades)."""
    at_least: float | None = None
    """Lowest value that scores 1."""
    at_most: float | None = None
    """Highest value that scores 1."""
    margin: float = Field(0.0, ge=0)
    """Outside the bounds the score falls to 0 over this distance; 0: at once."""
    min_words: int = Field(20, ge=1)
    """A response of fewer words scores 0: the formulas say nothing about it."""

    @model_validator(mode="after")
    def _bounded(self) -> ReadabilityOptions:
        if self.at_least is None and self.at_most is None:
            raise ValueError("needs at_least or at_most: without a bound every text is right")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is more than at_most")
        return self


class ReadabilityCheck(Check[ReadabilityOptions]):
    """1 within the bounds."""

    name: ClassVar[str] = "readability"
    options_type: ClassVar[type[Options]] = ReadabilityOptions

    def judge(self, answer: Answer) -> Judgement:
        """Measure."""
        found = words(answer.response)
        if len(found) < self.options.min_words:
            return Judgement(0.0, f"{len(found)} words, too few to measure (min_words: {self.options.min_words})")
        value = readability(answer.response, self.options.formula)
        low, high = self.options.at_least, self.options.at_most
        return Judgement(
            within(value, low, high, self.options.margin),
            f"{self.options.formula} {value:.1f}{outside(value, low, high)}",
        )


def within(value: float, low: float | None, high: float | None, margin: float) -> float:
    """1 inside [low, high], falling to 0 over ``margin`` outside."""
    distance = max(0.0 if low is None else low - value, 0.0 if high is None else value - high, 0.0)
    if distance == 0:
        return 1.0
    return max(0.0, 1.0 - distance / margin) if margin else 0.0


def outside(value: float, low: float | None, high: float | None) -> str:
    """Which bound a value breaks, for a note; empty inside."""
    if low is not None and value < low:
        return f", at least {low:g} asked for"
    return f", at most {high:g} asked for" if high is not None and value > high else ""


def readability(text: str, formula: Formula) -> float:
    """The formula's value for a text with at least one word."""
    counted = Counter(words(text))
    total, sentence_count = counted.total(), max(1, len(sentences(text)))
    per_sentence = total / sentence_count
    if formula == "ari":
        letters = sum(sum(map(str.isalnum, word)) * n for word, n in counted.items())
        return 4.71 * letters / total + 0.5 * per_sentence - 21.43
    per_word = _syllables(counted) / total
    if formula == "flesch":
        return 206.835 - 1.015 * per_sentence - 84.6 * per_word
    return 0.39 * per_sentence + 11.8 * per_word - 15.59


def _syllables(counted: Mapping[str, int]) -> int:
    return sum(syllables(word) * n for word, n in counted.items())


@lru_cache(maxsize=1 << 16)
def syllables(word: str) -> int:
    """Syllables of an English word, estimated: groups of vowels, silent endings off, parted vowels on; at least 1."""
    plain = word.casefold()[:64]
    return sum(_syllables_of_part(part) for part in re.split(r"[-'’]", plain) if part) or 1


def _syllables_of_part(part: str) -> int:
    if part in ("s", "t", "d", "m", "ll", "re", "ve"):  # behind an apostrophe
        return 0
    count = len(VOWELS.findall(part))
    if count > 1 and SILENT.search(part):
        count -= 1
    joined = TOGETHER.sub("x", part)
    return max(1, count + len(SPLIT_VOWELS.findall(joined)))
