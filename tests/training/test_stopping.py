"""What ends a run before its last step, and that the reason stands in ``status.json``."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from surefoot.assembly.train import train
from surefoot.config import StopSection
from surefoot.errors import TrainingError
from surefoot.records import StepReport
from surefoot.training.durable import read_records
from surefoot.training.stopping import Stopping
from tests.builders import toy_run


def after_step(stopping: Stopping, kl: float | None) -> str | None:
    return stopping.after_step(StepReport(1, {"kl/reference_k1": kl}))


# ------------------------------------------------------------------------------------------------------ the rules


def test_patience_counts_evaluations_without_a_better_score() -> None:
    stopping = Stopping(StopSection(patience=2))
    assert stopping.after_evaluation(0.5) is None  # before step 1: the score to beat
    scores = [0.4, 0.6, 0.6, 0.5]
    reasons = [(after_step(stopping, 0.0), stopping.after_evaluation(score))[1] for score in scores]
    assert reasons[:3] == [None, None, None]
    assert reasons[3] == "no better held-out score in 2 evaluations (best 0.6000)"


def test_an_evaluation_without_a_score_counts_neither_way() -> None:
    stopping = Stopping(StopSection(patience=2, score=0.9))
    assert [stopping.after_evaluation(s) for s in (0.5, None, None, 0.4, None)] == [None] * 5
    assert stopping.after_evaluation(0.3) is not None


def test_a_score_that_is_good_enough_ends_the_run() -> None:
    stopping = Stopping(StopSection(score=0.8))
    assert stopping.after_evaluation(0.79) is None
    assert stopping.after_evaluation(0.8) == "the held-out score reached 0.8000, at least 0.8"


def test_the_budget_is_of_kl_in_nats_per_trajectory() -> None:
    stopping = Stopping(StopSection(kl_budget=2.0))
    assert [after_step(stopping, kl) for kl in (-1.0, 2.0, None)] == [None] * 3
    assert after_step(stopping, 2.001) == "the KL to the reference passed its budget: 2.001 > 2 nats per trajectory"


def test_without_rules_nothing_stops() -> None:
    stopping = Stopping(StopSection())
    assert after_step(stopping, 1e9) is None
    assert [stopping.after_evaluation(score) for score in (1e9, 0.0, 0.0, 0.0)] == [None] * 4


def test_a_reason_outlives_a_resume_unless_the_rule_was_changed() -> None:
    """A process may be killed between the checkpoint and the end that was due after it."""
    for section, kl, score in ((StopSection(kl_budget=1.0), 2.0, None), (StopSection(score=0.5), 0.0, 0.6)):
        stopping = Stopping(section)
        reason = after_step(stopping, kl) or stopping.after_evaluation(score)
        restored = Stopping(section)
        restored.load(json.loads(json.dumps(stopping.state())))
        assert reason is not None
        assert restored.reason() == reason
        relaxed = Stopping(StopSection(kl_budget=9.0, score=0.9))
        relaxed.load(stopping.state())
        assert relaxed.reason() is None


def test_patience_goes_on_where_it_was() -> None:
    stopping = Stopping(StopSection(patience=2))
    stopping.after_evaluation(0.5)
    stopping.after_evaluation(0.4)
    restored = Stopping(StopSection(patience=2))
    restored.load(stopping.state())
    assert after_step(restored, 0.0) is None
    assert restored.after_evaluation(0.45) is not None


def test_an_old_score_is_no_reason_after_another_step() -> None:
    stopping = Stopping(StopSection(score=0.5))
    assert stopping.after_evaluation(0.6) is not None
    assert after_step(stopping, 0.0) is None
    assert stopping.reason() is None


# ------------------------------------------------------------------------------------------------------ whole runs


def status(folder: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    return stored


@pytest.mark.parametrize(
    ("sections", "reason", "step"),
    [
        ({"stop": {"patience": 2}, "optim": {"policy_lr": 1e-9}}, "no better held-out score in 2 evaluations", 2),
        ({"stop": {"score": 0.0}}, "the held-out score reached", 1),
        (
            {"stop": {"kl_budget": 0.05}, "optim": {"policy_lr": 0.05}},
            "the KL to the reference passed its budget",
            None,
        ),
        ({"run": {"time_budget_s": 7.5}}, "the time budget of 7.5 s would not hold another step", 1),
    ],
    ids=["patience", "score", "kl", "time"],
)
def test_a_run_ends_early_with_its_reason_and_its_model(
    tmp_path: Path, sections: dict[str, Any], reason: str, step: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that goes two seconds a look: start, begin and end of step 1, begin of step 2 at 6 s.
    monkeypatch.setattr("surefoot.training.trainer.time", SimpleNamespace(monotonic=iter(range(0, 100, 2)).__next__))
    prompts = {"prompts": str(tmp_path / "prompts.jsonl"), "every": 1, "max_prompts": 3}
    cfg = toy_run(tmp_path, **{"evaluate": prompts, "checkpoint": {"every": 3}, **sections})
    result = train(cfg)
    assert reason in result.reason
    assert step is None or result.step == step
    assert 0 < result.step < 6
    stored = status(result.folder)
    assert (stored["status"], stored["reason"], stored["step"]) == ("FINISHED", result.reason, result.step)
    assert (result.folder / "model" / "model.safetensors").is_file()
    assert {p.name for p in (result.folder / "checkpoints").iterdir()} >= {f"step-{result.step}"}
    assert len(read_records(result.folder / "metrics.jsonl")) == result.step
    assert result.evaluations[-1]["step"] == result.step, "the last weights are the ones that were scored last"


def test_a_run_that_was_stopped_stays_stopped_and_goes_on_when_the_rule_is_relaxed(tmp_path: Path) -> None:
    sections: dict[str, Any] = {"stop": {"kl_budget": 0.05}, "optim": {"policy_lr": 0.05}}
    first = train(toy_run(tmp_path, **sections))
    again = train(toy_run(tmp_path, **sections), resume=True)
    assert (again.step, again.reason) == (first.step, first.reason)
    assert len(read_records(first.folder / "metrics.jsonl")) == first.step
    relaxed = train(toy_run(tmp_path, **{**sections, "stop": {"kl_budget": 1e6}}), resume=True)
    assert relaxed.step == 6


def test_a_budget_too_small_for_any_step_is_an_error_not_an_untrained_model(tmp_path: Path) -> None:
    """DAT-02: a run with zero updates must not look like a success."""
    prompts = {"prompts": str(tmp_path / "prompts.jsonl"), "every": 1, "max_prompts": 3}
    cfg = toy_run(tmp_path, run={"time_budget_s": 1e-9}, evaluate=prompts)
    with pytest.raises(TrainingError, match="no update") as caught:
        train(cfg)
    assert caught.value.exit_code == 3
    folder = Path(cfg.run.dir) / "run"
    assert status(folder)["status"] == "FAILED"
    assert not (folder / "model").exists()
