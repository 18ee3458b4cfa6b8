"""The time to a held-out gain: the rule, the choice of a rate, the ratio, and both sides on a toy."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gain_table, time_to_gain, yardstick_env
from benchmarks.gain import Course, Task, load_reward, prompts_digest, reached
from benchmarks.gain_table import Median, Run

TRL_PYTHON = yardstick_env.ENVIRONMENT / "bin" / "python"


def evaluations(*scores: float) -> list[dict[str, Any]]:
    """One after each step of 10 s, the first before training."""
    return [{"step": i, "seconds": 10.0 * i, "score": score, "error": 0.05} for i, score in enumerate(scores)]


def run(*scores: float, side: str = "surefoot", rate: float = 1e-4, seed: int = 0, budget_s: float = math.inf) -> Run:
    steps = [{"step_s": 10.0, "updates": 4, "prompts": f"{seed}-{i}"} for i in range(1, len(scores))]
    part = {"steps": steps, "evaluations": evaluations(*scores), "seconds": 10.0 * len(steps), "first_responses": []}
    return Run(side, rate, seed, budget_s, part)


# ------------------------------------------------------------------------------------------------------- the rule


def test_two_evaluations_in_a_row_reach_the_goal_and_the_first_one_counts() -> None:
    found = reached(evaluations(0.3, 0.5, 0.6, 0.7), 0.6)
    assert found is not None and (found["step"], found["seconds"]) == (2, 20.0)
    # One lucky evaluation is none, nor is the last one, which nothing confirms; nor is one before any training.
    assert reached(evaluations(0.3, 0.6, 0.5, 0.6), 0.6) is None
    assert reached(evaluations(0.7, 0.7, 0.5), 0.6) is None


def test_only_steps_are_counted_and_the_one_past_the_budget_still_confirms() -> None:
    course, cost = Course(goal=0.5, budget_s=15.0), {"step_s": 10.0, "other_cores": 0.0}
    responses = [{"text": "a", "score": score, "ended": ended} for score, ended in ((0.4, True), (0.8, False))]
    course.evaluated(responses)
    assert course.seconds == 0.0 and not course.over
    course.stepped(cost, responses)
    course.evaluated(responses)
    assert not course.over
    course.stepped({**cost, "other_cores": 0.4}, responses, kl=1.0)
    course.evaluated(responses)
    assert course.over
    result = course.result(side="x")
    assert (result["seconds"], result["other_cores"], result["worst_other_cores"]) == (20.0, 0.2, 0.4)
    assert [e["seconds"] for e in result["evaluations"]] == [0.0, 10.0, 20.0]
    assert result["evaluations"][0]["score"] == pytest.approx(0.6)
    assert result["evaluations"][0]["error"] == pytest.approx(0.2)
    assert result["steps"][1]["kl"] == 1.0 and result["steps"][0]["ended"] == 0.5
    assert result["first_responses"] == responses


def test_a_run_that_never_arrives_ends_with_its_budget() -> None:
    course = Course(goal=0.5, budget_s=15.0)
    for _ in range(2):
        course.stepped({"step_s": 8.0, "other_cores": 0.0}, [{"text": "a", "score": 0.1, "ended": True}])
        course.evaluated([{"text": "a", "score": 0.1, "ended": True}])
    assert course.over


def test_prompts_have_a_digest_that_their_order_changes() -> None:
    assert prompts_digest([[1, 2], [3]]) == prompts_digest(iter([(1, 2), (3,)]))
    assert prompts_digest([[1, 2], [3]]) != prompts_digest([[3], [1, 2]])


# ------------------------------------------------------------------------------------------------------ the table


def test_the_better_rate_is_the_faster_one_else_the_one_with_the_higher_score() -> None:
    slow, fast, high = run(0.3, 0.5, 0.6, 0.6, rate=1.0), run(0.3, 0.6, 0.6, rate=2.0), run(0.3, 0.9, 0.5, rate=3.0)
    assert gain_table.better([slow, high, fast], 0.6) is fast
    assert gain_table.better([slow, high], 0.6) is slow
    assert gain_table.better([slow, high, fast], 0.95) is high


def test_the_median_is_a_bound_where_most_runs_did_not_arrive() -> None:
    near, far = run(0.3, 0.6, 0.6), run(0.3, 0.4, 0.6, 0.6)
    never = run(0.3, 0.4, 0.4, 0.4, 0.4, budget_s=35.0)
    assert gain_table.median_time([near, never, far], 0.6) == Median(20.0, bound=False)
    assert gain_table.median_time([never, near, never], 0.6) == Median(35.0, bound=True)
    assert gain_table.median_time([near], 0.6) == Median(10.0, bound=False)


def test_the_ratio_says_when_it_is_a_lower_bound() -> None:
    found = gain_table.comparison(Median(20.0, False), Median(100.0, True), 5.0)
    assert (found["ratio"], found["ratio_is_lower_bound"], found["met"]) == (5.0, True, True)
    found = gain_table.comparison(Median(20.0, False), Median(80.0, False), 5.0)
    assert (found["ratio"], found["ratio_is_lower_bound"], found["met"]) == (4.0, False, False)
    assert gain_table.comparison(Median(20.0, True), Median(80.0, False), 5.0)["ratio"] is None
    assert gain_table.comparison(Median(20.0, False), None, 5.0)["ratio"] is None


# ------------------------------------------------------------------------------------------------ the same work


def reward(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.fixture
def task() -> Task:
    fields = {field.name: 0 for field in dataclasses.fields(Task)}
    numbers = {"epochs": 2, "minibatches": 2, "prompts_per_step": 2, "missing_eos_penalty": 0.5}
    return Task(**{**fields, **numbers})  # type: ignore[arg-type]


def sound(side: str) -> Run:
    made = run(0.3, 0.4, 0.5, side=side)
    responses = [{"text": "a", "score": 1.0, "ended": True}, {"text": "bcd", "score": 3.0, "ended": False}]
    return dataclasses.replace(made, part={**made.part, "first_responses": responses})


def faults(task: Task, change: Any) -> list[str]:
    ours, theirs = copy.deepcopy(sound("surefoot")), copy.deepcopy(sound("trl"))
    theirs.part["steps"][0]["trained_score"] = 1.75
    change(theirs.part)
    return gain_table.faults([ours, theirs], {"score": 0.31, "error": 0.01}, task, reward)


def test_what_was_not_alike_is_seen(task: Task) -> None:
    assert faults(task, lambda part: None) == []
    for change, complaint in (
        (lambda part: part["evaluations"][0].update(score=0.6), "starts at 0.600"),
        (lambda part: part["evaluations"][0].update(score=math.nan), "starts at nan"),
        (lambda part: part["steps"][1].update(updates=2), "optimizer steps, asked for: 4"),
        (lambda part: part["steps"][1].update(prompts="other"), "did not train on the same prompts"),
        (lambda part: part["first_responses"][0].update(score=0.9), "not those of the quickstart's reward"),
        (lambda part: part["first_responses"].pop(), "not those of the quickstart's reward"),
        (lambda part: part["steps"][0].update(trained_score=2.0), "trained on a mean score of 2.0000"),
    ):
        assert any(complaint in fault for fault in faults(task, change)), complaint


def test_both_sides_get_the_same_arguments(task: Task, tmp_path: Path) -> None:
    options = time_to_gain.parse_arguments([])
    task = dataclasses.replace(task, policy_lr=2e-4, prompts={"0": "prompts.jsonl"})
    task = dataclasses.replace(task, config="config.yaml", reward="reward.py", held_out="held-out.jsonl")
    plan = time_to_gain.Plan(time_to_gain.SIZES["full"], options, task, tmp_path / "task.json", None)  # type: ignore[arg-type]
    assert plan.rates == [1e-4, 2e-4, 4e-4]
    ours = time_to_gain.surefoot_job(plan, 0, 1e-4, 0.62)
    theirs = time_to_gain.trl_job(plan, Path("python"), 0, 1e-4, 0.62, 600.0)
    assert theirs.arguments == (*ours.arguments, "--budget-s", "600.0")
    assert theirs.environment == {**ours.environment, "PYTHONPATH": ""}
    source = time_to_gain.ROOT / "src" / "surefoot"
    assert source in ours.sources and source not in theirs.sources


# ------------------------------------------------------------------------------------------------------- the toy


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


def read_parts(out: Path) -> dict[str, Any]:
    files = (out / "gain" / "parts").glob("*.json")
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def scored_by_the_quickstart(part: dict[str, Any], reward_file: Path) -> bool:
    texts = [response["text"] for response in part["first_responses"]]
    scores = [response["score"] for response in part["first_responses"]]
    return len(set(scores)) > 1 and load_reward(reward_file)(prompts=texts, completions=texts) == scores


@pytest.mark.soak
def test_surefoots_side_on_the_toy(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert time_to_gain.main(["--size", "tiny", "--threads", "1", "--out", str(out), "--without-trl"]) == 0
    result = json.loads((out / "time_to_gain.json").read_text(encoding="utf-8"))
    (row,) = result["runs"]
    assert [evaluation["step"] for evaluation in row["evaluations"]] == [0, 1, 2]
    assert 0 < row["evaluations"][1]["seconds"] < row["evaluations"][2]["seconds"]
    assert "| Surefoot | **0.01** | 0 | " in capsys.readouterr().out
    parts = read_parts(out)
    assert set(parts) == {"tiny-inputs", "tiny-start", "tiny-surefoot-0.01-0"}
    assert scored_by_the_quickstart(parts["tiny-surefoot-0.01-0"], Path(result["task"]["reward"]))


@pytest.mark.soak
@pytest.mark.skipif(not time_to_gain.has_sentiment(TRL_PYTHON), reason="TRL's environment has not been made")
def test_trls_side_on_the_toy_trains_on_the_same_reward(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(read_parts(out))
    assert time_to_gain.main(["--size", "tiny", "--threads", "1", "--out", str(out)]) == 0
    # What the test before has finished is kept.
    assert capsys.readouterr().err.count(": kept from ") == len(before)
    result = json.loads((out / "time_to_gain.json").read_text(encoding="utf-8"))
    assert [row["side"] for row in result["runs"]] == ["surefoot", "trl"]
    part = read_parts(out)["tiny-trl-default-0.01-0"]
    assert scored_by_the_quickstart(part, Path(result["task"]["reward"]))
    first = part["first_responses"]
    wanted = sum(response["score"] - 0.5 * (not response["ended"]) for response in first) / len(first)
    assert part["steps"][0]["trained_score"] == pytest.approx(wanted, abs=1e-5)
