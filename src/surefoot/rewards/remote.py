"""A reward behind an address: a server of the user's own, or anything else that is asked in parts and may be away.

The user's own contract, all of it: ``POST`` to the address with ``{"prompts": [...], "completions": [...], "columns":
{NAME: [...]}}``, answered by ``{"scores": [number or null, ...]}`` and, if there is something to say,
``"reasons": [text or null, ...]``. ``docs/service.md`` describes it.
"""

from __future__ import annotations

import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Protocol

from surefoot.errors import RewardError
from surefoot.parallel.ahead import Ahead
from surefoot.records import Rollout, Score, Trajectory
from surefoot.rewards import worker
from surefoot.rewards.answers import Reader
from surefoot.rewards.function import OWN, columns_of
from surefoot.rewards.http_calls import (
    RETRIED,
    Answer,
    Attempts,
    CallRefused,
    CallTrouble,
    GaveUp,
    Outage,
    Patience,
    Request,
)
from surefoot.rewards.http_connections import Connections
from surefoot.rewards.isolation import CallFailed
from surefoot.rewards.spreading import Spread

__all__ = ["CallFailed", "OwnServer", "RemoteReward", "Scorer", "own_server"]

logger = logging.getLogger("surefoot.rewards")

MAX_ANSWER_BYTES = 64 << 20


class Scorer(Protocol):
    """Who scores a part of a rollout. Called from several threads at once."""

    def score(self, rows: Sequence[Trajectory]) -> list[Score]:
        """One Score per row, in order.

        Raises:
            CallFailed: no row could be scored; the text says why, and is the reason of each.
            RewardError: the answer is no answer to these rows: a bug that ends the run.
        """
        ...

    def close(self) -> None:
        """End what is under way."""
        ...


class RemoteReward:
    """One term of the reward: a rollout is scored in parts, a few at once. Scores are raw, not clipped or weighted.

    Rows of a part that could not be scored have failed, with the reason; ``reward.on_failure`` and
    ``reward.max_failures`` say what then. A failure is never a score of 0.

    Args:
        name: the term's name.
        scorer: who scores; :func:`own_server` makes one for a server of the user's own.
        rows: most trajectories in a part.
        concurrency: most parts at once.
        overlap: score trajectories as they end, while others are still decoded.
    """

    def __init__(
        self, name: str, scorer: Scorer, *, rows: int = 64, concurrency: int = 4, overlap: bool = False
    ) -> None:
        self.name, self.scorer, self._rows = name, scorer, rows
        self._ahead: Ahead[Trajectory, Score] | None = None
        if overlap:
            self._ahead = Ahead(self._part, calls=concurrency, rows=rows, name=f"surefoot-ahead-{name}")
        self._reader = Reader(name, name)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"surefoot-reward-{name}")

    def score(self, rollout: Rollout) -> list[Score]:
        """One raw Score per trajectory, in order.

        Raises:
            RewardError: an answer has the wrong length or cannot be read.
        """
        found: dict[int, Score] = {}
        for index, (sent, score) in ({} if self._ahead is None else self._ahead.collect()).items():
            if index < rollout.num_rows and rollout.trajectories[index] == sent:
                found[index] = score
        missing = [index for index in range(rollout.num_rows) if index not in found]
        found |= zip(missing, self._scored([rollout.trajectories[index] for index in missing]), strict=True)
        return [found[index] for index in range(rollout.num_rows)]

    def listeners(self) -> tuple[Callable[[int, Trajectory], None], ...]:
        """What wants to hear of a trajectory (row, trajectory) as soon as it has ended."""
        return () if self._ahead is None else (self._ahead.put,)

    def _scored(self, rows: Sequence[Trajectory]) -> list[Score]:
        parts = [rows[begin : begin + self._rows] for begin in range(0, len(rows), self._rows)]
        calls = [self._threads.submit(self._part, part) for part in parts]
        try:
            return _gathered(calls)
        except BaseException:
            for call in calls:
                call.cancel()
            raise

    def close(self) -> None:
        """End what is under way and let go of threads and connections."""
        self.scorer.close()
        if self._ahead is not None:
            self._ahead.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _part(self, rows: Sequence[Trajectory]) -> list[Score]:
        try:
            scores = self.scorer.score(rows)
        except CallFailed as failure:
            logger.warning("reward %s failed for %d rows: %s", self.name, len(rows), failure)
            return [self._reader.failed(str(failure))] * len(rows)
        if len(scores) != len(rows):
            raise RewardError(
                f"reward {self.name} returned the wrong number of scores", got=f"{len(scores)} for {len(rows)} rows"
            )
        return scores


def _gathered(calls: Sequence[Future[list[Score]]]) -> list[Score]:
    wait(calls, return_when=FIRST_EXCEPTION)
    for call in calls:
        if call.done() and (error := call.exception()) is not None:
            raise error
    return [score for call in calls for score in call.result()]


class OwnServer:
    """A server of the user's own at one address, or at several that do the same.

    Args:
        name: the term's name.
        addresses: at least one; requests are spread over several by load.
        token: sent as ``Authorization: Bearer``; None: nothing is sent.
        patience: limits of each request.
        clock, sleep: for tests: seconds that only grow, and how to wait some.
        seed: of the pauses' random part.
    """

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        *,
        token: str | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        seed: int = 0,
    ) -> None:
        self.name, self.place = name, " and ".join(addresses)
        self._patience, self._clock = patience or Patience(), clock
        self._closing = threading.Event()
        self._sleep = sleep or self._closing.wait
        self._draw = random.Random(seed)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._reader = Reader(name, self.place)
        self._outage = Outage(f"the reward {name} at {self.place}", logger)
        self._connections = {address: Connections(address) for address in addresses}
        self._spread = (
            Spread(self._connections, self._patience, logger=logger, clock=clock, seed=seed)
            if len(addresses) > 1
            else None
        )

    def score(self, rows: Sequence[Trajectory]) -> list[Score]:
        """See :class:`Scorer`."""
        request = Request("POST", body=self._question(rows), headers=self._headers, answer_bytes=MAX_ANSWER_BYTES)
        try:
            answer = self._ask(request, len(rows))
        except GaveUp as gave_up:
            raise CallFailed(f"{self.place} did not answer: {gave_up}") from gave_up
        except CallRefused as refused:
            raise CallFailed(f"{self.place} cannot be used: {refused}") from refused
        return self._scores(answer, rows)

    def close(self) -> None:
        """End what is under way."""
        self._closing.set()
        for connections in self._connections.values():
            connections.close()

    def _ask(self, request: Request, rows: int) -> Answer:
        if self._spread is not None:
            return self._spread.call(lambda connections, limit: _try(connections, request, limit), rows)
        (connections,) = self._connections.values()
        attempts = Attempts(self._patience, self._outage, self._draw, self._clock)
        while True:
            try:
                answer = _try(connections, request, attempts.begin())
            except CallTrouble as trouble:
                self._sleep(attempts.failed(trouble))
                continue
            attempts.succeeded()
            return answer

    def _question(self, rows: Sequence[Trajectory]) -> bytes:
        columns = columns_of(rows)
        question = {
            "prompts": columns["prompts"],
            "completions": columns["completions"],
            "columns": {name: _finite(values) for name, values in columns.items() if name not in OWN},
        }
        try:
            return json.dumps(question, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise RewardError(
                f"the prompts have a column that cannot be sent to the reward {self.name} as JSON",
                got=str(error),
                hint="leave the column out of the prompts, or make texts and numbers of its values",
            ) from error

    def _scores(self, answer: Answer, rows: Sequence[Trajectory]) -> list[Score]:
        if answer.status != 200:
            raise CallFailed(f"{self.place} answered {answer.status}{_message(answer)}")
        try:
            found = json.loads(answer.body)
            scores, reasons = found["scores"], found.get("reasons")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RewardError(
                f"the reward {self.name} at {self.place} gave an answer that cannot be read",
                got=repr(answer.body[:200].decode("utf-8", "replace")),
                allowed='{"scores": [a number or null for each completion]}',
                hint="docs/service.md describes the contract",
            ) from None
        if reasons is not None and (not isinstance(reasons, list) or len(reasons) != len(rows)):
            raise RewardError(
                f"the reward {self.name} at {self.place} gave the wrong number of reasons",
                got=f"{len(reasons) if isinstance(reasons, list) else type(reasons).__name__} for {len(rows)} rows",
                allowed="one text or null per completion, or no reasons at all",
            )
        try:
            plain = worker.plain(scores, f"{self.place} answered")
        except worker.Unusable as error:
            what, got, hint = error.args
            raise RewardError(what, got=got, hint=hint) from None
        read = self._reader.read(plain, rows)
        if reasons is None:
            return read
        return [
            replace(score, reason=str(reason)[:300]) if score.failed and reason else score
            for score, reason in zip(read, reasons, strict=True)
        ]


def own_server(
    name: str, addresses: Sequence[str], *, token: str | None = None, patience: Patience | None = None
) -> OwnServer:
    """A scorer for a server of the user's own."""
    return OwnServer(name, addresses, token=token, patience=patience)


def _try(connections: Connections, request: Request, limit_s: float) -> Answer:
    answer = connections.send(request, limit_s)
    if answer.status in RETRIED:
        raise CallTrouble(f"it answers {answer.status}{_message(answer)}", answer.retry_after_s)
    if answer.status == 200 and not answer.whole and not _is_json(answer.body):
        raise CallTrouble("the answer was cut")
    return answer


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _message(answer: Answer) -> str:
    if 300 <= answer.status < 400:
        return f", which leads to {answer.headers.get('location', 'nowhere')}: redirects are not followed"[:300]
    text = " ".join(answer.body[:2000].decode("utf-8", "replace").split())[:200]
    return f": {text}" if text else ""


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
