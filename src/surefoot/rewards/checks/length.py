"""Checks ``length`` and ``repetition``: how long a response is, and how often it says the same. Torch-free."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from surefoot.rewards.checks.check import Answer, Check, Judgement, Options, shown
from surefoot.rewards.checks.readability import outside, within
from surefoot.rewards.checks.segments import paragraphs, sentences, words


class LengthOptions(Options):
    """Options of check ``length``; at least one of the bounds."""

    unit: Literal["words", "characters", "sentences", "paragraphs", "tokens"] = "words"
    """What is counted; `tokens`: action tokens, the closing stop token among them, whatever `after` says."""
    at_least: int | None = Field(None, ge=0)
    """Lowest count that scores 1."""
    at_most: int | None = Field(None, ge=0)
    """Highest count that scores 1."""
    margin: int = Field(0, ge=0)
    """Outside the bounds the score falls to 0 over this many; 0: at once."""

    @model_validator(mode="after")
    def _bounded(self) -> LengthOptions:
        if self.at_least is None and self.at_most is None:
            raise ValueError("needs at_least or at_most: without a bound every length is right")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is more than at_most")
        return self


class LengthCheck(Check[LengthOptions]):
    """1 within the bounds; an empty response has a length too, 0."""

    name: ClassVar[str] = "length"
    options_type: ClassVar[type[Options]] = LengthOptions

    def judge(self, answer: Answer) -> Judgement:
        """Count."""
        o = self.options
        counted = {"words": words, "sentences": sentences, "paragraphs": paragraphs}
        if o.unit in counted:
            count = len(counted[o.unit](answer.response))
        else:
            count = answer.tokens if o.unit == "tokens" else len(answer.response.strip())
        low, high = o.at_least, o.at_most
        fault = outside(count, low, high)
        return Judgement(within(count, low, high, o.margin), f"{count} {o.unit}{fault}" if fault else None)


class RepetitionOptions(Options):
    """Options of check ``repetition``."""

    n: int = Field(3, ge=1, le=20)
    """Words (or characters) in a row that are compared."""
    unit: Literal["words", "characters"] = "words"
    """What is put in a row; characters for writing without spaces between words."""
    at_most: float | None = Field(None, ge=0, le=1)
    """Largest share of repeated n-grams that scores 1, every other 0. Null: the score is the share of distinct ones."""


class RepetitionCheck(Check[RepetitionOptions]):
    """Distinct n-grams divided by all n-grams: 1 where nothing is said twice."""

    name: ClassVar[str] = "repetition"
    options_type: ClassVar[type[Options]] = RepetitionOptions

    def judge(self, answer: Answer) -> Judgement:
        """Count n-grams."""
        text, n = answer.response.casefold(), self.options.n
        units = words(text) if self.options.unit == "words" else [c for c in text if not c.isspace()]
        if not units:
            return Judgement(0.0, "the response is empty")
        if len(units) <= n:
            return Judgement(1.0)
        counted = Counter(zip(*(islice(units, start, None) for start in range(n)), strict=False))
        repeated = 1.0 - len(counted) / counted.total()
        note = None
        if repeated:
            most, times = counted.most_common(1)[0]
            joined = (" " if self.options.unit == "words" else "").join(most)
            note = f"{repeated:.0%} of its {n}-grams are repetitions, {shown(joined)} {times} times"
        if self.options.at_most is None:
            return Judgement(1.0 - repeated, note)
        return Judgement(1.0 if repeated <= self.options.at_most else 0.0, note)
