"""Gradients and optimizer steps of the tiny Llama, through the product's own losses, update and optimizer."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from surefoot.config import Config
from surefoot.models.critic import SharedCritic, load_critic, shared_critic
from surefoot.models.policy import CausalPolicy, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.training.critic_update import update_critic
from surefoot.training.estimate import Batch
from surefoot.training.losses import Coefficients
from surefoot.training.optimizer import Optimizer
from surefoot.training.update import Learner, optimise, plan_minibatches
from tests.models.made_batches import RecordingOptimizer, batch_of, config_of, gradients_of
from tests.models.oracle_models import ORACLES, PACKED, PADDED, folder, in_layout, oracle, rollout_of

LR = 1e-4


@functools.cache
def case() -> Any:
    return oracle("llama_ppo_gradients")


def oracle_batch(dtype: torch.dtype, temperature: float = 1.0) -> Batch:
    inputs = case()["inputs"]
    rollout = rollout_of(inputs)
    old = "old_logprobs" if temperature == 1.0 else f"old_logprobs_for_temperature_{temperature}"
    names = {"old_logp": old, "values": "old_values", "returns": "returns", "advantages": "advantages"}
    return batch_of(rollout, {k: in_layout(inputs[v], inputs, rollout) for k, v in names.items()}, dtype)


def load(dtype: str, temperature: float = 1.0, **options: Any) -> tuple[CausalPolicy, SharedCritic]:
    policy = load_policy(folder("llama"), dtype=dtype, temperature=temperature, **options)
    return policy, shared_critic(policy, folder("llama"))


def oracle_name(name: str) -> str:
    """Our parameter names to the oracle's: the head is the value head, a separate critic's trunk the model."""
    return (
        name.replace("head.weight", "value_head.weight") if name == "head.weight" else name.replace("trunk.", "model.")
    )


def check_gradients(found: dict[str, Tensor], expected: dict[str, Any], tolerance: float) -> None:
    assert len(found) >= 21
    for name, gradient in found.items():
        name = oracle_name(name)
        norm = expected["grad_norm_per_parameter"][name]
        assert float(gradient.norm()) == pytest.approx(norm, rel=tolerance, abs=1e-12), name
        scale = tolerance * max(norm, 1e-12)
        for index, value in expected["sampled_gradients"][name].items():
            assert float(gradient.flatten()[int(index)]) == pytest.approx(value, abs=scale), name
        if name in expected["full_gradients"]:
            np.testing.assert_allclose(gradient.flatten(), np.ravel(expected["full_gradients"][name]), atol=scale)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("plan", [PACKED, PADDED, BatchPlan(tokens=20)], ids=["packed", "padded", "cut"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variant", ["policy", "policy_entropy", "combined", "policy_temperature_0.7"])
def test_gradients_of_every_parameter(variant: str, dtype: str, plan: BatchPlan, checkpointing: bool) -> None:
    expected = case()["variants"][variant]
    settings = expected["config"]
    temperature = settings["temperature"]
    policy, critic = load(dtype, temperature, gradient_checkpointing=checkpointing)
    cfg = config_of({"value_coef": settings["value_coef"], "entropy_coef": settings["entropy_coef"]})
    found = gradients_of(policy, critic, oracle_batch(getattr(torch, dtype), temperature), cfg, plan)
    losses = expected["losses"]
    policy_loss = losses["policy"] - settings["entropy_coef"] * losses["entropy"]
    assert found.loss == pytest.approx((policy_loss, losses["value"]), abs=2e-6)
    check_gradients(found.by_name, expected, 2e-5)
    assert found.update.grad_norm == pytest.approx(expected["global_grad_norm"], rel=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("plan", [PACKED, PADDED, BatchPlan(tokens=20)], ids=["packed", "padded", "cut"])
def test_gradients_of_a_separate_critic(plan: BatchPlan, checkpointing: bool) -> None:
    critic = load_critic(folder("llama"), dtype="float64", plan=plan, gradient_checkpointing=checkpointing)
    cfg = config_of({"value_coef": 1.0})
    batch = oracle_batch(torch.float64)
    optimizer = RecordingOptimizer([(1e-300, critic.trainable())], cfg.optim, total_steps=1, max_skipped=1)
    updates = list(update_critic(critic, optimizer, batch, plan_minibatches(batch, cfg, 1), cfg))
    expected = case()["variants"]["value"]
    assert updates[0].value_loss == pytest.approx(expected["losses"]["value"], abs=2e-6)
    check_gradients(optimizer.gradients[0], expected, 1e-5)


STEPS = {
    "adam_combined": ({"value_coef": 0.5, "entropy_coef": 0.01}, {"weight_decay": 0.0, "max_grad_norm": None}),
    "adam_policy": ({"value_coef": 0.0, "entropy_coef": 0.0}, {"weight_decay": 0.0, "max_grad_norm": None}),
    "adamw_combined_clipped": ({"value_coef": 0.5, "entropy_coef": 0.01}, {"weight_decay": 0.1, "max_grad_norm": 0.5}),
}


def step_config(steps: int, ppo: dict[str, Any], optim: dict[str, Any]) -> Config:
    return config_of(ppo | {"epochs": steps}, optim={"policy_lr": LR, "critic_lr": LR} | optim)


def check_parameters(before: dict[str, Tensor], after: dict[str, Tensor], expected: dict[str, Any], steps: int) -> None:
    for name, parameter in after.items():
        norm = expected["delta_norm_after_step"][str(steps)][oracle_name(name)]
        delta = parameter.detach() - before[name]
        assert float(delta.norm()) == pytest.approx(norm, rel=5e-3, abs=1e-10), name
        for index, value in expected["sampled_parameters_after_step"][str(steps)][oracle_name(name)].items():
            # Adam's first steps are lr times a sign: off by a step where a gradient is nearly zero.
            assert float(parameter.detach().flatten()[int(index)]) == pytest.approx(value, abs=0.1 * LR), name


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", STEPS)
def test_optimizer_steps(kind: str, dtype: str, steps: int) -> None:
    expected = case()["optimiser_steps"][kind]
    policy, critic = load(dtype)
    cfg = step_config(steps, *STEPS[kind])
    groups = [(LR, policy.trainable()), (LR, critic.trainable())]
    named = policy.trainable() | critic.trainable()
    before = {name: p.detach().clone() for name, p in named.items()}
    learner = Learner(policy, critic, Optimizer(groups, cfg.optim, total_steps=steps, max_skipped=1), None)
    updates = optimise(learner, oracle_batch(getattr(torch, dtype)), cfg, Coefficients(), step=1).policy
    norms = [update.grad_norm for update in updates]
    assert norms == pytest.approx(expected["grad_norm_before_clipping"][:steps], rel=2e-3)
    coefficient = cfg.ppo.value_coef
    losses = [(u.policy_loss or 0.0) + coefficient * (u.value_loss or 0.0) for u in updates]
    assert losses == pytest.approx(expected["loss_before_each_step_and_after_the_last"][:steps], abs=1e-4)
    check_parameters(before, named, expected, steps)
    if "full_parameters" in expected:
        wanted = load_file(ORACLES / expected["full_parameters"][str(steps)])
        ours = torch.cat([(p.detach() - before[n]).flatten() for n, p in named.items()]).double()
        theirs = torch.cat([wanted[oracle_name(n)].flatten() for n in named]).double()
        assert float((ours - theirs).norm() / theirs.norm()) < 5e-3


@pytest.mark.parametrize("steps", [1, 3])
def test_optimizer_steps_of_a_separate_critic(steps: int) -> None:
    expected = case()["optimiser_steps"]["adam_value"]
    critic = load_critic(folder("llama"), dtype="float64")
    named = critic.trainable()
    before = {name: p.detach().clone() for name, p in named.items()}
    cfg = step_config(steps, {"value_coef": 1.0}, {"max_grad_norm": None})
    batch = oracle_batch(torch.float64)
    optimizer = Optimizer([(LR, named)], cfg.optim, total_steps=steps, max_skipped=1)
    updates = list(update_critic(critic, optimizer, batch, plan_minibatches(batch, cfg, 1), cfg))
    assert [u.grad_norm for u in updates] == pytest.approx(expected["grad_norm_before_clipping"][:steps], rel=1e-4)
    assert [u.value_loss for u in updates] == pytest.approx(
        expected["loss_before_each_step_and_after_the_last"][:steps], abs=1e-5
    )
    check_parameters(before, named, expected, steps)
