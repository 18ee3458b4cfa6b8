"""Check ``language``: the response is written in the language asked for. Torch-free."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options
from surefoot.rewards.checks.languages import BY_SCRIPT, LANGUAGES, UNKNOWN, detect
from surefoot.rewards.checks.options import nearest


class LanguageOptions(Options):
    """Options of check ``language``."""

    language: str | None = None
    """ISO 639-1 code, as `en` or `de`; or `column`, one of the two."""
    column: str | None = Field(None, min_length=1)
    """Column with the code of the row's own language."""
    unknown: float | None = Field(0.0, ge=0, le=1)
    """Score of a text too short or too mixed to tell; null: it is a failed score."""
    max_foreign: float = Field(0.1, ge=0, le=1)
    """Largest share of letters in scripts that the language is not written in."""

    @field_validator("language")
    @classmethod
    def _known(cls, code: str | None) -> str | None:
        if code is not None and code not in LANGUAGES:
            raise ValueError(f"{code!r} is no language that can be told here, {nearest(code, list(LANGUAGES))}")
        return code

    @model_validator(mode="after")
    def _one(self) -> LanguageOptions:
        if (self.language is None) == (self.column is None):
            raise ValueError("needs a language or a column with languages, and not both")
        return self


class LanguageCheck(Check[LanguageOptions]):
    """1 for the language asked for, 0 for another."""

    name: ClassVar[str] = "language"
    options_type: ClassVar[type[Options]] = LanguageOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the language."""
        return (self.options.column,) if self.options.column is not None else ()

    def judge(self, answer: Answer) -> Judgement:
        """Tell the language."""
        wanted = self.options.language
        if self.options.column is not None:
            wanted = answer.column(self.options.column)
            if wanted not in LANGUAGES:
                raise CannotJudge(f"column {self.options.column!r} holds {wanted!r:.40}, which cannot be told here")
        assert wanted is not None
        if not answer.response.strip():
            return Judgement(0.0, "the response is empty")
        found = detect(answer.response)
        foreign = {script: share for script, share in found.scripts.items() if script not in scripts_of(wanted)}
        if found.code == UNKNOWN and sum(foreign.values()) <= 0.5:
            return Judgement(self.options.unknown, f"language unknown: {found.reason}")
        if found.code != wanted:
            return Judgement(0.0, f"language {found.code}, not {wanted}: {found.reason}")
        if (share := sum(foreign.values())) > self.options.max_foreign:
            return Judgement(0.0, f"{share:.0%} of the letters are {', '.join(foreign).lower()}")
        return Judgement(1.0)


def scripts_of(language: str) -> frozenset[str]:
    """The scripts a language is written in; Japanese and Korean take Chinese characters too."""
    own = {script for script, codes in BY_SCRIPT.items() if language in codes}
    return frozenset(own | ({"CJK"} if language in ("ja", "ko") else set()))
