"""Reading what a reward function returned for a batch into scores.

Four kinds of entries are understood, one kind per call (None may stand anywhere and is a failed score):

- a number: the score;
- a dict of numbers: named terms, logged as ``TERM_name``; the score is their sum; a text under ``note`` says why;
- a list of numbers, one per action token (the closing stop token is one of them);
- a list of spans ``(start, end, reward)``, in characters of the completion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.errors import RewardError
from surefoot.records import Score, Trajectory
from surefoot.rewards.placing import Misplaced, Offsets, place_spans, place_tokens, usable
from surefoot.rewards.worker import NOTE

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Reader:
    """How the answers of one term are read.

    Attributes:
        term: the term's name.
        function: what to call the function in messages.
        offsets: finds the characters that tokens stand for; needed for spans only.
    """

    term: str
    function: str
    offsets: Offsets | None = None

    def failed(self, reason: str) -> Score:
        """The Score of a row that could not be scored."""
        return Score(None, reason, {self.term: None})

    def read(self, answer: Any, trajectories: Sequence[Trajectory]) -> list[Score]:
        """One Score per trajectory.

        Args:
            answer: what the function returned, as plain lists, dicts, floats and None.
            trajectories: the rows it was called with.
        Raises:
            RewardError: the answer is no list, its length or a row's is wrong, or rows are of different kinds.
        """
        if not isinstance(answer, list):
            shown = "None" if answer is None else f"a single {'dict' if isinstance(answer, dict) else 'number'}"
            raise RewardError(
                f"reward function {self.function} must return a list with one entry per completion",
                got=f"{shown} for {len(trajectories)} completions",
                hint="is a return missing?" if answer is None else "return a list",
            )
        if len(answer) != len(trajectories):
            raise RewardError(
                f"reward function {self.function} returned the wrong number of rewards",
                got=f"{len(answer)} for {len(trajectories)} completions",
                allowed=f"exactly {len(trajectories)}, in order",
                hint="return None for a completion that cannot be scored; nothing is repeated or cut off here",
            )
        kind = self._kind(answer)
        return [self._row(n, kind, entry, t) for n, (entry, t) in enumerate(zip(answer, trajectories, strict=True))]

    def _kind(self, answer: Sequence[Any]) -> str:
        kinds = {_kind_of(entry) for entry in answer if entry is not None}
        if "unknown" in kinds:
            row = next(n for n, entry in enumerate(answer) if entry is not None and _kind_of(entry) == "unknown")
            raise RewardError(
                f"reward function {self.function} returned an entry that cannot be read",
                got=f"{answer[row]!r} for completion {row}"[:300],
                allowed="a number, a dict of numbers, one number per action token, or (start, end, reward) spans",
            )
        if "empty" in kinds:  # no numbers for no tokens, or no spans in this text: as the other rows say
            kinds.discard("empty")
            kinds |= set() if kinds == {"tokens"} else {"spans"}
        if len(kinds) > 1:
            raise RewardError(
                f"reward function {self.function} returned different kinds of rewards in one call",
                got=", ".join(sorted(kinds)),
                allowed="one kind per call, and None for a completion that cannot be scored",
            )
        return next(iter(kinds), "numbers")

    def _row(self, row: int, kind: str, entry: Any, trajectory: Trajectory) -> Score:
        if entry is None:
            return self.failed("returned None")
        if kind == "numbers":
            return Score(entry, None, {self.term: entry}) if usable(entry) else self.failed(f"returned {entry}")
        if kind == "named terms":
            return self._named(entry)
        try:
            if kind == "tokens":
                placed = self._tokens(row, entry, trajectory)
            else:
                placed = self._spans(entry, trajectory)
        except Misplaced as error:
            return self.failed(str(error))
        return Score(0.0, None, {self.term: math.fsum(placed)}, placed)

    def _named(self, given: Mapping[str, Any]) -> Score:
        note: str | None = given[NOTE] if isinstance(given.get(NOTE), str) else None
        entry: dict[str, float | None] = {n: v for n, v in given.items() if note is None or n != NOTE}
        if not all(NAME.fullmatch(name) for name in entry):
            raise RewardError(
                f"reward function {self.function} named a term so that it cannot be logged",
                got=", ".join(map(repr, entry)),
                allowed="letters, digits, _ and -",
            )
        sound = {n: v if v is not None and usable(v) else None for n, v in entry.items()}
        terms = {f"{self.term}_{n}": v for n, v in sound.items()}
        bad = [n for n, v in sound.items() if v is None]
        if bad or not entry:
            reason = f"term {bad[0]!r} is {entry[bad[0]]}" if bad else "returned no terms"
            return Score(None, reason if note is None else f"{reason}: {note}", {self.term: None, **terms})
        total = math.fsum(v for v in sound.values() if v is not None)
        return Score(total, None, {self.term: total, **terms}, note=note)

    def _tokens(self, row: int, entry: Sequence[float | None], trajectory: Trajectory) -> tuple[float, ...]:
        count = sum(map(bool, trajectory.mask))
        if len(entry) != count:
            raise RewardError(
                f"reward function {self.function} returned the wrong number of rewards for completion {row}",
                got=len(entry),
                allowed=f"{count}, one per action token",
                hint="len(completion_ids[i]) is that number; the closing stop token counts",
            )
        return place_tokens([math.nan if r is None else r for r in entry], trajectory.mask)

    def _spans(self, entry: Sequence[Sequence[float]], trajectory: Trajectory) -> tuple[float, ...]:
        if self.offsets is None:
            raise RewardError(
                f"reward function {self.function} returned spans of text, and no tokenizer is at hand to place them",
                hint="return one number per action token",
            )
        tokens = [t for t, m in zip(trajectory.tokens, trajectory.mask, strict=True) if m]
        spans = [(start, end, reward) for start, end, reward in entry]
        return place_spans(spans, self.offsets(tokens), trajectory.mask, length=len(trajectory.response))


def _kind_of(entry: Any) -> str:
    if isinstance(entry, float):
        return "numbers"
    if isinstance(entry, dict):
        numbers = (v for k, v in entry.items() if not (k == NOTE and isinstance(v, str)))
        return "named terms" if all(v is None or isinstance(v, float) for v in numbers) else "unknown"
    if not entry:
        return "empty"
    if all(part is None or isinstance(part, float) for part in entry):
        return "tokens"
    triples = all(isinstance(part, list) and len(part) == 3 for part in entry)
    return "spans" if triples and all(isinstance(v, float) for part in entry for v in part) else "unknown"
