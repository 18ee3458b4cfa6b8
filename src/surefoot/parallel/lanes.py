"""Two pieces of work at the same time, each on its share of the processor's cores.

While one waits for memory, the other multiplies; and no core waits at the barriers of the other's operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

Work = Callable[[], Iterator[Any]]


def in_lanes(
    works: tuple[Work, ...], *, share_threads: bool = True, interrupt: Callable[[], object] = lambda: None
) -> list[list[Any]]:
    """Run works at the same time, this thread's last, with the CPU threads shared out evenly.

    Each work's numbers depend on its own number of threads only, so a run repeats bit for bit.

    Args:
        works: give an iterator each; it is exhausted. They must not share anything they change.
        share_threads: False: this thread's work keeps all threads; the others only wait for something.
        interrupt: ends that waiting; called when this thread is interrupted.
    Returns:
        what each of them gave, in their order.
    Raises:
        BaseException: the first that any of them raised; the others end at their next item.
    """
    total = torch.get_num_threads()
    share = max(1, total // len(works))
    gave: list[list[Any]] = [[] for _ in works]
    raised: list[BaseException] = []
    ended = threading.Event()

    def run(index: int) -> None:
        try:
            if share_threads:
                # OpenMP keeps this number by thread, MKL for the process; here both are the same.
                torch.set_num_threads(share)
            for item in works[index]():
                gave[index].append(item)
                if ended.is_set():
                    return
        except BaseException as error:
            raised.append(error)
            ended.set()
            if not isinstance(error, Exception):
                interrupt()

    others = [threading.Thread(target=run, args=(i,), name=f"lane-{i}") for i in range(len(works) - 1)]
    try:
        for thread in others:
            thread.start()
        run(len(works) - 1)
    finally:
        _join(others, ended, interrupt)
        if share_threads:
            torch.set_num_threads(total)
    if raised:
        raise raised[0]
    return gave


def _join(threads: list[threading.Thread], ended: threading.Event, interrupt: Callable[[], object]) -> None:
    """Wait for all; what interrupts the waiting asks them to end and is raised once they have."""
    interrupted: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                interrupted = error
                ended.set()
                interrupt()
    if interrupted is not None:
        raise interrupted
