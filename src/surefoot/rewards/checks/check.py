"""What a check is: a rule that can be looked up decides how good a response is. Torch-free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

SHOWN: Final = 60
"""Characters of a response that a note shows."""
LONGEST_NOTE: Final = 400


class CannotJudge(Exception):
    """A response that could not be judged, which says nothing about how good it is. The text says why.

    Args:
        reason: a clause without a full stop.
        missing: the row has nothing to judge by: no such column, or null in it.
    """

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check sees of a trajectory.

    Attributes:
        response: the text to judge, without the closing stop token.
        prompt: the rendered prompt.
        columns: the other columns of the prompt's row.
        tokens: action tokens, the closing stop token among them.
    """

    response: str
    prompt: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0

    def column(self, name: str) -> Any:
        """The row's value.

        Raises:
            CannotJudge: the row lacks the column, or holds null there.
        """
        if self.columns.get(name) is None:
            raise CannotJudge(f"the row has nothing in column {name!r}", missing=True)
        return self.columns[name]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a check says.

    Attributes:
        value: the score; None: it could not be judged, ``note`` says why.
        note: why, None when there is nothing to say.
        missing: as in :class:`CannotJudge`.
    """

    value: float | None
    note: str | None = None
    missing: bool = False


class Options(BaseModel):
    """Options of every check."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    after: str | None = Field(None, min_length=1)
    """Judge only what follows the last such text; a response without it scores 0."""


AnyOptions = TypeVar("AnyOptions", bound=Options)


class Check(ABC, Generic[AnyOptions]):
    """A verifiable reward.

    Attributes:
        name: what ``target`` calls it.
        options_type: its options.
        isolated: whether a library does the judging that may take its time: such a check runs in a process of its own,
            under ``reward.timeout_s``.
    """

    name: ClassVar[str]
    options_type: ClassVar[type[Options]]
    isolated: ClassVar[bool] = False

    def __init__(self, options: AnyOptions) -> None:
        """May raise ConfigError or MissingExtra for what the options' types cannot say."""
        self.options = options

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the prompts must have."""
        return ()

    @abstractmethod
    def judge(self, answer: Answer) -> Judgement:
        """Judge a response.

        Raises:
            CannotJudge: it could not be judged.
        """

    def __call__(self, answer: Answer) -> Judgement:
        """As :meth:`judge`, of the part that option ``after`` leaves, and nothing is raised on purpose."""
        try:
            judged = self._judge_part(answer)
        except CannotJudge as error:
            judged = Judgement(None, str(error), error.missing)
        if judged.note is None or len(judged.note) <= LONGEST_NOTE:
            return judged
        return Judgement(judged.value, f"{judged.note[:LONGEST_NOTE]}...", judged.missing)

    def _judge_part(self, answer: Answer) -> Judgement:
        marker = self.options.after
        if marker is None:
            return self.judge(answer)
        _, found, rest = answer.response.rpartition(marker)
        if not found:
            return Judgement(0.0, f"nothing follows {marker!r}: the response does not hold it")
        return self.judge(Answer(rest, answer.prompt, answer.columns, answer.tokens))


def either(holds: bool, fault: str) -> Judgement:
    """1, or 0 with the reason."""
    return Judgement(1.0) if holds else Judgement(0.0, fault)


def shown(text: str) -> str:
    """A text as a note shows it: on one line, cut."""
    flat = " ".join(text[: 4 * SHOWN].split())
    cut = len(flat) > SHOWN or len(text) > 4 * SHOWN
    return repr(flat[:SHOWN]) + ("..." if cut else "")
