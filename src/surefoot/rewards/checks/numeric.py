"""Check ``numeric``: the response's number is the expected one. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options, either, shown
from surefoot.rewards.checks.extracting import last_box
from surefoot.rewards.checks.numbers import EXACT, DecimalMark, Number, find_numbers
from surefoot.rewards.checks.units import read_unit

WINDOW: Final = 10_000
"""Characters that are searched for the first or the last number."""
SOLUTION_MARK: Final = "####"
"""What stands before the answer in worked solutions, as GSM8K has them."""


class NumericOptions(Options):
    """Options of check ``numeric``."""

    column: str = Field("answer", min_length=1)
    r"""Column with the expected number: a number, or a text that holds one (if several, in a `\boxed{}` or behind
    `####`)."""
    where: Literal["auto", "boxed", "last", "first", "only"] = "auto"
    r"""Which number counts: in the last `\boxed{}`; the last or first of the text; the only one, several score 0;
    `auto`: boxed if there is a box, else the last."""
    tolerance: float = Field(0.0, ge=0)
    """Largest difference that still counts as right."""
    relative: float = Field(0.0, ge=0)
    """Largest difference as a share of the expected number; the larger allowance of the two counts."""
    percent: Literal["share", "points", "either"] = "share"
    """What 75% is: 0.75, or 75, or `either` (then 0.75% is right for 0.75 too)."""
    units: Literal["ignore", "compare"] = "ignore"
    """`compare`: where the expected number has a unit, so must the response's, the same or one that converts."""
    decimal: DecimalMark = "point"
    """Whether `1.5` (`point`) or `1,5` (`comma`) is one and a half; the other mark groups thousands."""


class NumericCheck(Check[NumericOptions]):
    """1 when the number agrees within the tolerance."""

    name: ClassVar[str] = "numeric"
    options_type: ClassVar[type[Options]] = NumericOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the number."""
        return (self.options.column,)

    def judge(self, answer: Answer) -> Judgement:
        """Find the number and compare."""
        expected = self._expected(answer.column(self.options.column))
        found = self._given(answer.response)
        if isinstance(found, str):
            return Judgement(0.0, found)
        if found.value is None:
            return Judgement(0.0, f"{shown(found.text)} can be read in more than one way, or is no number")
        assert expected.value is not None
        given_factor, expected_factor = Decimal(1), Decimal(1)
        if self.options.units == "compare" and expected.unit:
            given, wanted = read_unit(found.unit), read_unit(expected.unit)
            if not found.unit or given.kind != wanted.kind:
                return Judgement(0.0, f"the unit is {found.unit or 'missing'!r}, expected {expected.unit!r}")
            given_factor, expected_factor = given.factor, wanted.factor
        targets = [EXACT.multiply(value, expected_factor) for value in self._values(expected)]
        values = [EXACT.multiply(value, given_factor) for value in self._values(found)]
        right = any(self._close(value, target) for value in values for target in targets)
        hint = " (75% is read as 0.75: option percent)" if found.percent != expected.percent and not right else ""
        return either(right, f"{shown(found.text)} is not {shown(expected.text)}{hint}")

    def _expected(self, value: Any) -> Number:
        column = self.options.column
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = Decimal(repr(value))
            if not number.is_finite():
                raise CannotJudge(f"column {column!r} holds {value}")
            return Number(repr(value), number)
        if not isinstance(value, str):
            raise CannotJudge(f"column {column!r} holds no number but {type(value).__name__} {value!r:.60}")
        _, _, behind = value.rpartition(SOLUTION_MARK)
        box = last_box(value)
        found = list(islice(find_numbers(behind if box is None else box, decimal=self.options.decimal), 2))
        if len(found) != 1 or found[0].value is None:
            what = "more than one number" if len(found) > 1 else "no number that can be read in one way"
            raise CannotJudge(f"column {column!r} holds {what}: {shown(value)}")
        return found[0]

    def _given(self, response: str) -> Number | str:
        """The response's number, or why there is none."""
        where = self.options.where
        box = last_box(response) if where in ("auto", "boxed") else None
        if box is not None:
            return self._single(box, r"\boxed{}")
        if where == "boxed":
            return r"no \boxed{} in the response"
        if where == "only":
            return self._single(response, "the response")
        window = response[:WINDOW] if where == "first" else _tail(response)
        found = self._found(window, 1 if where == "first" else None)
        return found[-1] if found else f"no number in {'the response' if response.strip() else 'an empty response'}"

    def _single(self, text: str, place: str) -> Number | str:
        found = self._found(text, 2)
        if len(found) == 1:
            return found[0]
        return f"{place} holds {'more than one number' if found else 'no number'}"

    def _found(self, text: str, count: int | None) -> Sequence[Number]:
        return list(islice(find_numbers(text, decimal=self.options.decimal), count))

    def _values(self, number: Number) -> list[Decimal]:
        """A percentage as the options read it; another number as it is."""
        assert number.value is not None
        points = EXACT.scaleb(number.value, 2)
        if not number.percent or self.options.percent == "share":
            return [number.value]
        return [points] if self.options.percent == "points" else [number.value, points]

    def _close(self, value: Decimal, expected: Decimal) -> bool:
        allowed = max(
            Decimal(repr(self.options.tolerance)),
            EXACT.multiply(Decimal(repr(self.options.relative)), expected.copy_abs()),
        )
        return EXACT.subtract(value, expected).copy_abs() <= allowed


def _tail(text: str) -> str:
    """The end of a text, from a space on, so that no number is cut in two."""
    if len(text) <= WINDOW:
        return text
    tail = text[-WINDOW:]
    return tail[tail.find(" ") + 1 :]
