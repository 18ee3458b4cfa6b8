"""Check ``exact``: the response, or a part of it, is the expected answer. Torch-free."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options, shown
from surefoot.rewards.checks.extracting import last_box, last_line

QUOTES: Final = str.maketrans(dict.fromkeys("‘’‚‛′`´", "'") | dict.fromkeys("“”„‟«»″", '"'))
ARTICLES: Final = re.compile(r"^(?:the|an?)\s+")


class ExactOptions(Options):
    """Options of check ``exact``."""

    column: str = Field("answer", min_length=1)
    """Column with the expected answer: a text, a number, or a list of texts of which any one is right."""
    where: Literal["whole", "last_line", "boxed"] = "whole"
    r"""What is compared: the whole response, its last line that holds anything, or what its last `\boxed{}` holds."""
    ignore_case: bool = True
    """Whether letter case makes no difference."""
    ignore_punctuation: bool = False
    """Whether punctuation, and `a`, `an` and `the` at the start, make no difference."""


class ExactCheck(Check[ExactOptions]):
    """1 when the texts agree, up to Unicode's compatibility forms, kinds of quotes and runs of space."""

    name: ClassVar[str] = "exact"
    options_type: ClassVar[type[Options]] = ExactOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the answer."""
        return (self.options.column,)

    def judge(self, answer: Answer) -> Judgement:
        """Compare with each right answer."""
        expected = self._expected(answer.column(self.options.column))
        given = self._given(answer.response)
        if given is None:
            return Judgement(0.0, r"no \boxed{} in the response")
        if not given.strip():
            return Judgement(0.0, "the response is empty")
        if self._plain(given) in map(self._plain, expected):
            return Judgement(1.0)
        return Judgement(0.0, f"{shown(given)} is not {' or '.join(shown(text) for text in expected[:3])}")

    def _expected(self, value: Any) -> list[str]:
        several = value if isinstance(value, list | tuple) else [value]
        if not several or not all(isinstance(one, str | int | float) for one in several):
            raise CannotJudge(f"column {self.options.column!r} holds no text but {type(value).__name__} {value!r:.60}")
        if not all(str(one).strip() for one in several):
            raise CannotJudge(f"column {self.options.column!r} is empty")
        return [str(one) for one in several]

    def _given(self, response: str) -> str | None:
        if self.options.where == "boxed":
            return last_box(response)
        return last_line(response) if self.options.where == "last_line" else response

    def _plain(self, text: str) -> str:
        plain = " ".join(unicodedata.normalize("NFKC", text.translate(QUOTES)).split())
        if self.options.ignore_case:
            plain = plain.casefold()
        if self.options.ignore_punctuation:
            kept = "".join(" " if unicodedata.category(c).startswith("P") else c for c in plain)
            plain = ARTICLES.sub("", " ".join(kept.split()))
        return plain
