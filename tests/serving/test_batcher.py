"""Requests are joined within their limits, none waits for ever, and none fails for another's fault."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from surefoot.serving.batcher import Batcher, ClientGone, Joining, Presence, QueueFull


class Doubler:
    """Doubles numbers, one batch at a time; holds the first batch until told to go on. Odd things fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(numbers))
        self.begun.set()
        assert self.go_on.wait(120)
        if -1 in numbers:
            raise RuntimeError("this batch cannot be computed")
        return [ValueError(n) if n < 0 else 2 * n for n in numbers]


@pytest.fixture
def doubler() -> Doubler:
    return Doubler()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Gone(Presence):
    """A client that has gone by the time that anybody looks."""

    def watch(self) -> None:
        self.gone = True


Scene = Callable[[Batcher[int, int]], Awaitable[None]]


def play(doubler: Doubler, thread: ThreadPoolExecutor, joining: Joining, scene: Scene) -> list[tuple[int, int]]:
    """Let a scene happen on a batcher; what it told of its batches."""
    told: list[tuple[int, int]] = []

    async def main() -> None:
        batcher: Batcher[int, int] = Batcher(
            doubler, thread, joining, on_batch=lambda n, tokens: told.append((n, tokens))
        )
        try:
            await asyncio.wait_for(scene(batcher), 10)
        finally:
            doubler.go_on.set()
            await batcher.close()

    asyncio.run(main())
    return told


async def hold(batcher: Batcher[int, int], doubler: Doubler) -> asyncio.Task[int]:
    """Occupy the model until ``doubler.go_on`` is set."""
    doubler.go_on.clear()
    task = asyncio.create_task(batcher.submit(100, tokens=1))
    while not doubler.begun.is_set():
        await asyncio.sleep(0.001)
    return task


def test_requests_that_come_together_are_computed_together(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        assert await asyncio.gather(*(batcher.submit(n, tokens=10) for n in range(5))) == [0, 2, 4, 6, 8]

    assert play(doubler, thread, Joining(1000, 0.05, 64), scene) == [(5, 50)]
    assert doubler.batches == [[0, 1, 2, 3, 4]]


def test_without_a_wait_each_is_computed_by_itself(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        first = await hold(batcher, doubler)
        rest = [asyncio.create_task(batcher.submit(n, tokens=1)) for n in (1, 2)]
        await asyncio.sleep(0.01)
        doubler.go_on.set()
        assert await asyncio.gather(first, *rest) == [200, 2, 4]

    play(doubler, thread, Joining(1000, 0.0, 64), scene)
    assert doubler.batches == [[100], [1], [2]]


def test_what_waits_for_the_model_is_joined_up_to_the_budget(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        first = await hold(batcher, doubler)
        rest = [asyncio.create_task(batcher.submit(n, tokens=40)) for n in range(5)]
        await asyncio.sleep(0.01)
        assert batcher.depth == 5
        doubler.go_on.set()
        assert await asyncio.gather(first, *rest) == [200, 0, 2, 4, 6, 8]

    assert play(doubler, thread, Joining(100, 0.001, 64), scene) == [(1, 1), (2, 80), (2, 80), (1, 40)]


def test_a_request_above_the_budget_is_computed_alone(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        assert await asyncio.gather(*(batcher.submit(n, tokens=t) for n, t in ((1, 500), (2, 10)))) == [2, 4]

    assert play(doubler, thread, Joining(100, 0.05, 64), scene) == [(1, 500), (1, 10)]


def test_a_lone_request_waits_no_longer_than_it_may(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await batcher.submit(1, tokens=1) == 2
        assert 0.04 <= loop.time() - begun < 1

    play(doubler, thread, Joining(1000, 0.05, 64), scene)


def test_a_full_queue_refuses_and_serves_the_others(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        first = await hold(batcher, doubler)
        rest = [asyncio.create_task(batcher.submit(n, tokens=1)) for n in (1, 2)]
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFull):
            await batcher.submit(3, tokens=1)
        doubler.go_on.set()
        assert await asyncio.gather(first, *rest) == [200, 2, 4]
        assert await batcher.submit(3, tokens=1) == 6

    play(doubler, thread, Joining(1000, 0.001, 2), scene)


def test_one_fault_fails_one_request(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        submitted = [batcher.submit(n, tokens=1) for n in (1, -1, 2, -2)]
        one, bad, two, odd = await asyncio.gather(*submitted, return_exceptions=True)
        assert (one, two) == (2, 4)
        assert isinstance(bad, RuntimeError)
        assert isinstance(odd, ValueError)
        assert await batcher.submit(7, tokens=1) == 14

    play(doubler, thread, Joining(1000, 0.02, 64), scene)
    assert doubler.batches == [[1, -1, 2, -2], [1], [-1], [2], [-2], [7]]


def test_nothing_is_computed_for_who_has_gone(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        first = await hold(batcher, doubler)
        gone = asyncio.create_task(batcher.submit(1, tokens=1, presence=Gone()))
        cancelled = asyncio.create_task(batcher.submit(2, tokens=1))
        stays = asyncio.create_task(batcher.submit(3, tokens=1))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        await asyncio.sleep(0)
        doubler.go_on.set()
        assert await asyncio.gather(first, stays) == [200, 6]
        with pytest.raises(ClientGone):
            await gone

    play(doubler, thread, Joining(1000, 0.001, 64), scene)
    assert doubler.batches == [[100], [3]]


def test_closing_ends_what_waits(doubler: Doubler, thread: ThreadPoolExecutor) -> None:
    async def scene(batcher: Batcher[int, int]) -> None:
        first = await hold(batcher, doubler)
        waiting = asyncio.create_task(batcher.submit(1, tokens=1))
        await asyncio.sleep(0.01)
        await batcher.close()
        for task in (first, waiting):
            done, _ = await asyncio.wait([task], timeout=1)
            assert done and task.cancelled()

    play(doubler, thread, Joining(1000, 0.001, 64), scene)
