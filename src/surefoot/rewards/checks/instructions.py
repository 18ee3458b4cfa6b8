"""Check ``instructions``: what an instruction asked for of words, case and format is done. Torch-free."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from surefoot.rewards.checks import counted, worded
from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options
from surefoot.rewards.checks.constraint import Constraint, read_constraints
from surefoot.rewards.checks.ifeval import from_ifeval
from surefoot.rewards.checks.options import Unreadable

_TYPES: Final[tuple[type[Constraint], ...]] = (
    counted.Words,
    counted.Sentences,
    counted.Paragraphs,
    counted.Keyword,
    counted.Keywords,
    counted.Letter,
    counted.CapitalWords,
    counted.Bullets,
    counted.NumberedItems,
    counted.Sections,
    counted.Placeholders,
    counted.Highlights,
    worded.Case,
    worded.NoCommas,
    worded.StartsWith,
    worded.EndsWith,
    worded.Quoted,
    worded.Title,
    worded.Postscript,
    worded.Json,
    worded.TwoResponses,
    worded.Language,
    worded.OneOf,
    worded.ParagraphStart,
    worded.Repeats,
)
KINDS: Final = {kind.kind: kind for kind in _TYPES}
"""Every kind of constraint by its name."""
IFEVAL_COLUMNS: Final = ("instruction_id_list", "kwargs")


class InstructionOptions(Options):
    """Options of check ``instructions``."""

    constraints: list[dict[str, Any]] = Field(default_factory=list)
    """Constraints of every row, each `{kind: ..., ...}`; those of the column come on top."""
    column: str | None = Field(None, min_length=1)
    """Column with a list of the row's own constraints."""
    data_format: Literal["own", "ifeval"] = "own"
    """`ifeval`: the rows have the columns `instruction_id_list` and `kwargs`, as IFEval's data do."""
    score: Literal["all", "share"] = "all"
    """`all`: 1 when every constraint holds, else 0; `share`: how many of them hold, divided by how many there are."""

    @field_validator("constraints")
    @classmethod
    def _readable(cls, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if entries:
            try:
                read_constraints(entries, KINDS)
            except Unreadable as error:
                raise ValueError(str(error)) from None
        return entries

    @model_validator(mode="after")
    def _something(self) -> InstructionOptions:
        if self.column is not None and self.data_format == "ifeval":
            raise ValueError("data_format: ifeval has columns of its own; leave column out")
        if not self.constraints and self.column is None and self.data_format == "own":
            raise ValueError("needs constraints, a column with constraints, or data_format: ifeval")
        return self


class InstructionCheck(Check[InstructionOptions]):
    """1 when all constraints hold; an empty response does nothing that was asked."""

    name: ClassVar[str] = "instructions"
    options_type: ClassVar[type[Options]] = InstructionOptions

    def __init__(self, options: InstructionOptions) -> None:
        super().__init__(options)
        self._fixed = read_constraints(options.constraints, KINDS) if options.constraints else []

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns with constraints."""
        if self.options.data_format == "ifeval":
            return IFEVAL_COLUMNS
        return (self.options.column,) if self.options.column is not None else ()

    def judge(self, answer: Answer) -> Judgement:
        """Try each constraint."""
        constraints = [*self._fixed, *self._own(answer)]
        if not answer.response.strip():
            return Judgement(0.0, "the response is empty")
        faults = [f"{c.kind}: {fault}" for c in constraints if (fault := c.fault(answer.response)) is not None]
        note = "; ".join(faults) or None
        if self.options.score == "share":
            return Judgement(1.0 - len(faults) / len(constraints), note)
        return Judgement(0.0 if faults else 1.0, note)

    def _own(self, answer: Answer) -> list[Constraint]:
        if not self.columns:
            return []
        values = [answer.column(name) for name in self.columns]
        try:
            return read_constraints(from_ifeval(*values) if len(values) == 2 else values[0], KINDS)
        except Unreadable as error:
            raise CannotJudge(f"column {self.columns[0]!r}: {error}") from None
