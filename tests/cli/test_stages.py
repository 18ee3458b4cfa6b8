"""``surefoot sft``, ``reward-model`` and ``sample``: what they print, refuse and leave, and what ``--show`` shows."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from surefoot.models.toy import make_toy_model
from surefoot.training.stage import StageJob
from tests.cli.conftest import Outcome, Workspace
from tests.data.test_cards import with_card
from tests.stage_builders import asked, demonstrations, preferences, write_rows

PARAGRAPH = re.compile(r"error: [^\n]+\nhint: [^\n]+\n")
STAGES = {"sft": "sft", "reward-model": "reward_model"}
SECTIONS: dict[str, dict[str, Any]] = {
    "sft": {"data": "demonstrations.jsonl", "steps": 2, "held_out_share": 0.25},
    "reward_model": {"data": "preferences.jsonl", "steps": 2},
    "sample": {"max_prompts": 3, "answers": 2, "max_new_tokens": 4},
    "reward": {},
    "evaluate": {},
    "run": {"dir": "runs", "threads": 1},
}


@pytest.fixture
def stages(space: Workspace) -> Workspace:
    """A workspace with demonstrations, pairs and the config of all stages."""
    write_rows(space.path / "demonstrations.jsonl", demonstrations())
    write_rows(space.path / "preferences.jsonl", preferences())
    space.set(SECTIONS)
    return space


def refused(space: Workspace, *arguments: str) -> str:
    before = space.contents()
    outcome: Outcome = space.run(*arguments)
    assert outcome.code == 2 and outcome.out == "" and "Traceback" not in outcome.err, outcome
    assert PARAGRAPH.fullmatch(outcome.err), outcome.err
    assert space.contents() == before, "something was written"
    return outcome.err


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_tells_how_it_ended_and_where_everything_lies(stages: Workspace, stage: str) -> None:
    outcome = stages.run(stage, "c.yaml")
    assert outcome.code == 0, outcome
    lines = outcome.out.splitlines()
    assert lines[0] == "finished after step 2: all 2 steps are done"
    assert lines[1].startswith("held out, after step 0: ") and lines[2].startswith("held out, after step 2: ")
    assert lines[3:] == ["run folder: runs/c", "model: runs/c/model"]
    assert "step 2/2" in outcome.err and "loss" in outcome.err and " held out" in outcome.err
    assert (stages.path / "runs" / "c" / "model" / "config.json").is_file()
    assert "runs/c exists" in refused(stages, stage, "c.yaml")
    again = stages.run(stage, "c.yaml", "--resume", "--json")
    summary = json.loads(again.out)
    assert again.code == 0 and (summary["status"], summary["step"]) == ("FINISHED", 2)
    assert [record["step"] for record in summary["evaluations"]] == [0, 2]
    listed = stages.run("runs", "list", "runs")
    assert listed.code == 0 and "FINISHED" in listed.out


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_wrong_is_one_paragraph_and_nothing_is_written(stages: Workspace, stage: str) -> None:
    section = STAGES[stage]
    said = refused(stages, stage, "c.yaml", f"{section}.data=gone.jsonl")
    assert f"the data file does not exist; got: {stages.path / 'gone.jsonl'}" in said
    said = refused(stages, stage, "c.yaml", f"{section}.data=null", "model.policy=null")
    assert f"{section}.data" in said and "model.policy" in said
    assert "must be greater than" in refused(stages, stage, "c.yaml", f"{section}.lr=0")
    assert f"{section}.epochs" in refused(stages, stage, "c.yaml", f"{section}.epohcs=2")
    rows = [*demonstrations()[:2], {"wrong": 1}] if stage == "sft" else [*preferences()[:2], {"wrong": 1}]
    write_rows(stages.path / "bad.jsonl", rows)
    said = refused(stages, stage, "c.yaml", f"{section}.data=bad.jsonl")
    assert "1 of 3 rows" in said and "bad.jsonl line 3: no " in said and f"{section}.bad_rows: skip" in said
    assert "float16 weights cannot be trained" in refused(stages, stage, "c.yaml", "model.dtype=float16")


def test_a_model_without_a_template_says_what_to_set(stages: Workspace) -> None:
    make_toy_model(stages.path / "bare")
    (stages.path / "bare" / "chat_template.jinja").unlink()
    for command in STAGES:
        said = refused(stages, command, "c.yaml", "model.policy=bare")
        assert "has no chat template" in said and "model.chat_template" in said


def test_data_that_nobody_approved_is_not_trained_on(stages: Workspace) -> None:
    for stage, file in (("sft", "demonstrations.jsonl"), ("reward-model", "preferences.jsonl")):
        with_card(stages.path / file, approval={"status": "pending"})
        assert "pending" in refused(stages, stage, "c.yaml")
        assert stages.run(stage, "c.yaml", "data.allow=[pending]", f"run.name={stage}").code == 0


def test_the_shown_demonstrations_are_what_is_trained(stages: Workspace) -> None:
    before = stages.contents()
    outcome = stages.run("sft", "c.yaml", "--show", "2", "sft.held_out_share=0")
    assert outcome.code == 0 and stages.contents() == before
    first = outcome.out.splitlines()[:4]
    assert first[0] == "demonstrations.jsonl:1  17 tokens"
    assert first[1].split(maxsplit=2)[:2] == ["given", "11"] and "<|im_start|> assistant" in first[1]
    assert first[2].split(maxsplit=2) == ["trained", "6", '"this is a good film <|im_end|>"']
    assert len([line for line in outcome.out.splitlines() if not line.startswith(" ")]) == 2
    rows = json.loads(stages.run("sft", "c.yaml", "--show", "1", "--json", "sft.held_out_share=0").out)
    assert [part["role"] for part in rows[0]["parts"]][:2] == ["given", "trained"]
    assert "--show takes a number of rows; got: 0" in refused(stages, "sft", "c.yaml", "--show", "0")


def test_the_shown_pairs_are_what_is_compared(stages: Workspace) -> None:
    outcome = stages.run("reward-model", "c.yaml", "--show", "1", "reward_model.held_out_share=0")
    lines = outcome.out.splitlines()
    assert outcome.code == 0 and lines[0].startswith("preferences.jsonl:1  ")
    assert [line.split()[0] for line in lines[1:]] == ["prompt", "chosen", "rejected"]
    assert "good" in lines[2] and "bad" in lines[3] and "it is" in lines[1]


def test_a_signal_ends_a_stage_with_a_checkpoint(stages: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    real = StageJob.make_step

    def interrupted(self: StageJob, step: int) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self, step)

    monkeypatch.setattr(StageJob, "make_step", interrupted)
    outcome = stages.run("sft", "c.yaml")
    assert outcome.code == 143 and "no model yet: run the same command with --resume" in outcome.out
    assert (stages.path / "runs" / "c" / "checkpoints" / "step-1").is_dir()
    monkeypatch.setattr(StageJob, "make_step", real)
    assert stages.run("sft", "c.yaml", "--resume").code == 0


def test_keys_of_ppo_that_do_nothing_here_are_named(stages: Workspace) -> None:
    outcome = stages.run("sft", "c.yaml", "run.steps=5", "stop.kl_budget=3", "stop.score=1")
    assert outcome.code == 0
    for key in ("run.steps", "stop.kl_budget", "stop.score"):
        assert f"{key} is PPO's and has no effect here" in outcome.err


# ----------------------------------------------------------------------------------------------------------- sample


def test_sampled_answers_are_judging_tasks(stages: Workspace) -> None:
    outcome = stages.run("sample", "c.yaml")
    assert outcome.code == 0, outcome
    tasks = [json.loads(line) for line in (stages.path / "tasks.jsonl").read_text().splitlines()]
    assert outcome.out.splitlines()[-1] == "tasks: tasks.jsonl"
    assert outcome.out.startswith(f"{len(tasks)} judging tasks of {sum(len(t['responses']) for t in tasks)} answers")
    assert tasks[0]["prompt"] == [{"role": "user", "content": "Write one review about a new film ."}]
    assert {"id", "prompt", "responses", "policy", "seed"} <= set(tasks[0])
    assert "tasks.jsonl exists" in refused(stages, "sample", "c.yaml")
    found = json.loads(stages.run("sample", "c.yaml", "--json", "sample.file=more/x.jsonl", "run.seed=5").out)
    assert found["file"] == "more/x.jsonl" and Path(stages.path / found["file"]).is_file()
    # The judgements close the loop.
    write_rows(stages.path / "judgements.jsonl", [{"task": task["id"], "choice": 0} for task in tasks])
    overrides = (
        "reward_model.data=judgements.jsonl",
        "reward_model.tasks=tasks.jsonl",
        "reward_model.held_out_share=0",
    )
    assert stages.run("reward-model", "c.yaml", *overrides).code == 0


def test_sample_needs_prompts_and_a_policy(stages: Workspace) -> None:
    said = refused(stages, "sample", "c.yaml", "model.policy=null", "data.prompts=null")
    assert "model.policy" in said and "sample.prompts or data.prompts" in said
    prompts = write_rows(stages.path / "p.jsonl", [{"prompt": asked("a film")}, {"x": 1}])
    assert "p.jsonl line 2" in refused(stages, "sample", "c.yaml", f"sample.prompts={prompts}")
