"""The order of the prompts: whole epochs, the last batch too, from seed and step alone."""

from __future__ import annotations

import pickle

import pytest

from surefoot.data.order import PromptOrder
from surefoot.errors import DataError

CASES = [(5, 8, 1, 5), (129, 64, 3, 1), (128, 64, 2, 64), (1, 1, 1, 1), (7, 2, 4, 1), (64, 64, 1, 64)]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize(("rows", "batch", "batches", "tail"), CASES)
def test_the_last_smaller_batch_is_trained(rows: int, batch: int, batches: int, tail: int) -> None:
    order = PromptOrder(rows, batch=batch, seed=3)
    assert order.batches_per_epoch == batches
    epoch = [order.batch(step) for step in range(1, batches + 1)]
    assert len(epoch[-1]) == tail
    assert sorted(flat(epoch)) == list(range(rows))


def test_dropping_the_last_batch_is_refused_where_it_leaves_nothing() -> None:
    assert PromptOrder(129, batch=64, drop_last=True).batches_per_epoch == 2
    assert PromptOrder(8, batch=8, drop_last=True).batches_per_epoch == 1
    with pytest.raises(DataError, match="leaves nothing"):
        PromptOrder(5, batch=8, drop_last=True)
    order = PromptOrder(7, batch=3, drop_last=True, seed=1)
    assert [len(order.batch(step)) for step in range(1, 7)] == [3] * 6
    assert len(set(order.batch(1) + order.batch(2))) == 6


def test_every_epoch_is_a_new_permutation_of_all_rows() -> None:
    order = PromptOrder(50, batch=20, seed=0)
    epochs = [flat([order.batch(3 * e + n) for n in (1, 2, 3)]) for e in range(4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epochs[0] != list(range(50))


def test_seeds_give_different_orders_and_the_same_seed_the_same() -> None:
    orders = [[PromptOrder(30, batch=30, seed=seed).batch(step) for step in (1, 2)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_this_order_stays_what_it_is() -> None:
    """Runs resume under later versions of this code: a change here changes their data."""
    assert [PromptOrder(6, batch=2, seed=42).batch(step) for step in (1, 2, 3, 4)] == [[4, 0], [5, 2], [1, 3], [3, 2]]


def test_a_step_asked_for_first_gives_what_it_gives_in_turn() -> None:
    """A resumed run asks for step 3 of a fresh order."""
    whole = PromptOrder(6, batch=2, seed=9)
    in_turn = [whole.batch(step) for step in range(1, 10)]
    for step in (3, 9, 1, 5):
        assert PromptOrder(6, batch=2, seed=9).batch(step) == in_turn[step - 1]
    assert [whole.batch(step) for step in (8, 2, 8, 5)] == [in_turn[step - 1] for step in (8, 2, 8, 5)]
    first, second, third = in_turn[:3]
    assert sorted(third) == sorted(set(range(6)) - {*first, *second})


def test_without_shuffling_rows_come_as_they_lie() -> None:
    order = PromptOrder(5, batch=2, seed=1, shuffle=False)
    assert [order.batch(step) for step in range(1, 5)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_the_cursor_stands_where_the_next_batch_begins() -> None:
    order = PromptOrder(5, batch=2, seed=1, shuffle=False)
    expected = [(0, 0), (0, 2), (0, 4), (1, 0), (1, 2)]
    assert [(c["epoch"], c["position"]) for c in map(order.cursor, range(5))] == expected
    for step in range(1, 12):
        before = order.cursor(step - 1)
        assert order.batch(step)[0] == before["position"]


def test_an_order_travels_between_processes() -> None:
    order = PromptOrder(9, batch=4, seed=5)
    expected = order.batch(2)
    assert pickle.loads(pickle.dumps(order)).batch(2) == expected


@pytest.mark.parametrize("step", [0, -1])
def test_steps_count_from_one(step: int) -> None:
    with pytest.raises(DataError, match="count from 1"):
        PromptOrder(3, batch=1).batch(step)


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="at least one prompt"):
        PromptOrder(0, batch=4)
