"""How a batch is cut, padded, packed, ordered and composed changes neither readings, losses nor gradients."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from surefoot.models.batching import lay_out, micro_batches
from surefoot.models.critic import SharedCritic, shared_critic
from surefoot.models.policy import CausalPolicy, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout, Trajectory
from surefoot.training.estimate import Batch
from tests.models.made_batches import Gradients, batch_of, config_of, gradients_of, with_garbage, with_rows
from tests.models.oracle_models import NAMES, folder, reading, shared_value_model

SDPA = ("llama", "gpt2", "qwen2", "qwen3")
LENGTHS = (9, 4, 23, 1, 14, 9, 2, 30)
BUDGETS = {"one row": 1, "two rows": 46, "eight rows": 10**6}


@functools.cache
def ragged() -> Rollout:
    """Rows of many lengths, with given tokens between action tokens, ids that are pads elsewhere, and an empty row."""
    rng = np.random.default_rng(7)
    rows = []
    for length in LENGTHS:
        mask = [False, *(rng.random(length) < 0.7)]
        rows.append(Trajectory([int(t) for t in rng.integers(0, 128, length + 1)], [bool(m) for m in mask]))
    rows.append(Trajectory([5, 6, 0], [False] * 3))
    return Rollout.of(rows)


def made_batch(policy: CausalPolicy, critic: SharedCritic) -> Batch:
    """Ratios on both sides of the clip bounds, values on both sides of theirs."""
    rollout, rng = ragged(), np.random.default_rng(3)
    found = policy.read(rollout, critic.head)
    assert found.logp is not None and found.values is not None
    noise = {name: np.where(rollout.mask, rng.normal(size=rollout.mask.shape), 0.0) for name in "abcd"}
    arrays = {
        "old_logp": found.logp + 0.3 * noise["a"],
        "advantages": noise["b"],
        "values": found.values + 0.3 * noise["c"],
        "returns": found.values + noise["d"],
    }
    return batch_of(rollout, arrays, policy.lm.model.dtype)


@functools.cache
def trained(name: str, dtype: str) -> tuple[CausalPolicy, SharedCritic, Batch, Gradients]:
    policy = load_policy(folder(name), dtype=dtype, temperature=0.8)
    critic = shared_critic(policy, folder(name))
    batch = made_batch(policy, critic)
    whole = gradients_of(policy, critic, batch, config_of(PPO), BatchPlan(10**6, "off"))
    assert min(float(g.norm()) for name, g in whole.by_name.items() if "bias" not in name) > 0
    return policy, critic, batch, whole


PPO = {"entropy_coef": 0.02}


def check(name: str, found: Gradients, whole: Gradients) -> None:
    tolerance = 1e-5 if name == "gemma2" else 1e-6
    assert found.loss == pytest.approx(whole.loss, abs=tolerance)
    for parameter, gradient in found.by_name.items():
        expected = whole.by_name[parameter]
        assert float((gradient - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max())), parameter


def model_and_dtype(name: str) -> str:
    return "float32" if name == "gemma2" else "float64"


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_change_no_gradient(name: str, budget: str, packing: str) -> None:
    policy, critic, batch, whole = trained(name, model_and_dtype(name))
    plan = BatchPlan(BUDGETS[budget], packing)
    packed = packing == "on"
    count = len(
        list(micro_batches(batch.rollout, range(9), tokens=plan.tokens, packed=packed, device=policy.lm.device))
    )
    assert count == 9 if budget == "one row" else count >= 3 if budget == "two rows" else count == 1
    check(name, gradients_of(policy, critic, batch, config_of(PPO), plan), whole)


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("name", NAMES)
def test_order_padding_and_garbage_change_no_gradient(name: str, packing: str) -> None:
    policy, critic, batch, whole = trained(name, model_and_dtype(name))
    plan = BatchPlan(60, packing)
    order = [3, 8, 0, 7, 5, 1, 2, 6, 4]
    for other in (with_rows(batch, order), with_garbage(batch, 11), with_garbage(with_rows(batch, order), 1)):
        check(name, gradients_of(policy, critic, other, config_of(PPO), plan), whole)


@pytest.mark.parametrize("name", NAMES)
def test_recomputing_layers_changes_no_gradient(name: str) -> None:
    _, _, batch, whole = trained(name, model_and_dtype(name))
    dtype = model_and_dtype(name)
    policy = load_policy(folder(name), dtype=dtype, temperature=0.8, gradient_checkpointing=True)
    critic = shared_critic(policy, folder(name))
    for packing in ("on", "off"):
        check(name, gradients_of(policy, critic, batch, config_of(PPO), BatchPlan(60, packing)), whole)


@pytest.mark.parametrize("how", ["sequence-mean", "sequence-sum"])
def test_other_aggregations_are_cut_alike(how: str) -> None:
    policy, critic, batch, _ = trained("llama", "float64")
    cfg = config_of(PPO | {"aggregate": how})
    whole = gradients_of(policy, critic, batch, cfg, BatchPlan(10**6, "off"))
    check("llama", gradients_of(policy, critic, batch, cfg, BatchPlan(1, "on")), whole)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_reads_the_same_in_any_company(name: str, dtype: str) -> None:
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    rollout, critic = ragged(), shared_value_model(name, dtype)
    numbers = []
    for plan in (BatchPlan(1, "off"), BatchPlan(10**6, "off"), BatchPlan(10**6, "on"), BatchPlan(40, "on")):
        critic.plan = plan
        for rows in (list(range(9)), [8, 2, 7, 0, 1, 3, 6, 5, 4]):
            part = Rollout.of([rollout.trajectories[r] for r in rows])
            back = np.argsort(rows)
            found, values = reading(name, plan, dtype=dtype).evaluate(part), critic.values(part)
            numbers.append((found.logp[back], found.entropy[back], values.values[back], values.after[back]))
    alone = [reading(name, BatchPlan(), dtype=dtype).evaluate(Rollout.of([t])) for t in rollout.trajectories]
    for row, evaluation in enumerate(alone):
        length = rollout.lengths[row]
        np.testing.assert_allclose(evaluation.logp[0], numbers[0][0][row, :length], atol=tolerance)
    for other in numbers[1:]:
        for a, b in zip(numbers[0], other, strict=True):
            np.testing.assert_allclose(a, b, atol=tolerance)


def test_a_budget_holds_padding_too_and_one_row_always_fits() -> None:
    rollout = ragged()
    for packed in (True, False):
        for budget in (1, 20, 46, 64):
            seen = []
            batches = micro_batches(rollout, range(9), tokens=budget, packed=packed, device=torch.device("cpu"))
            for batch in batches:
                assert batch.input_ids.numel() <= budget or len(batch.rows) == 1
                seen += batch.rows.tolist()
            assert sorted(seen) == list(range(9))


def test_tokens_are_paired_with_the_states_before_them() -> None:
    rollout = ragged()
    for packed in (True, False):
        batch = lay_out(rollout, [2, 0, 8], packed=packed, device=torch.device("cpu"), after=True)
        flat = batch.input_ids.flatten()
        rows, columns = batch.where
        np.testing.assert_array_equal(batch.tokens, rollout.tokens[rows, columns])
        np.testing.assert_array_equal(flat[batch.states], rollout.tokens[rows, columns - 1])
        np.testing.assert_array_equal(batch.position_ids.flatten()[batch.states], columns - 1)
        np.testing.assert_array_equal(flat[batch.last], [rollout.tokens[r, rollout.lengths[r] - 1] for r in (2, 0, 8)])
        assert len(rows) == int(rollout.mask[[2, 0, 8]].sum())
        np.testing.assert_array_equal(batch.rows[batch.local], rows)


def test_a_batch_without_action_tokens_reads_as_zero() -> None:
    rollout = Rollout.of([Trajectory([5, 6, 0], [False] * 3), Trajectory([7], [False])])
    found = reading("llama", BatchPlan()).evaluate(rollout)
    assert found.logp.shape == found.entropy.shape == (2, 3)
    assert not found.logp.any() and not found.entropy.any()
    after = shared_value_model("llama").values(rollout).after
    assert np.isfinite(after).all() and after.any()


def test_an_action_token_without_a_state_before_it_is_refused() -> None:
    rollout = ragged()
    broken = replace(rollout, mask=np.ones_like(rollout.mask))
    with pytest.raises(ValueError, match="first token"):
        reading("llama", BatchPlan()).evaluate(broken)
