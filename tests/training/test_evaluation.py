"""Held-out scores: every row once, an honest interval, settings of their own, and training left untouched."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.assembly.train import Inputs, build_parts, read_inputs, train
from surefoot.config import Config
from surefoot.envs import SingleTurn
from surefoot.evals.student import student_t_975
from surefoot.models.policy import CausalPolicy, load_policy
from surefoot.records import Prompt, Rollout, Score, Trajectory
from surefoot.training.durable import read_records
from surefoot.training.evaluation import Evaluator, confidence_interval, summarise
from tests.builders import toy_run


def held_out(folder: Path, **sections: Any) -> Config:
    """A toy run that evaluates on its seven prompts."""
    section = {"prompts": str(folder / "prompts.jsonl"), **sections.pop("evaluate", {})}
    return toy_run(folder, evaluate=section, **sections)


def evaluator(cfg: Config, inputs: Inputs, policy: CausalPolicy, **changes: Any) -> Evaluator:
    assert inputs.held_out is not None
    parts = build_parts(cfg, inputs)
    made = Evaluator(
        prompts=inputs.held_out.prompts,
        reward=inputs.reward,
        reference=parts.reference,
        environment=SingleTurn(),
        text=inputs.codec,
        stop_ids=inputs.codec.stop_ids,
        cfg=cfg,
    )
    return replace(made, **changes)


# --------------------------------------------------------------------------------------------------- the numbers


def rollout_of(groups: list[int], tokens: int = 1) -> Rollout:
    return Rollout.of(
        [Trajectory([1] + [2] * tokens, [False] + [True] * tokens, group=g, prompt=Prompt("p", (1,))) for g in groups]
    )


def summary(groups: list[int], values: list[float | None]) -> Any:
    rollout = rollout_of(groups)
    scores = [Score(v, None if v is not None else "failed") for v in values]
    return summarise(3, rollout, scores, {}, np.where(rollout.mask, -math.log(4.0), 0.0))


def test_every_prompt_counts_once_whatever_the_number_of_its_samples() -> None:
    """EVL-05: five rows give 0.6, not the mean of two batches' means; samples are averaged by prompt first."""
    assert summary([0, 1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5, 1.0]).mean == pytest.approx(0.6)
    found = summary([0, 0, 0, 1], [0.0, 0.5, 1.0, 1.0])
    assert (found.mean, found.prompts) == (pytest.approx(0.75), 2)


def test_failed_scores_are_left_out_and_counted() -> None:
    found = summary([0, 0, 1, 2], [1.0, None, None, 0.0])
    assert (found.mean, found.prompts) == (0.5, 2)
    assert found.metrics["evaluate/failed_share"] == 0.5
    nothing = summary([0, 1], [None, None])
    assert (nothing.mean, nothing.low, nothing.high, nothing.prompts) == (None, None, None, 0)


def test_rewards_by_token_count_as_part_of_the_score() -> None:
    rollout = rollout_of([0, 1], tokens=2)
    scores = [Score(1.0, None, {}, (0.0, 0.25, 0.25)), Score(0.0, None, {}, (0.0, 0.0, 0.5))]
    assert summarise(1, rollout, scores, {}, np.zeros(rollout.tokens.shape)).mean == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("degrees", "table"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (29, 2.04523), (99, 1.98422)],
)
def test_quantiles_of_student_are_those_of_the_tables(degrees: int, table: float) -> None:
    assert student_t_975(degrees) == pytest.approx(table, rel=2e-3)


def test_the_interval_of_a_mean_by_hand() -> None:
    """1, 2, 3, 4: mean 2.5, deviation sqrt(5/3), t = 3.18245 with 3 degrees of freedom."""
    half = 3.18245 * math.sqrt(5 / 3) / 2
    assert confidence_interval([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5 - half, 2.5 + half), abs=2e-3 * half)
    assert confidence_interval([1.0]) == (None, None)


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    dice, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        low, high = confidence_interval(dice.normal(size=6).tolist())
        assert low is not None and high is not None
        covered += low < 0 < high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


# --------------------------------------------------------------------------------------------- what is evaluated


def test_every_row_is_evaluated_however_decoding_is_cut(tmp_path: Path) -> None:
    """EVL-05: 7 rows in groups of 3 or 200 are 7 rows, and the numbers are the same."""
    found = []
    for rows in (None, 3, 200):
        cfg = held_out(tmp_path, rollout={"max_rows": rows}, evaluate={"samples_per_prompt": 2})
        inputs = read_inputs(cfg)
        result = evaluator(cfg, inputs, policy := build_parts(cfg, inputs).learner.policy)(policy, 1)
        inputs.reward.close()
        assert result.prompts == 7
        assert len(result.scores) == 14
        found.append((result.mean, [t.tokens for t in result.rollout.trajectories]))
    assert found[0] == found[1] == found[2]


def test_evaluation_has_sampling_settings_of_its_own_and_stores_them(tmp_path: Path) -> None:
    """EVL-06: training draws at temperature 1; greedy, top-k of 1 and a tiny top-p are the likeliest tokens."""
    base = {"rollout": {"temperature": 1.0, "max_new_tokens": 5}}
    found = {}
    for name, section in {
        "greedy": {"temperature": 0.0},
        "top-k": {"top_k": 1},
        "top-p": {"top_p": 1e-6},
        "cold": {"temperature": 1e-4},
        "warm": {"temperature": 1.0},
        "other seed": {"temperature": 1.0, "seed": 1},
        "short": {"temperature": 0.0, "max_new_tokens": 2},
    }.items():
        cfg = held_out(tmp_path, evaluate=section, **base)
        inputs = read_inputs(cfg)
        found[name] = evaluator(cfg, inputs, policy := build_parts(cfg, inputs).learner.policy)(policy, 1)
        inputs.reward.close()
        settings = found[name].settings
        assert settings["temperature"] == section.get("temperature", 1.0)
        assert (settings["top_k"], settings["top_p"]) == (section.get("top_k", 0), section.get("top_p", 1.0))
        assert (settings["seed"], settings["samples_per_prompt"]) == (section.get("seed", 0), 1)
        assert settings["max_new_tokens"] == section.get("max_new_tokens", 5)
    tokens = {name: [t.tokens for t in result.rollout.trajectories] for name, result in found.items()}
    assert tokens["greedy"] == tokens["top-k"] == tokens["top-p"] == tokens["cold"]
    assert tokens["warm"] != tokens["greedy"] and tokens["warm"] != tokens["other seed"]
    assert max(len(r.response.split()) for r in found["short"].rollout.trajectories) <= 2


def test_evaluation_leaves_training_as_it_was(tmp_path: Path) -> None:
    """EVL-06: not one number of the training steps depends on whether there is an evaluation."""
    with_it = held_out(tmp_path, run={"name": "with", "steps": 4}, evaluate={"every": 1, "samples_per_prompt": 2})
    without = toy_run(tmp_path, run={"name": "without", "steps": 4})
    lines = []
    for cfg in (with_it, without):
        folder = train(cfg).folder
        skipped = ("time/", "memory/", "throughput/", "evaluate/")
        lines.append(
            [
                {k: v for k, v in line.items() if not k.startswith(skipped)}
                for line in read_records(folder / "metrics.jsonl")
            ]
        )
    assert lines[0] == lines[1]
    record = read_records(Path(with_it.run.dir) / "with" / "metrics.jsonl")[-1]
    assert record["evaluate/score_mean"] is not None


def test_evaluation_touches_no_generator_and_no_module(tmp_path: Path) -> None:
    cfg = held_out(tmp_path)
    inputs = read_inputs(cfg)
    policy = build_parts(cfg, inputs).learner.policy
    evaluate = evaluator(cfg, inputs, policy)
    state = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    weights = {n: p.detach().clone() for n, p in policy.trainable().items()}
    modes = [m.training for m in policy.module.modules()]
    first, again = evaluate(policy, 1), evaluate(policy, 2)
    inputs.reward.close()
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert np.random.get_state()[1].tolist() == state[1]
    assert random.getstate() == state[2]
    assert [m.training for m in policy.module.modules()] == modes
    assert all(torch.equal(p, weights[n]) and p.requires_grad and p.grad is None for n, p in policy.trainable().items())
    assert first.metrics == again.metrics, "the same weights, the same draws: curves compare"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_saved_model_evaluated_alone_gives_the_same_number(tmp_path: Path, temperature: float) -> None:
    """EVL-06: what was written in the run can be reproduced from the model folder and the stored settings."""
    cfg = held_out(
        tmp_path,
        run={"steps": 3},
        evaluate={"temperature": temperature, "samples_per_prompt": 2},
        optim={"policy_lr": 0.05},
    )
    result = train(cfg)
    inputs = read_inputs(cfg)
    alone = evaluator(cfg, inputs, policy := load_policy(result.folder / "model"))(policy, 3)
    inputs.reward.close()
    stored = result.evaluations[-1]
    assert stored["step"] == 3
    assert alone.as_json() == stored
    if temperature:  # three steps do not change what is likeliest
        assert stored["evaluate/reference_perplexity"] != result.evaluations[0]["evaluate/reference_perplexity"]


def test_evaluations_come_before_the_first_step_every_so_often_and_after_the_last(tmp_path: Path) -> None:
    for every, expected in ((2, [0, 2, 4, 5]), (0, [0, 5]), (5, [0, 5]), (9, [0, 5])):
        cfg = held_out(
            tmp_path, run={"name": f"every-{every}", "steps": 5}, evaluate={"every": every, "max_prompts": 2}
        )
        result = train(cfg)
        assert [record["step"] for record in result.evaluations] == expected
        assert {record["evaluate/prompts"] for record in result.evaluations} == {2}
        assert result.evaluations == read_records(result.folder / "evaluations.jsonl")
        lines = read_records(result.folder / "metrics.jsonl")
        assert [line["step"] for line in lines if line.get("evaluate/score_mean") is not None] == expected[1:]
