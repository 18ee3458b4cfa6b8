"""Rows sent ahead: together when the receiver is slow, once each, errors told at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from surefoot.parallel.ahead import Ahead


class Receiver:
    """Answers with the text's length, one call at a time once it may go on."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.begun = threading.Event()

    def __call__(self, rows: Sequence[str]) -> list[int]:
        self.calls.append(list(rows))
        self.begun.set()
        assert self.may_go_on.wait(120)
        if "bad" in rows:
            raise ValueError("no answer to bad")
        return [len(row) for row in rows]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def ahead(receiver: Receiver) -> Iterator[Ahead[str, int]]:
    sender: Ahead[str, int] = Ahead(receiver, calls=1, rows=3)
    yield sender
    receiver.may_go_on.set()
    sender.close()


def test_each_row_is_answered_once_by_its_index(ahead: Ahead[str, int], receiver: Receiver) -> None:
    for index, text in {4: "a", 0: "bb", 2: "ccc"}.items():
        ahead.put(index, text)
    assert ahead.collect() == {4: ("a", 1), 0: ("bb", 2), 2: ("ccc", 3)}
    assert sorted(row for call in receiver.calls for row in call) == ["a", "bb", "ccc"]
    assert ahead.collect() == {}


def test_what_comes_while_a_call_is_under_way_goes_together_in_the_next(
    ahead: Ahead[str, int], receiver: Receiver
) -> None:
    receiver.may_go_on.clear()
    ahead.put(0, "first")
    assert receiver.begun.wait(120)
    for index in range(1, 6):
        ahead.put(index, "x" * index)
    receiver.may_go_on.set()
    assert {index: answer for index, (_, answer) in ahead.collect().items()} == {0: 5, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5}
    assert [len(call) for call in receiver.calls] == [1, 3, 2]


def test_an_error_is_raised_when_answers_are_collected_and_then_forgotten(ahead: Ahead[str, int]) -> None:
    ahead.put(0, "bad")
    with pytest.raises(ValueError, match="no answer to bad"):
        ahead.collect()
    ahead.put(0, "good")
    assert ahead.collect() == {0: ("good", 4)}


def test_rows_are_answered_while_others_are_still_being_made(ahead: Ahead[str, int], receiver: Receiver) -> None:
    ahead.put(0, "early")
    deadline = time.monotonic() + 120
    while not receiver.calls and time.monotonic() < deadline:
        time.sleep(0.001)
    assert receiver.calls == [["early"]]
