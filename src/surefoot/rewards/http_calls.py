"""When a call over HTTP is repeated, how long it waits, and when it gives up: one policy for every remote part.

Remote rewards and the clients of the critic and reward service share it. Only calls that may be made twice go through
here: scoring changes nothing, and the service does each training call once however often it is asked.
"""

from __future__ import annotations

import email.utils
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Final

from surefoot.errors import ConfigError

RETRIED: Final = frozenset({408, 429, 502, 503, 504})
"""Statuses after which the same call may succeed a little later."""


@dataclass(frozen=True)
class Patience:
    """Limits of one call, in seconds.

    Attributes:
        timeout_s: for one try, from connecting to the last byte of the answer.
        patience_s: for all tries and the pauses between them.
        first_wait_s, longest_wait_s: pause after the first try; each is twice the one before, up to the longest. Half
            of a pause is random, so that many callers do not come back at once.
    """

    timeout_s: float = 60.0
    patience_s: float = 300.0
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0

    def __post_init__(self) -> None:
        if not (self.timeout_s > 0 and self.patience_s > 0 and 0 < self.first_wait_s <= self.longest_wait_s):
            raise ConfigError("time limits must be more than 0", got=repr(self))

    @property
    def last_try_s(self) -> float:
        """Time that is kept for a last try; with less left, there is none."""
        return min(1.0, 0.1 * self.patience_s)

    def pause(self, tries: int, draw: random.Random) -> float:
        """Seconds to wait after this many tries; never more than a tenth of the patience, so that some can follow."""
        whole = min(self.longest_wait_s, 0.1 * self.patience_s, self.first_wait_s * 2.0 ** min(tries - 1, 60))
        return whole * (0.5 + 0.5 * draw.random())


@dataclass(frozen=True)
class Request:
    """One call: the path is put behind the address as it stands."""

    method: str
    path: str = ""
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    answer_bytes: int = 64 << 20


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: the HTTP status.
        headers: by their names in lower case.
        body: at most ``Request.answer_bytes``.
        whole: the body's length was announced, so that it cannot have been cut unseen.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True

    @property
    def retry_after_s(self) -> float | None:
        """What ``Retry-After`` asks for, in seconds from now; None when it does not."""
        return retry_after(self.headers.get("retry-after"), time.time())


class CallTrouble(Exception):
    """One try failed in a way that another may not. The text says how."""

    def __init__(self, what: str, retry_after_s: float | None = None) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class CallRefused(Exception):
    """What answers at an address cannot be used, however often it is asked: another protocol, a wrong certificate."""


class GaveUp(Exception):
    """No try succeeded in the time allowed. The text says how often, how long, and the last trouble."""

    def __init__(self, tries: int, seconds: float, last: str) -> None:
        how_often = "1 try" if tries == 1 else f"{tries} tries"
        super().__init__(f"{how_often} in {seconds:.1f} s, the last one: {last}")
        self.tries, self.seconds, self.last = tries, seconds, last


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds to wait by a ``Retry-After`` header, of either form; None when it says nothing that can be read.

    Args:
        header: seconds, or an HTTP date.
        now: seconds since the epoch.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)


class Outage:
    """Says once that an address is in trouble, and once that it is back, however many callers notice."""

    def __init__(self, place: str, logger: logging.Logger) -> None:
        self.place, self._logger = place, logger
        self._lock = threading.Lock()
        self._since: float | None = None

    def begins(self, trouble: str, now: float) -> None:
        """A try failed; ``trouble`` says how, and what is done about it."""
        with self._lock:
            if self._since is not None:
                return
            self._since = now
        self._logger.warning("%s: %s", self.place, trouble)

    def ends(self, now: float) -> None:
        """A try succeeded."""
        if self._since is None:  # read without the lock: nearly every call passes here
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            self._logger.warning("%s answers again after %.1f s", self.place, now - since)


class Attempts:
    """The tries of one call.

    ::

        while True:
            limit = attempts.begin()
            try:
                return send(limit)            # then attempts.succeeded()
            except CallTrouble as trouble:
                wait(attempts.failed(trouble))

    Args:
        patience: its limits.
        outage: where trouble is told.
        draw: the random part of the pauses.
        clock: seconds that only grow.
    """

    def __init__(
        self, patience: Patience, outage: Outage, draw: random.Random, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience, self.tries = patience, 0
        self._outage, self._draw, self._clock = outage, draw, clock
        self._begun = clock()

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._begun + self.patience.patience_s - self._clock()

    def begin(self) -> float:
        """Begin a try; the seconds it may take."""
        self.tries += 1
        return max(0.001, min(self.patience.timeout_s, self.left_s))

    def failed(self, trouble: CallTrouble) -> float:
        """A try failed; the seconds to wait before the next.

        Raises:
            GaveUp: there is no time for another, or the other side asks for more patience than there is.
        """
        left, asked = self.left_s, trouble.retry_after_s
        wait = self.patience.pause(self.tries, self._draw)
        if asked is not None and asked > left:
            raise self.gave_up(f"{trouble}, and it asks to come back after {asked:.0f} s") from trouble
        if left <= self.patience.last_try_s:
            raise self.gave_up(str(trouble)) from trouble
        self._outage.begins(f"{trouble}; trying again for up to {self.patience.patience_s:g} s", self._clock())
        return max(asked or 0.0, min(wait, left - self.patience.last_try_s))

    def gave_up(self, last: str) -> GaveUp:
        """The error that ends the call."""
        return GaveUp(self.tries, self._clock() - self._begun, last)

    def succeeded(self) -> None:
        """A try succeeded."""
        self._outage.ends(self._clock())
