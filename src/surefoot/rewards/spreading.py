"""Work spread over several places that do the same: the least loaded first, one that fails left out for a while."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from surefoot.rewards.http_calls import Attempts, CallTrouble, GaveUp, Outage, Patience

M = TypeVar("M")
R = TypeVar("R")

PROBE_S = 2.0
"""Longest time that a call spends on asking whether a place is back."""


@dataclass
class _Place(Generic[M]):
    member: M
    outage: Outage
    rows: int = 0
    turn: int = 0
    failures: int = 0
    until: float = 0.0
    probing: bool = False
    trouble: str = ""


class Spread(Generic[M]):
    """Any number of threads may call at once.

    A place that fails is left out, for a pause that doubles with each failure; when it is over, the next call that
    would go there asks whether it is back. What a failed place was given goes to another.

    Args:
        members: what is called, by the name of its place; at least one.
        patience: limits of one call, over all places.
        admit: called with a member and a limit in seconds before it is used for the first time and after it has been
            left out; raises CallTrouble when it cannot be used yet. Anything else it raises ends the call.
        logger: told when a place is left out and taken back.
        clock: seconds that only grow.
        seed: of the pauses' random part.
    """

    def __init__(
        self,
        members: Mapping[str, M],
        patience: Patience,
        *,
        admit: Callable[[M, float], None] | None = None,
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
    ) -> None:
        self._patience, self._admit, self._clock = patience, admit, clock
        self._draw = random.Random(seed)
        self._outage = Outage(" and ".join(members), logger)
        self._changed = threading.Condition()
        self._turn = 0
        # The first use is an admission as well.
        new = 0 if admit is None else 1
        self._places = [_Place(m, Outage(name, logger), failures=new) for name, m in members.items()]

    def call(self, work: Callable[[M, float], R], rows: int) -> R:
        """Have one place do the work.

        Args:
            work: called with a member and the seconds it may take; raises CallTrouble when another place, or the same
                a little later, may do better. Anything else it raises ends the call.
            rows: how much work it is.
        Raises:
            GaveUp: no place did it in the time allowed.
        """
        attempts = Attempts(self._patience, self._outage, self._draw, self._clock)
        while True:
            place, probing = self._take(rows, attempts)
            limit = attempts.begin()
            try:
                if probing and self._admit is not None:
                    self._admit(place.member, min(limit, PROBE_S))
                result = work(place.member, limit)
            except CallTrouble as trouble:
                self._leave_out(place, trouble, rows, probing=probing)
                continue
            except BaseException:
                self._put_back(place, rows, well=False, probing=probing)
                raise
            self._put_back(place, rows, well=True, probing=probing)
            return result

    @property
    def left_out(self) -> dict[str, str]:
        """Places that are left out now, each with its last trouble."""
        with self._changed:
            return {p.outage.place: p.trouble for p in self._places if p.failures and p.trouble}

    def _take(self, rows: int, attempts: Attempts) -> tuple[_Place[M], bool]:
        """The place to go to, once there is one, and whether it has to be admitted first."""
        with self._changed:
            while True:
                now, left = self._clock(), attempts.left_s
                free = [p for p in self._places if not p.failures or (p.until <= now and not p.probing)]
                if attempts.tries and left <= self._patience.last_try_s:
                    raise self._gave_up(attempts)
                if free:
                    place = min(free, key=lambda p: (p.rows, p.turn))
                    self._turn += 1
                    place.turn, place.rows, place.probing = self._turn, place.rows + rows, bool(place.failures)
                    return place, place.probing
                back = min((p.until - now for p in self._places if not p.probing), default=left)
                wait = min(back, left - self._patience.last_try_s)
                if wait <= 0 or back > left:
                    raise self._gave_up(attempts)
                self._changed.wait(wait)

    def _leave_out(self, place: _Place[M], trouble: CallTrouble, rows: int, *, probing: bool) -> None:
        now = self._clock()
        with self._changed:
            # Calls that were under way together fail together: that is one failure.
            if probing or not place.failures:
                place.failures += 1
                pause = self._patience.pause(place.failures, self._draw)
                place.until = now + max(pause, trouble.retry_after_s or 0.0)
            place.rows, place.trouble = place.rows - rows, str(trouble)
            place.probing = place.probing and not probing
            self._changed.notify_all()
        place.outage.begins(f"{trouble}; left out until it answers", now)

    def _put_back(self, place: _Place[M], rows: int, *, well: bool, probing: bool) -> None:
        with self._changed:
            place.rows -= rows
            place.probing = place.probing and not probing
            if well:
                place.failures, place.trouble = 0, ""
            self._changed.notify_all()
        if well:
            place.outage.ends(self._clock())

    def _gave_up(self, attempts: Attempts) -> GaveUp:
        troubles = "; ".join(f"{p.outage.place}: {p.trouble or 'busy'}" for p in self._places)
        return attempts.gave_up(troubles)
