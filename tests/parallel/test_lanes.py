"""Two works at the same time: threads shared out, errors told, nothing left running."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from surefoot.parallel.lanes import in_lanes


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_both_run_at_once_on_half_of_the_threads_each() -> None:
    barrier = threading.Barrier(2, timeout=120)

    def work(name: str) -> Iterator[tuple[str, int, bool]]:
        for _ in range(3):
            barrier.wait()
            yield name, torch.get_num_threads(), threading.current_thread() is threading.main_thread()

    first, second = in_lanes((lambda: work("a"), lambda: work("b")))
    assert first == [("a", 2, False)] * 3
    assert second == [("b", 2, True)] * 3
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_either_is_raised_and_ends_the_other_at_its_next_item(failing: int) -> None:
    failed = threading.Event()
    items = 0

    def fails() -> Iterator[int]:
        yield 1
        failed.set()
        raise ValueError("lane")

    def endless() -> Iterator[int]:
        nonlocal items
        while True:
            items += failed.wait(120)
            yield items

    works = (fails, endless) if failing == 0 else (endless, fails)
    with pytest.raises(ValueError, match="lane"):
        in_lanes(works)
    assert threading.active_count() == 1 or not any(t.name.startswith("lane") for t in threading.enumerate())
    assert torch.get_num_threads() == 4


def test_an_interrupt_leaves_no_thread_behind() -> None:
    started = threading.Event()

    def endless() -> Iterator[int]:
        while True:
            started.set()
            yield 1

    def interrupted() -> Iterator[int]:
        started.wait(120)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(120)
        yield 1

    with pytest.raises(KeyboardInterrupt):
        in_lanes((endless, interrupted))
    assert not any(t.name.startswith("lane") for t in threading.enumerate())
