"""Rows sent off as they come, answered while others are still being made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Row = TypeVar("Row")
Answer = TypeVar("Answer")


class Ahead(Generic[Row, Answer]):
    """Sends rows in the background and keeps their answers until they are collected.

    Rows that come while all senders are busy go together in the next call, so that a slow receiver gets few large
    calls and a fast one many small ones.

    Args:
        send: gives one answer a row; called from several threads at once.
        calls: at once, at most.
        rows: in one call, at most.
        name: of the threads.
    """

    def __init__(
        self, send: Callable[[Sequence[Row]], Sequence[Answer]], *, calls: int = 2, rows: int = 64, name: str = "ahead"
    ) -> None:
        self._send, self._rows = send, rows
        self._pool = ThreadPoolExecutor(max_workers=calls, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Row]] = []
        self._answers: dict[int, tuple[Row, Answer]] = {}
        self._jobs: list[Future[None]] = []

    def put(self, index: int, row: Row) -> None:
        """Send a row off. Errors are raised when the answers are collected."""
        with self._lock:
            self._waiting.append((index, row))
            self._jobs.append(self._pool.submit(self._work))

    def collect(self) -> dict[int, tuple[Row, Answer]]:
        """Wait for all rows that were put since the last time; each with its answer, by index.

        Raises:
            Exception: the first that a call raised. What was on its way is forgotten.
        """
        with self._lock:
            jobs, self._jobs = self._jobs, []
        error: BaseException | None = None
        for job in jobs:
            found = job.exception()
            error = error or found
        with self._lock:
            answers, self._answers, self._waiting = self._answers, {}, []
        if error is not None:
            raise error
        return answers

    def close(self) -> None:
        """Let the threads go, once calls under way have ended; what waits is not sent any more."""
        with self._lock:
            self._waiting = []
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _work(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting[: self._rows], self._waiting[self._rows :]
        if not taken:
            return
        answers = self._send([row for _, row in taken])
        with self._lock:
            for (index, row), answer in zip(taken, answers, strict=True):
                self._answers[index] = (row, answer)
