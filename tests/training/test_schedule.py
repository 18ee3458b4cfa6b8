"""Learning rates over whole runs: they end at 0 with the run, whatever warm-up and early stops leave out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefoot.config import OptimSection
from surefoot.training.clock import StepClock
from surefoot.training.optimizer import Optimizer
from surefoot.training.step import Parts, ppo_step
from tests.builders import make_config, make_parts, make_prompts, merged, save_gpt2

PROMPTS = make_prompts((1, 2), (1, 2, 3, 4), (5,), (6, 7, 8))
STEPS, PER_STEP = 5, 4
PLANNED = STEPS * PER_STEP
RATES = {"policy": 1e-2, "critic": 2e-2}


def run(
    folder: Path, *, ends_warm_up: int | None = None, **sections: Any
) -> tuple[Parts, dict[str, list[list[float]]]]:
    """A run of five steps; by model and step, the rates that its optimizer steps were taken with."""
    base = {
        "run": {"steps": STEPS},
        "ppo": {"epochs": 2, "minibatches": 2},
        "optim": {"policy_lr": RATES["policy"], "critic_lr": RATES["critic"], "schedule": "linear"},
    }
    cfg = make_config(save_gpt2(folder), **merged(base, sections))
    parts = make_parts(cfg, lambda actions: sum(actions) / 40)
    learner = parts.learner
    rates: dict[str, list[list[float]]] = {"policy": [], "critic": []}
    for step in range(1, STEPS + 1):
        for steps in rates.values():
            steps.append([])
        if learner.critic_optimizer is None:
            listen(learner.policy_optimizer, rates["policy"][-1], rates["critic"][-1])
        else:
            listen(learner.policy_optimizer, rates["policy"][-1])
            listen(learner.critic_optimizer, rates["critic"][-1])
        ppo_step(step, PROMPTS, parts, cfg, StepClock())
        parts.warmed_up |= step == ends_warm_up
    return parts, rates


def listen(optimizer: Optimizer, *heard: list[float]) -> None:
    """Note each group's rate at each step, as long as it has gradients."""
    plain = Optimizer.step

    def step(loss: float) -> Any:
        moving = [any(p.grad is not None for p in group["params"]) for group in optimizer.adam.param_groups]
        outcome = plain(optimizer, loss)
        for into, group, moves in zip(heard, optimizer.adam.param_groups, moving, strict=True):
            if moves:
                into.append(float(group["lr"]))
        return outcome

    optimizer.step = step  # type: ignore[method-assign]


def linear(rate: float, start: int, *positions: int) -> list[float]:
    """From the full rate at ``start`` to 0 after the last planned step."""
    return [rate * (1 - (position - start) / (PLANNED - start)) for position in positions]


@pytest.mark.parametrize("kind", ["separate", "shared"])
@pytest.mark.parametrize(("warmup", "ends", "begins"), [(0, None, 0), (2, None, 2), (4, 1, 1)])
def test_the_policys_schedule_goes_from_its_first_step_to_the_runs_last(
    kind: str, warmup: int, ends: int | None, begins: int, tmp_path: Path
) -> None:
    """The critic warms up for two steps, or for four of which the explained variance leaves out three."""
    critic: dict[str, Any] = {"kind": kind, "warmup_steps": warmup}
    if ends is not None:
        critic["warmup_explained_variance"] = 1.0
    _, rates = run(tmp_path, ends_warm_up=ends, critic=critic)
    for step, (policy, own) in enumerate(zip(rates["policy"], rates["critic"], strict=True)):
        positions = range(step * PER_STEP, (step + 1) * PER_STEP)
        assert own == pytest.approx(linear(RATES["critic"], 0, *positions))
        expected = linear(RATES["policy"], begins * PER_STEP, *positions) if step >= begins else []
        assert policy == pytest.approx(expected)
    assert rates["policy"][begins][0] == RATES["policy"]
    assert rates["policy"][-1][-1] == pytest.approx(RATES["policy"] / (PLANNED - begins * PER_STEP))


def test_steps_that_are_left_out_count(tmp_path: Path) -> None:
    """Each step's updates of the policy stop after the first one, and the critic's go on."""
    _, rates = run(tmp_path, critic={"kind": "separate"}, ppo={"max_update_kl": 1e-12})
    first = [step * PER_STEP for step in range(STEPS)]
    assert [len(step) for step in rates["policy"]] == [1] * STEPS
    assert [step[0] for step in rates["policy"]] == pytest.approx(linear(RATES["policy"], 0, *first))
    assert [len(step) for step in rates["critic"]] == [PER_STEP] * STEPS
    assert rates["critic"][-1][-1] == pytest.approx(RATES["critic"] / PLANNED)


def test_steps_with_fewer_rows_than_minibatches_count(tmp_path: Path) -> None:
    """Two rows of four have no score in every step."""
    few = {"reward": {"max_failures": 1.0}, "ppo": {"minibatches": 4, "epochs": 1}, "critic": {"kind": "separate"}}
    base = {"run": {"steps": STEPS}, "optim": {"schedule": "linear", "policy_lr": RATES["policy"]}}
    cfg = make_config(save_gpt2(tmp_path), **merged(base, few))
    parts = make_parts(cfg, lambda actions: 1.0)
    calls = iter(range(1000))
    parts.reward.value = lambda actions: None if next(calls) % 2 else 1.0  # type: ignore[attr-defined]
    heard: list[float] = []
    listen(parts.learner.policy_optimizer, heard)
    for step in range(1, STEPS + 1):
        ppo_step(step, PROMPTS, parts, cfg, StepClock())
    positions = [step * PER_STEP + update for step in range(STEPS) for update in range(2)]
    assert heard == pytest.approx(linear(RATES["policy"], 0, *positions))


def test_the_rise_begins_with_the_policy_as_well(tmp_path: Path) -> None:
    """``optim.warmup_steps`` of the policy are not used up while the critic alone is trained."""
    for kind in ("separate", "shared"):
        optim = {"schedule": "constant", "warmup_steps": 4}
        _, rates = run(tmp_path / kind, critic={"kind": kind, "warmup_steps": 2}, optim=optim)
        assert rates["policy"][2] == pytest.approx([RATES["policy"] * n / 4 for n in (1, 2, 3, 4)])
        assert rates["critic"][2] == [RATES["critic"]] * PER_STEP


def optimizer(*parameters: nn.Parameter, **section: Any) -> Optimizer:
    groups = [(0.1, {f"p{i}": p}) for i, p in enumerate(parameters)]
    cfg = OptimSection(policy_lr=0.1, max_grad_norm=None, schedule="cosine", **section)
    return Optimizer(groups, cfg, total_steps=8, max_skipped=1)


def test_a_restored_optimizer_knows_where_it_stands() -> None:
    """Its second group has not begun when it is saved, and its next step comes after two that were left out."""
    rates = []
    for restored in (False, True):
        still, moving = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        adam = optimizer(moving, still)
        adam.move_to(1)
        moving.grad = torch.ones(1)
        adam.step(0.0)
        if restored:
            other = optimizer(moving, still)
            other.load(*adam.state())
            adam = other
        assert (adam.position, adam.starts) == (2, [1, None])
        adam.move_to(4)
        moving.grad = still.grad = torch.ones(1)
        adam.step(0.0)
        rates.append([float(group["lr"]) for group in adam.adam.param_groups])
    assert rates[0] == rates[1] == pytest.approx([0.1 * 0.5 * (1 + math.cos(math.pi * 3 / 7)), 0.1])


def test_a_state_from_before_positions_were_kept_goes_on_from_the_steps_taken() -> None:
    p = nn.Parameter(torch.zeros(1))
    adam = optimizer(p)
    for _ in range(3):
        p.grad = torch.ones(1)
        adam.step(0.0)
    tensors, counts = adam.state()
    other = optimizer(p)
    other.load(tensors, {key: value for key, value in counts.items() if key not in ("position", "starts")})
    assert (other.position, other.starts) == (3, [0])
