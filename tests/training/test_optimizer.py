"""AdamW, its schedule in optimizer steps, gradient clipping, and the guard against non-finite numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefoot.assembly.models import build_learner
from surefoot.config import OptimSection
from surefoot.errors import CheckpointError, TrainingError
from surefoot.training.optimizer import Optimizer, schedule_factor
from tests.builders import make_config, make_parts, save_gpt2


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def optimizer(*parameters: nn.Parameter, total_steps: int = 100, max_skipped: int = 2, **section: Any) -> Optimizer:
    section = {"policy_lr": 0.1, "max_grad_norm": None, **section}
    groups = [(section["policy_lr"], {f"p{i}": p for i, p in enumerate(parameters)})]
    return Optimizer(groups, OptimSection(**section), total_steps=total_steps, max_skipped=max_skipped)


def take(optimizer: Optimizer, *gradients: float, loss: float = 1.0) -> Any:
    """One step in which every number of every parameter has the next of these gradients."""
    rest = list(gradients)
    for p in optimizer.named.values():
        p.grad = torch.tensor([rest.pop(0) if len(rest) > 1 else rest[0] for _ in range(p.numel())], dtype=p.dtype)
    return optimizer.step(loss)


# -------------------------------------------------------------------------------------------------------- schedule


def test_the_schedule_counts_optimizer_steps_of_the_whole_run(tmp_path: Path) -> None:
    """ALG-22: 8 rollouts x 4 epochs x 4 minibatches = 128 steps; half-way at 64, 0.875 after the first rollout."""
    model = save_gpt2(tmp_path)
    cfg = make_config(
        model,
        run={"steps": 1024 // 128},
        rollout={"prompts_per_step": 128},
        ppo={"epochs": 4, "minibatches": 4},
        optim={"policy_lr": 1.0, "critic_lr": 0.5, "schedule": "linear"},
    )
    assert cfg.optimizer_steps == 128
    parts = make_parts(cfg, len)
    learner = build_learner(cfg, parts.learner.policy, parts.learner.critic)
    for adam, rate in ((learner.policy_optimizer, 1.0), (learner.critic_optimizer, 0.5)):
        assert adam is not None
        rates = [adam.step(0.0).lr for _ in range(128)]
        assert rates[0] == rate
        assert rates[16] == pytest.approx(0.875 * rate)
        assert rates[64] == pytest.approx(0.5 * rate)
        assert rates[127] == pytest.approx(rate / 128)


def test_the_learning_rate_of_the_schedule_is_the_one_that_acts() -> None:
    """Adam's first step has the size of the rate: it shows which one was used."""
    p = parameter(1.0)
    adam = optimizer(p, total_steps=4, schedule="linear")
    moves = []
    for _ in range(4):
        before = float(p.detach())
        take(adam, 1.0)
        moves.append(before - float(p.detach()))
    assert moves == pytest.approx([0.1, 0.075, 0.05, 0.025], rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("constant", 2, [0.5, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ("linear", 2, [0.5, 0.75, 0.5, 0.25]),
    ],
)
def test_schedules(schedule: str, warmup: int, expected: list[float]) -> None:
    found = [schedule_factor(step, schedule=schedule, warmup=warmup, total=4) for step in range(4)]
    assert found == pytest.approx(expected)


def test_a_schedule_never_turns_negative() -> None:
    for schedule in ("linear", "cosine"):
        assert schedule_factor(9, schedule=schedule, warmup=0, total=4) == 0.0


def test_each_group_has_its_own_rate() -> None:
    policy, head = parameter(0.0), parameter(0.0)
    cfg = OptimSection(policy_lr=0.1, max_grad_norm=None)
    adam = Optimizer([(0.1, {"policy": policy}), (0.01, {"head": head})], cfg, total_steps=9, max_skipped=1)
    assert take(adam, 1.0).lr == 0.1
    assert float(policy.detach()) == pytest.approx(-0.1)
    assert float(head.detach()) == pytest.approx(-0.01)


# ----------------------------------------------------------------------------------------------- clipping and decay


def test_gradients_are_scaled_down_to_a_norm_over_all_parameters() -> None:
    """A norm of 5 over two parameters; with Adam's epsilon large the step is in proportion to the gradient."""
    a, b = parameter(0.0), parameter(0.0)
    adam = optimizer(a, b, max_grad_norm=1.0, eps=1e6, policy_lr=1e6)
    outcome = take(adam, 3.0, 4.0)
    assert outcome.grad_norm == pytest.approx(5.0)
    assert (float(a.detach()), float(b.detach())) == pytest.approx((-0.6, -0.8), rel=1e-5)
    small = optimizer(parameter(0.0), max_grad_norm=1.0, eps=1e6, policy_lr=1e6)
    take(small, 0.5)
    assert float(small.named["p0"].detach()) == pytest.approx(-0.5, rel=1e-5)


def apart(a: nn.Parameter, b: nn.Parameter, limit: float | None = 1.0) -> Optimizer:
    cfg = OptimSection(max_grad_norm=limit, eps=1e6)
    return Optimizer([(1e6, {"a": a}), (1e6, {"b": b})], cfg, total_steps=9, max_skipped=2, clip_apart=True)


def test_groups_that_are_clipped_apart_do_not_set_each_others_step() -> None:
    """In one norm with 30, a gradient of 0.3 would shrink to 0.01; by itself it stays below the limit."""
    a, b = parameter(0.0), parameter(0.0)
    outcome = take(apart(a, b), 0.3, 30.0)
    assert (outcome.grad_norm, outcome.other_norms) == (pytest.approx(0.3), (pytest.approx(30.0),))
    assert (float(a.detach()), float(b.detach())) == pytest.approx((-0.3, -1.0), rel=1e-5)


@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_non_finite_group_stops_the_step_of_all(limit: float | None) -> None:
    a, b = parameter(1.0), parameter(2.0)
    outcome = take(apart(a, b, limit), 0.5, math.nan)
    assert (outcome.skipped, outcome.grad_norm, outcome.other_norms) == (True, 0.5, (None,))
    assert (float(a.detach()), float(b.detach())) == (1.0, 2.0)


def test_without_a_limit_gradients_are_left_as_they_are() -> None:
    p = parameter(0.0)
    assert take(optimizer(p, max_grad_norm=None, eps=1e6, policy_lr=1e6), 5.0).grad_norm == 5.0
    assert float(p.detach()) == pytest.approx(-5.0, rel=1e-4)


def test_weight_decay_is_decoupled_from_the_gradient() -> None:
    p = parameter(2.0)
    take(optimizer(p, weight_decay=0.5), 1.0)
    assert float(p.detach()) == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1)


def test_a_parameter_without_a_gradient_is_not_touched_not_even_by_decay() -> None:
    """The policy during the critic's warm-up."""
    trained, frozen = parameter(1.0), parameter(1.0)
    adam = optimizer(trained, frozen, weight_decay=0.5)
    trained.grad = torch.ones_like(trained)
    adam.step(0.0)
    assert float(frozen.detach()) == 1.0
    assert float(trained.detach()) != 1.0


# --------------------------------------------------------------------------------------------------- exact resume


def test_a_restored_optimizer_takes_the_step_that_would_have_come() -> None:
    """CKP-02: gradients 1, 1, -1 end at 0.77380074; fresh moments would go to 0.9."""
    p = parameter(1.0)
    adam = optimizer(p)
    take(adam, 1.0)
    take(adam, 1.0)
    assert float(p.detach()) == pytest.approx(0.8, abs=1e-7)
    tensors, counts = adam.state()
    restored = parameter(float(p.detach()))
    other = optimizer(restored)
    other.load(tensors, counts)
    take(other, -1.0)
    assert float(restored.detach()) == pytest.approx(0.77380074, abs=1e-8)
    take(adam, -1.0)
    assert torch.equal(p, restored)
    assert (other.steps_taken, adam.steps_taken) == (3, 3)


def test_a_restored_schedule_goes_on_where_it_was() -> None:
    adam = optimizer(parameter(0.0), total_steps=10, schedule="linear")
    rates = [take(adam, 1.0).lr for _ in range(4)]
    other = optimizer(parameter(0.0), total_steps=10, schedule="linear")
    other.load(*adam.state())
    assert take(other, 1.0).lr == pytest.approx(rates[-1] - 0.01)


def test_a_restored_optimizer_moves_by_itself() -> None:
    adam, other = optimizer(parameter(0.0)), optimizer(parameter(0.0))
    take(adam, 1.0)
    tensors, counts = adam.state()
    before = {name: value.clone() for name, value in tensors.items()}
    other.load(tensors, counts)
    take(other, 5.0)
    assert all(torch.equal(tensors[name], before[name]) for name in before)
    assert not any(torch.equal(other.state()[0][name], before[name]) for name in before)


def test_the_state_of_other_parameters_is_refused() -> None:
    adam = optimizer(parameter(0.0), parameter(1.0))
    take(adam, 1.0)
    with pytest.raises(CheckpointError, match="p1"):
        optimizer(parameter(0.0)).load(*adam.state())


# ----------------------------------------------------------------------------------------------- non-finite numbers


@pytest.mark.parametrize(
    ("gradient", "loss"), [(math.nan, 1.0), (math.inf, 1.0), (-math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)]
)
@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_non_finite_step_is_skipped_and_counted(gradient: float, loss: float, limit: float | None) -> None:
    p = parameter(1.0, 2.0)
    adam = optimizer(p, max_grad_norm=limit)
    take(adam, 1.0)
    weights, moments = p.detach().clone(), {name: value.clone() for name, value in adam.state()[0].items()}
    outcome = take(adam, gradient, 1.0, loss=loss)
    assert outcome.skipped
    assert outcome.grad_norm is None or math.isfinite(outcome.grad_norm)
    assert torch.equal(p, weights)
    assert all(torch.equal(value, moments[name]) for name, value in adam.state()[0].items())
    assert (adam.skipped_total, adam.skipped_in_a_row, adam.steps_taken) == (1, 1, 2)
    assert p.grad is None, "the spoilt gradient must not reach the next step"
    assert not take(adam, 1.0).skipped
    assert (adam.skipped_total, adam.skipped_in_a_row) == (1, 0)
    assert bool(p.isfinite().all())


def test_too_many_skips_in_a_row_end_the_run() -> None:
    adam = optimizer(parameter(1.0), max_skipped=2)
    for _ in range(2):
        take(adam, math.nan)
    take(adam, 1.0)  # a sound step in between: the count starts again
    for _ in range(2):
        assert take(adam, math.nan).skipped
    with pytest.raises(TrainingError, match="3 optimizer steps in a row") as caught:
        take(adam, math.nan)
    assert caught.value.exit_code == 3
    assert adam.skipped_total == 5


def test_skips_are_counted_across_a_resume() -> None:
    adam = optimizer(parameter(1.0), max_skipped=2)
    take(adam, math.nan)
    other = optimizer(parameter(1.0), max_skipped=2)
    other.load(*adam.state())
    take(other, math.nan)
    with pytest.raises(TrainingError):
        take(other, math.nan)
