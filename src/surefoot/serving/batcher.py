"""Requests to one model, joined while they wait: a bounded queue in front of one worker thread. No torch, no web.

A model works on one batch at a time. What comes in meanwhile waits, and is joined up to a budget of tokens; a batch
waits for company only when nothing runs. Joining changes no request's answer but in its last bits, and no request
fails for another's fault: a batch that fails is tried again one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

logger = logging.getLogger("surefoot.serving")

Work = TypeVar("Work")
Answer = TypeVar("Answer")
Compute = Callable[[Sequence[Any]], Sequence[Answer | Exception]]


class QueueFull(Exception):
    """As many requests wait as may."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class Joining:
    """How requests are joined.

    Attributes:
        tokens: of a joined batch at most; one request always fits.
        wait_s: how long a request waits for others while the model is idle; 0: each by itself.
        queue: requests that may wait.
    """

    tokens: int
    wait_s: float
    queue: int


class Presence:
    """Whether somebody still waits for an answer; this one always does."""

    gone = False

    def watch(self) -> None:
        """Begin to look: the request has to wait."""


@dataclass
class _Waiting(Generic[Work, Answer]):
    work: Work
    tokens: int
    presence: Presence
    answer: asyncio.Future[Answer]
    since: float = field(default_factory=time.monotonic)


class Batcher(Generic[Work, Answer]):
    """One model's queue.

    Args:
        compute: one answer for each request of a batch, in order; called in the worker's thread. An answer that is an
            exception is raised to its own request alone.
        executor: one worker thread, the model's.
        joining: how requests are joined.
        on_batch: told the number of requests and of tokens of each batch.
    """

    def __init__(
        self,
        compute: Compute[Answer],
        executor: Executor,
        joining: Joining,
        *,
        on_batch: Callable[[int, int], None] = lambda requests, tokens: None,
    ) -> None:
        self._compute, self._executor, self.joining, self._on_batch = compute, executor, joining, on_batch
        self._waiting: deque[_Waiting[Work, Answer]] = deque()
        self._arrived = asyncio.Event()
        self._running = False
        self._task: asyncio.Task[None] | None = None

    @property
    def depth(self) -> int:
        """Requests that wait; those being computed are not among them."""
        return len(self._waiting)

    async def submit(self, work: Work, *, tokens: int, presence: Presence | None = None) -> Answer:
        """Wait for the answer to a request.

        Args:
            work: what is computed.
            tokens: that it has.
            presence: whether somebody still waits for the answer; asked when its turn has come.
        Raises:
            QueueFull: too many wait already.
            ClientGone: nobody waited any more when its turn came.
            Exception: what its computation raised.
        """
        if len(self._waiting) >= self.joining.queue:
            raise QueueFull
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(work, tokens, presence or Presence(), future)
        if self._running or self.joining.wait_s:
            waiting.presence.watch()
            self._waiting.append(waiting)
            self._arrived.set()
            self._go_on()
            return await waiting.answer
        self._running = True  # nothing to wait for: no other task need know of it
        try:
            await self._run([waiting])
        finally:
            self._running = False
            self._go_on()
        return waiting.answer.result()

    async def close(self) -> None:
        """End; what still waits gets no answer."""
        self._running = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for waiting in self._waiting:
            waiting.answer.cancel()
        self._waiting.clear()

    def _go_on(self) -> None:
        if self._waiting and not self._running:
            self._running = True
            self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while self._waiting:
            await self._gather()
            batch = self._next_batch()
            if batch:
                await self._run(batch)
        self._running = False

    async def _gather(self) -> None:
        """Wait for company until the first request's time is over or the budget is full."""
        if not self.joining.wait_s:
            return
        while self._waiting and sum(w.tokens for w in self._waiting) < self.joining.tokens:
            left = self._waiting[0].since + self.joining.wait_s - time.monotonic()
            if left <= 0:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _next_batch(self) -> list[_Waiting[Work, Answer]]:
        batch: list[_Waiting[Work, Answer]] = []
        tokens = 0
        while self._waiting:
            waiting = self._waiting[0]
            if batch and (not self.joining.wait_s or tokens + waiting.tokens > self.joining.tokens):
                break
            self._waiting.popleft()
            if waiting.answer.done():
                continue
            if waiting.presence.gone:
                waiting.answer.set_exception(ClientGone())
                continue
            batch.append(waiting)
            tokens += waiting.tokens
        return batch

    async def _run(self, batch: list[_Waiting[Work, Answer]]) -> None:
        self._on_batch(len(batch), sum(w.tokens for w in batch))
        answers = await self._answers(batch)
        if len(batch) > 1 and isinstance(answers, Exception):
            logger.warning("a batch of %d requests failed (%r): each is tried by itself", len(batch), answers)
            for waiting in batch:
                await self._run([waiting])
            return
        for waiting, answer in zip(batch, [answers] if isinstance(answers, Exception) else answers, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    async def _answers(self, batch: list[_Waiting[Work, Answer]]) -> Sequence[Answer | Exception] | Exception:
        work = [waiting.work for waiting in batch]
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._compute, work)
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.answer.cancel()
            raise
        except Exception as error:
            return error
