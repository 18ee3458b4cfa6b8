"""Common beginnings are read once: every row keeps its tokens and its numbers, forward and backward."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from surefoot.models.attention import Packed
from surefoot.models.batching import lay_out, micro_batches
from surefoot.models.critic import shared_critic
from surefoot.models.packing import WORTH, pack, pad
from surefoot.models.policy import load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout, Trajectory
from tests.models.made_batches import batch_of, config_of, gradients_of
from tests.models.oracle_models import NAMES, folder, reading, shared_value_model

SYSTEM = [int(i) for i in np.random.default_rng(1).integers(0, 128, 12)]
PROMPTS = ([*SYSTEM, 1, 2, 3], [*SYSTEM, 1, 2, 4, 5, 6, 7, 8, 9, 10])


@functools.cache
def branching() -> Rollout:
    """Two prompts after one system prompt with four samples each, forks after a given token, a repeated row, a row
    that another one goes on from, and one that begins like no other."""
    rng = np.random.default_rng(5)
    rows = []
    for prompt in PROMPTS:
        for length in (3, 9, 14, 1):
            answer = [int(i) for i in rng.integers(0, 128, length)]
            rows.append(Trajectory([*prompt, *answer], [False] * len(prompt) + [True] * length))
    long = rows[2]
    turn = Trajectory([*long.tokens, 9, 9, 50, 51], [*long.mask, False, False, True, True])
    fork = Trajectory([*long.tokens, 9, 9, 60], [*long.mask, False, False, True])
    other = Trajectory([99, 98, 97, 96], [False, True, True, True])
    return Rollout.of([*rows, rows[1], turn, fork, other])


def rows_of(rollout: Rollout) -> list[np.ndarray]:
    return [rollout.tokens[r, :n] for r, n in enumerate(rollout.lengths)]


def few_symbols(seed: int) -> list[list[int]]:
    """Up to 12 rows of up to 40 zeros and ones: they share beginnings of all lengths, and many are equal."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(int(rng.integers(1, 13))):
        start = rows[int(rng.integers(len(rows)))] if rows and rng.random() < 0.7 else []
        kept = start[: int(rng.integers(len(start) + 1))]
        rows.append([*kept, *(int(i) for i in rng.integers(0, 2, int(rng.integers(0 if kept else 1, 20))))])
    return rows


@pytest.mark.parametrize("seed", range(100))
def test_every_row_stands_in_its_pieces(seed: int) -> None:
    rows = few_symbols(seed)
    for laid in (pack([np.array(row) for row in rows]), pad([np.array(row) for row in rows])):
        flat, at = laid.ids.flatten(), laid.positions.flatten()
        for row, place in zip(rows, laid.places, strict=True):
            assert flat[place].tolist() == row
            assert at[place].tolist() == list(range(len(row)))


@pytest.mark.parametrize("seed", range(100))
def test_pieces_continue_what_stands_before_them(seed: int) -> None:
    rows = few_symbols(seed)
    laid = pack([np.array(row) for row in rows])
    assert isinstance(laid.layout, Packed)
    assert sum(laid.layout.lengths) == laid.ids.size <= sum(map(len, rows))
    piece_of = np.repeat(np.arange(len(laid.layout.lengths)), laid.layout.lengths)
    for place in laid.places:
        chain = list(dict.fromkeys(piece_of[place].tolist()))
        assert laid.layout.before[chain[-1]] == tuple(chain[:-1])
        assert len(place) == sum(laid.layout.lengths[piece] for piece in chain)
    for before in laid.layout.before:
        assert all(laid.layout.before[piece] == before[:n] for n, piece in enumerate(before))


def test_common_beginnings_stand_once() -> None:
    rows = rows_of(branching())
    laid = pack(rows)
    # Once: the system prompt with the two ids that both prompts go on with, the second prompt's end, the long answer,
    # the repeated row. Two tokens in two rows (9, 9) and one in four (3) are not worth a piece.
    once = len(SYSTEM) + 2 + 7 + 14
    alone = (1 + 3) + (1 + 9) + 1 + (1 + 1) + (3 + 9 + 14 + 1) + (2 + 2) + (2 + 1) + 4
    assert laid.ids.size == once + alone
    assert WORTH == 8


def test_what_no_action_token_depends_on_is_not_read() -> None:
    rollout = Rollout.of([Trajectory([5, 6, 7, 8, 9], [False, True, True, False, False]), Trajectory([4, 3], [0, 0])])
    for packed in (True, False):
        batch = lay_out(rollout, [0, 1], packed=packed, device=torch.device("cpu"))
        assert batch.input_ids.numel() == (3 if packed else 4)
        assert sorted(set(batch.input_ids.flatten().tolist()) - {0}) == [4, 5, 6]
        whole = lay_out(rollout, [0, 1], packed=packed, device=torch.device("cpu"), after=True)
        assert whole.input_ids.numel() == (7 if packed else 10)
        assert whole.input_ids.flatten()[whole.last].tolist() == [9, 3]


def test_a_budget_counts_what_is_shared_once() -> None:
    rollout = branching()
    sizes = [
        batch.input_ids.numel()
        for batch in micro_batches(rollout, range(12), tokens=60, packed=True, device=torch.device("cpu"))
    ]
    whole = lay_out(rollout, range(12), packed=True, device=torch.device("cpu"))
    assert max(sizes) <= 60
    assert whole.input_ids.numel() <= sum(sizes) < sum(rollout.lengths)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_with_a_common_beginning_read_as_if_alone(name: str, dtype: str) -> None:
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    rollout, critic = branching(), shared_value_model(name, dtype)
    critic.plan = BatchPlan(10**6, "on")
    found, values = reading(name, critic.plan, dtype=dtype).evaluate(rollout), critic.values(rollout)
    for row, trajectory in enumerate(rollout.trajectories):
        alone, length = Rollout.of([trajectory]), rollout.lengths[row]
        plain = reading(name, BatchPlan(10**6, "off"), dtype=dtype).evaluate(alone)
        np.testing.assert_allclose(found.logp[row, :length], plain.logp[0], atol=tolerance)
        np.testing.assert_allclose(found.entropy[row, :length], plain.entropy[0], atol=tolerance)
        np.testing.assert_allclose(values.after[row], critic.values(alone).after[0], atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_common_beginning_gets_the_gradient_of_all_its_rows(name: str) -> None:
    """The slow twin reads every row whole, side by side."""
    dtype = "float32" if name == "gemma2" else "float64"
    tolerance = 1e-5 if name == "gemma2" else 1e-8
    policy = load_policy(folder(name), dtype=dtype, temperature=0.8)
    critic = shared_critic(policy, folder(name))
    rollout, rng = branching(), np.random.default_rng(3)
    found = policy.read(rollout, critic.head)
    assert found.logp is not None and found.values is not None
    noise = {key: np.where(rollout.mask, rng.normal(size=rollout.mask.shape), 0.0) for key in "abcd"}
    arrays = {
        "old_logp": found.logp + 0.3 * noise["a"],
        "advantages": noise["b"],
        "values": found.values + 0.3 * noise["c"],
        "returns": found.values + noise["d"],
    }
    batch = batch_of(rollout, arrays, policy.lm.model.dtype)
    slow = gradients_of(policy, critic, batch, config_of({"entropy_coef": 0.02}), BatchPlan(10**6, "off"))
    for budget in (10**6, 60):
        fast = gradients_of(policy, critic, batch, config_of({"entropy_coef": 0.02}), BatchPlan(budget, "on"))
        assert fast.loss == pytest.approx(slow.loss, abs=tolerance)
        for parameter, gradient in fast.by_name.items():
            expected = slow.by_name[parameter]
            error = float((gradient - expected).abs().max())
            assert error <= tolerance * max(1.0, float(expected.abs().max())), parameter
