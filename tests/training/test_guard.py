"""Numbers that are not finite: skipped and counted, and past the limit the run ends with exit code 3."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.assembly.train import train
from surefoot.cli.main import main
from surefoot.config import Config, dump_config
from surefoot.errors import RunError, TrainingError
from surefoot.records import Rollout
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.clock import StepClock
from surefoot.training.durable import read_records
from surefoot.training.step import Parts, ppo_step
from tests.builders import make_config, make_parts, make_prompts, save_gpt2, save_llama, toy_run

PROMPTS = make_prompts((1, 2), (1, 2, 3, 4), (5,), (6, 7, 8))


def quality(actions: Sequence[int]) -> float:
    return sum(actions) / (11 * len(actions))


def build(folder: Path, value: Any = quality, **sections: Any) -> tuple[Config, Parts]:
    cfg = make_config(save_gpt2(folder / "model"), **sections)
    return cfg, make_parts(cfg, value, stop_ids=(3,))


# ------------------------------------------------------------------------------------------------------- one step


def test_gradients_that_blow_up_are_skipped_and_counted_and_nothing_is_spoilt(tmp_path: Path) -> None:
    """A hook makes the second minibatch's gradients NaN; the other three updates are made."""
    cfg, parts = build(tmp_path)
    calls = [0]
    spoilt = next(iter(parts.learner.policy.trainable().values()))

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return gradient * float("nan") if calls[0] == 2 else gradient

    spoilt.register_hook(spoil)
    metrics = ppo_step(1, PROMPTS, parts, cfg, StepClock()).report.metrics
    assert calls[0] == 4
    assert (metrics["policy/updates"], metrics["policy/skipped_updates"]) == (3, 1)
    assert (parts.learner.policy_optimizer.skipped_total, parts.learner.policy_optimizer.steps_taken) == (1, 4)
    assert all(bool(p.isfinite().all()) for p in parts.learner.policy.trainable().values())
    assert all(v is None or abs(v) < 1e9 for v in metrics.values())


def test_scores_too_large_for_the_dtype_are_skipped_not_trained_on(tmp_path: Path) -> None:
    """1e90 is a finite score and infinite in float32: advantages are NaN, and no weight may become one."""
    cfg, parts = build(tmp_path, lambda actions: 1e90 * quality(actions), model={"dtype": "float32"})
    before = {n: p.detach().clone() for n, p in parts.learner.policy.trainable().items()}
    result = ppo_step(1, PROMPTS, parts, cfg, StepClock())
    assert result.report.metrics["policy/skipped_updates"] == 4
    assert result.report.metrics["value/skipped_updates"] == 4
    assert result.report.metrics["policy/updates"] == 0
    assert all(torch.equal(p, before[n]) for n, p in parts.learner.policy.trainable().items())
    with pytest.raises(TrainingError, match="6 optimizer steps in a row"):
        ppo_step(2, PROMPTS, parts, cfg, StepClock())


@pytest.mark.parametrize("kind", [save_gpt2, save_llama])
def test_a_policy_whose_weights_are_not_numbers_ends_the_run_not_the_users_patience(tmp_path: Path, kind: Any) -> None:
    """It is trouble in a run (exit code 3), not a mistake in the user's data (exit code 2)."""
    cfg = make_config(kind(tmp_path / "model"))
    parts = make_parts(cfg, quality, stop_ids=(3,))
    with torch.no_grad():
        next(iter(parts.learner.policy.trainable().values())).fill_(float("nan"))
    with pytest.raises(RunError) as caught:
        ppo_step(1, PROMPTS, parts, cfg, StepClock())
    assert caught.value.exit_code == 3


def test_values_that_are_not_numbers_do_not_reach_the_policy(tmp_path: Path) -> None:
    cfg, parts = build(tmp_path)
    before = {n: p.detach().clone() for n, p in parts.learner.policy.trainable().items()}
    with torch.no_grad():
        parts.learner.critic.head.weight.fill_(float("nan"))
    metrics = ppo_step(1, PROMPTS, parts, cfg, StepClock()).report.metrics
    assert metrics["policy/skipped_updates"] == 4
    assert metrics["value/explained_variance"] is None and metrics["value/mean"] is None
    assert all(torch.equal(p, before[n]) for n, p in parts.learner.policy.trainable().items())


def test_a_reference_that_gives_nonsense_is_not_trained_towards(tmp_path: Path) -> None:
    cfg, parts = build(tmp_path)

    class Broken:
        def logp(self, rollout: Rollout) -> Any:
            return parts.learner.policy.evaluate(rollout).logp * float("nan")

    parts.reference = Broken()  # type: ignore[assignment]
    before = {n: p.detach().clone() for n, p in parts.learner.policy.trainable().items()}
    try:
        metrics = ppo_step(1, PROMPTS, parts, cfg, StepClock()).report.metrics
        assert metrics["policy/skipped_updates"] == 4
    except RunError as error:
        assert error.exit_code == 3
    assert all(torch.equal(p, before[n]) for n, p in parts.learner.policy.trainable().items())


# ------------------------------------------------------------------------------------------------------ whole runs

FROM_STEP_THREE_ON = '''
calls = 0

def positive(completions, **_):
    """A sound score in two calls, then {what}."""
    global calls
    calls += 1
    return [0.01 * len(c) if calls < 3 else {value} for c in completions]
'''


def run_command(cfg: Config, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """`surefoot train` in this process: its exit code and what it wrote to stderr."""
    (folder / "config.yaml").write_text(dump_config(cfg), encoding="utf-8")
    before, sys.argv = sys.argv, ["surefoot", "train", str(folder / "config.yaml")]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "value", "error", "steps"),
    [
        ("NaN", "float('nan')", "RewardError: 4 of 4 scores failed", 2),
        ("None", "None", "RewardError: 4 of 4 scores failed", 2),
        ("an exception", "1 / 0", "RewardError: 4 of 4 scores failed", 2),
        ("too large a number", "1e90 * len(c)", "TrainingError: 6 optimizer steps in a row", 3),
    ],
)
def test_trouble_in_a_run_ends_it_with_exit_code_3_and_a_whole_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, value: str, error: str, steps: int
) -> None:
    cfg = toy_run(tmp_path, checkpoint={"every": 1})
    (tmp_path / "reward.py").write_text(FROM_STEP_THREE_ON.format(what=what, value=value), encoding="utf-8")
    code, printed = run_command(cfg, tmp_path, capsys)
    assert code == 3
    assert "Traceback" not in printed
    assert printed.strip().splitlines()[-2].startswith("error: ")
    assert printed.strip().splitlines()[-1].startswith("hint: ")
    folder = Path(cfg.run.dir) / "run"
    status = json.loads((folder / "status.json").read_text())
    assert status["status"] == "FAILED"
    assert status["reason"].startswith(error)
    newest = CheckpointStore(folder / "checkpoints", keep=3).latest()
    assert newest is not None and newest.step == steps
    assert len(read_records(folder / "metrics.jsonl")) == steps
    assert not (folder / "model").exists()


def test_a_few_failed_scores_are_dropped_and_shown(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 3}, reward={"max_failures": 0.5}, track={"samples_every": 1})
    reward = '''
def positive(completions, **_):
    """The first of each call has no score."""
    return [None if i == 0 else 0.01 * len(c) for i, c in enumerate(completions)]
'''
    (tmp_path / "reward.py").write_text(reward, encoding="utf-8")
    result = train(cfg)
    lines = read_records(result.folder / "metrics.jsonl")
    # Seven prompts, four a step: the second step is the epoch's rest of three.
    assert [line["score/failed_share"] for line in lines] == [0.25, pytest.approx(1 / 3), 0.25]
    record = read_records(result.folder / "samples" / "step-1.jsonl")[0]
    assert record["score"] is None and record["score_failure"] and not any(record["mask"])


def test_a_skipped_step_is_counted_in_the_run_and_the_next_one_trains(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 4})
    once = FROM_STEP_THREE_ON.replace("calls < 3", "calls != 3").format(what="once", value="1e90 * len(c)")
    (tmp_path / "reward.py").write_text(once, encoding="utf-8")
    result = train(cfg)
    lines = read_records(result.folder / "metrics.jsonl")
    assert [line["policy/skipped_updates"] for line in lines] == [0, 0, 4, 0]
    assert [line["value/skipped_updates"] for line in lines] == [0, 0, 4, 0]
    assert [line["policy/updates"] for line in lines] == [4, 4, 0, 4]
    assert lines[2]["policy/loss"] is None and lines[2]["reward/mean"] is None
