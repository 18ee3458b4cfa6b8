"""Log-probabilities, entropies, values and greedy tokens of the five tiny models, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout, StopReason, Trajectory
from surefoot.rollout.decoding import Sampling, decode
from tests.models.oracle_models import (
    BATCHES,
    NAMES,
    ONE_ROW,
    PACKED,
    PADDED,
    oracle,
    reading,
    real,
    rollout_of,
    shared_policy,
    shared_value_model,
)

PLANS = {"packed": PACKED, "padded": PADDED, "one row": ONE_ROW}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", NAMES)
def test_logp_and_entropy_are_those_of_the_formulas(name: str, batch: str, plan: str, dtype: str) -> None:
    case = oracle(f"model_{name}")["batches"][batch]
    rollout = rollout_of(case["inputs"])
    for temperature in (1.0, 0.7):
        found = reading(name, PLANS[plan], dtype=dtype, temperature=temperature).evaluate(rollout)
        expected = case["temperature"][str(temperature)]
        assert found.logp.dtype == dtype
        np.testing.assert_allclose(found.logp[rollout.mask], real(expected["logprobs"], case["inputs"]), atol=1e-5)
        np.testing.assert_allclose(found.entropy[rollout.mask], real(expected["entropies"], case["inputs"]), atol=1e-5)
        assert not found.logp[~rollout.mask].any()
        assert not found.entropy[~rollout.mask].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_formulas(name: str, batch: str, plan: str, dtype: str) -> None:
    case = oracle(f"model_{name}")["batches"][batch]
    rollout = rollout_of(case["inputs"])
    critic = shared_value_model(name, dtype)
    critic.plan = PLANS[plan]
    found = critic.values(rollout)
    np.testing.assert_allclose(found.values[rollout.mask], real(case["values"], case["inputs"]), atol=1e-5)
    np.testing.assert_allclose(found.after, case["score_last_token"], atol=1e-5)
    assert not found.values[~rollout.mask].any()


@pytest.mark.parametrize("name", NAMES)
def test_values_of_every_place_are_those_of_the_formulas(name: str) -> None:
    """With every token but the first on the mask, column t is the value at place t - 1, the prompt's places too."""
    case = oracle(f"model_{name}")["batches"]["plain"]
    inputs = case["inputs"]
    rollout = rollout_of(inputs)
    whole = Rollout.of([Trajectory(t.tokens, [False] + [True] * (len(t.tokens) - 1)) for t in rollout.trajectories])
    found = shared_value_model(name).values(whole)
    masks = np.concatenate([inputs["prompt_mask"], inputs["response_mask"]], axis=1) == 1
    for row, length in enumerate(rollout.lengths):
        everywhere = np.array(case["values_all"][row])[masks[row]]
        np.testing.assert_allclose(found.values[row, 1:length], everywhere[:-1], atol=1e-5)
        np.testing.assert_allclose(found.after[row], everywhere[-1], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_continuations_are_those_of_the_formulas(name: str) -> None:
    case = oracle(f"model_{name}")["batches"]["plain"]
    prompts = [
        [t for t, m in zip(ids, mask, strict=True) if m]
        for ids, mask in zip(case["inputs"]["prompt_ids"], case["inputs"]["prompt_mask"], strict=True)
    ]
    draws = [np.zeros(8)] * len(prompts)
    found = decode(shared_policy(name).lm, prompts, draws, Sampling(8, greedy=True))
    compared = 0
    for row, (expected, margin) in enumerate(zip(case["greedy_tokens"], case["greedy_margin"], strict=True)):
        if margin >= 1e-3:
            assert found[row].tokens == expected
            assert found[row].stop_reason is StopReason.LENGTH
            compared += 1
    assert compared >= 3


def test_a_budget_of_one_token_reads_row_by_row() -> None:
    """Guards the plan that the tests above call 'one row'."""
    assert BatchPlan(tokens=1) == ONE_ROW
