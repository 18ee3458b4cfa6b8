"""What an instruction constraint is, and reading lists of them. Torch-free."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.rewards.checks.options import Unreadable, nearest, read_options


class Constraint(BaseModel):
    """One thing that an instruction asked for.

    Attributes:
        kind: how data call it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    kind: ClassVar[str]

    @abstractmethod
    def fault(self, text: str) -> str | None:
        """Why a response does not do what was asked; None when it does."""


class Counted(Constraint):
    """A constraint on how many there are of something."""

    at_least: int | None = Field(None, ge=0)
    """Fewest."""
    at_most: int | None = Field(None, ge=0)
    """Most."""
    exactly: int | None = Field(None, ge=0)
    """This many."""
    unbounded: ClassVar[bool] = False

    @model_validator(mode="after")
    def _bounded(self) -> Counted:
        if self.exactly is not None and (self.at_least is not None or self.at_most is not None):
            raise ValueError("exactly stands alone, without at_least and at_most")
        if not self.unbounded and self.exactly is None and self.at_least is None and self.at_most is None:
            raise ValueError("needs at_least, at_most or exactly")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is more than at_most")
        return self

    @abstractmethod
    def count(self, text: str) -> int:
        """How many there are."""

    @property
    def what(self) -> str:
        """What is counted, in the plural."""
        return self.kind.replace("_", " ")

    def fault(self, text: str) -> str | None:
        """Compare the count with the bounds."""
        count = self.count(text)
        for bound, word, broken in (
            (self.exactly, "exactly", count != self.exactly),
            (self.at_least, "at least", count < (self.at_least or 0)),
            (self.at_most, "at most", self.at_most is not None and count > self.at_most),
        ):
            if bound is not None and broken:
                return f"{count} {self.what}, {word} {bound} asked for"
        return None


def read_constraints(entries: Any, kinds: Mapping[str, type[Constraint]]) -> list[Constraint]:
    """Constraints from a list of objects with ``kind`` and the kind's own keys; keys that hold null are left out.

    Raises:
        Unreadable: with the number of the first entry that cannot be read, and why.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise Unreadable("needs a list of constraints with at least one in it")
    return [_read(number, entry, kinds) for number, entry in enumerate(entries, start=1)]


def _read(number: int, entry: Any, kinds: Mapping[str, type[Constraint]]) -> Constraint:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("kind"), str):
        raise Unreadable(f"constraint {number} is no object with a kind")
    kind = entry["kind"]
    if kind not in kinds:
        raise Unreadable(f"constraint {number}: unknown kind {kind!r}, {nearest(kind, sorted(kinds))}")
    given = {key: value for key, value in entry.items() if key != "kind" and value is not None}
    try:
        return read_options(kinds[kind], given)
    except Unreadable as error:
        raise Unreadable(f"constraint {number} ({kind}): {error}") from None
