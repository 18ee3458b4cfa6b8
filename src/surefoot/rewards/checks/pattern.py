"""Check ``regex``: a regular expression is found, is absent, or is counted. Torch-free.

It runs under a time limit of its own: a pattern that tries too many ways fails the row and never holds up the run.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, Literal

import regex
from pydantic import Field, model_validator

from surefoot.errors import ConfigError
from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options, shown

MOST: Final = 1000
"""Matches that are counted at most."""
UNREADABLE: Final = (regex.error, RecursionError, OverflowError)
FLAGS: Final = {"ignore_case": regex.IGNORECASE, "multiline": regex.MULTILINE, "dotall": regex.DOTALL}


class RegexOptions(Options):
    """Options of check ``regex``."""

    pattern: str | None = Field(None, min_length=1)
    """The pattern, in the syntax of the `regex` package (Python's, and more); or `column`, one of the two."""
    column: str | None = Field(None, min_length=1)
    """Column with a pattern of the row's own."""
    score: Literal["present", "absent", "count"] = "present"
    """1 for a response with a match, 1 for one without, or the number of matches, not counting `free` ones."""
    free: Annotated[int, Field(ge=0)] | str = 0
    """With `score: count`: this many matches cost nothing; or the column that holds their number."""
    match: Literal["search", "whole"] = "search"
    """Anywhere in the response, or the whole of it, space at its ends aside."""
    flags: list[Literal["ignore_case", "multiline", "dotall"]] = Field(default_factory=list)
    """How the pattern is read: `ignore_case`; `multiline`: ^ and $ at each line; `dotall`: a dot matches a line end."""
    timeout_s: float = Field(0.25, gt=0, le=60)
    """Limit for a response; what takes longer is a failed score."""

    @model_validator(mode="after")
    def _one_pattern(self) -> RegexOptions:
        if (self.pattern is None) == (self.column is None):
            raise ValueError("needs a pattern or a column with patterns, and not both")
        return self


class RegexCheck(Check[RegexOptions]):
    """Whether, or how often, a pattern matches."""

    name: ClassVar[str] = "regex"
    options_type: ClassVar[type[Options]] = RegexOptions

    def __init__(self, options: RegexOptions) -> None:
        super().__init__(options)
        self._flags = sum({FLAGS[name] for name in options.flags})
        if options.pattern is not None:
            try:
                _compiled(options.pattern, self._flags)
            except UNREADABLE as error:
                raise ConfigError(
                    "the pattern is no regular expression", got=f"{options.pattern}: {error}", hint="quote it in YAML"
                ) from None

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with patterns, and that with the number of free matches."""
        free = self.options.free
        return tuple(name for name in (self.options.column, free) if isinstance(name, str))

    def judge(self, answer: Answer) -> Judgement:
        """Search."""
        pattern = self._pattern(answer)
        text = answer.response.strip() if self.options.match == "whole" else answer.response
        free = self._free(answer)
        try:
            found = self._matches(pattern, text)
        except TimeoutError:
            raise CannotJudge(f"the pattern took longer than {self.options.timeout_s:g} s") from None
        if self.options.score == "count":
            over = float(max(0, len(found) - free))
            return Judgement(over, f"{len(found)} matches, {free} free" if over else None)
        if self.options.score == "absent":
            return Judgement(0.0, f"holds {shown(found[0])}") if found else Judgement(1.0)
        return Judgement(1.0) if found else Judgement(0.0, f"no match of {shown(pattern.pattern)}")

    def _pattern(self, answer: Answer) -> Any:
        column = self.options.column
        text = self.options.pattern if column is None else answer.column(column)
        if not isinstance(text, str) or not text:
            raise CannotJudge(f"column {column!r} holds no pattern but {text!r:.60}")
        try:
            return _compiled(text, self._flags)
        except UNREADABLE as error:
            raise CannotJudge(f"column {column!r} holds no regular expression: {error}") from None

    def _matches(self, pattern: Any, text: str) -> list[str]:
        limit = self.options.timeout_s
        if self.options.match == "whole":
            whole = pattern.fullmatch(text, timeout=limit)
            return [whole[0]] if whole else []
        most = MOST if self.options.score == "count" else 1
        return [found[0] for found in islice(pattern.finditer(text, timeout=limit), most)]

    def _free(self, answer: Answer) -> int:
        free = self.options.free
        if not isinstance(free, str):
            return free
        value = answer.column(free)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise CannotJudge(f"column {free!r} holds no count but {value!r:.60}")
        return value


@lru_cache(maxsize=512)
def _compiled(pattern: str, flags: int) -> Any:
    return regex.compile(pattern, flags)
