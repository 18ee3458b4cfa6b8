"""What may change when a run is resumed, and what must not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import yaml

from surefoot.config import Config, apply_override, build_config, dump_config, known_keys
from surefoot.errors import RunFolderError
from surefoot.training.resume_config import FREE, PLACES, ROUNDING, check_resumed_config

BASE: dict[str, Any] = {
    "run": {"name": "a", "steps": 10},
    "model": {"policy": "/models/tiny"},
    "data": {"prompts": "/data/prompts.jsonl"},
    "reward": {"terms": [{"name": "good", "target": "/here/reward.py:score"}]},
    "evaluate": {"prompts": "/data/held_out.jsonl"},
}


def text(*overrides: str) -> str:
    tree = yaml.safe_load(yaml.safe_dump(BASE))
    for override in overrides:
        apply_override(tree, override)
    return dump_config(build_config(tree))


def test_the_same_config_has_no_changes() -> None:
    assert check_resumed_config(text(), text()) == {}


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("run.steps=20", {"run.steps": (10, 20)}),
        ("run.time_budget_s=60", {"run.time_budget_s": (None, 60.0)}),
        ("checkpoint.keep=1", {"checkpoint.keep": (3, 1)}),
        ("checkpoint.best_by=score/mean", {"checkpoint.best_by": (None, "score/mean")}),
        ("track.tensorboard=true", {"track.tensorboard": (False, True)}),
        ("evaluate.every=3", {"evaluate.every": (0, 3)}),
        ("stop.score=0.9", {"stop.score": (None, 0.9)}),
        ("guard.max_skipped=9", {"guard.max_skipped": (5, 9)}),
        ("reward.timeout_s=90", {"reward.timeout_s": (60.0, 90.0)}),
        ("run.dir=/elsewhere", {"run.dir": ("runs", "/elsewhere")}),
        ("model.policy=/moved/tiny", {"model.policy": ("/models/tiny", "/moved/tiny")}),
        (
            "reward.terms.0.target=/moved/reward.py:score",
            {"reward.terms.0.target": ("/here/reward.py:score", "/moved/reward.py:score")},
        ),
    ],
)
def test_what_leaves_the_steps_so_far_as_they_are_may_change(override: str, change: dict[str, Any]) -> None:
    assert check_resumed_config(text(), text(override)) == change


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=1",
        "run.threads=2",
        "optim.policy_lr=2.0e-6",
        "optim.betas=[0.9, 0.99]",
        "ppo.kl.coef=0.1",
        "ppo.whiten=false",
        "model.dtype=float64",
        "model.lora={rank: 8}",
        "model.reference=/models/other",
        "critic.init=/models/critic",
        "rollout.temperature=0.7",
        "rollout.stop=[end]",
        "data.shuffle=false",
        "evaluate.seed=1",
        "evaluate.prompts=null",
        "reward.terms.0.weight=2.0",
        "reward.terms.0.target=/here/reward.py:other",
        "reward.terms.0.target=other.module:score",
        "reward.terms=[{name: good, target: /here/reward.py:score}, {name: more, target: /here/reward.py:score}]",
        "reward.clip=1.0",
    ],
)
def test_what_changes_results_is_refused_by_name(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(RunFolderError, match=rf"made by another config: {key}.*hint:"):
        check_resumed_config(text(), text(override))


def test_every_refused_key_is_named_at_once() -> None:
    with pytest.raises(RunFolderError) as caught:
        check_resumed_config(text(), text("run.seed=1", "ppo.lam=0.9", "checkpoint.keep=1"))
    assert "run.seed was 0" in str(caught.value)
    assert "ppo.lam was 0.95" in str(caught.value)
    assert "checkpoint" not in str(caught.value)


def test_more_steps_are_refused_where_the_learning_rate_is_stretched_over_them() -> None:
    linear = "optim.schedule=linear"
    assert check_resumed_config(text(linear), text(linear)) == {}
    with pytest.raises(RunFolderError, match=r"run\.steps was 10"):
        check_resumed_config(text(linear), text(linear, "run.steps=20"))


def test_rounding_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        changes = check_resumed_config(text(), text("batch.tokens=64", "run.device=cpu"))
    assert set(changes) == {"batch.tokens", "run.device"}
    assert "last bits" in caplog.text
    assert "batch.tokens" in caplog.text


def test_a_key_that_an_older_config_lacks_has_its_default_there() -> None:
    tree = yaml.safe_load(text())
    del tree["ppo"]["lam"], tree["rollout"]["max_rows"]
    assert check_resumed_config(yaml.safe_dump(tree), text()) == {}
    with pytest.raises(RunFolderError, match=r"ppo\.lam was 0\.95"):
        check_resumed_config(yaml.safe_dump(tree), text("ppo.lam=0.9"))


def test_the_rules_name_keys_that_exist() -> None:
    keys = set(known_keys(Config))
    assert {*FREE, *ROUNDING, *PLACES} <= keys


def test_a_damaged_config_is_a_clear_error() -> None:
    for damaged in ("a: [", "", "\x00"):
        with pytest.raises(RunFolderError, match=r"config\.yaml"):
            check_resumed_config(damaged, text())


def test_a_folder_older_than_a_key_of_a_term_goes_on() -> None:
    tree = yaml.safe_load(text())
    tree["reward"]["terms"] = [{"name": "good", "kind": "function", "target": "/here/reward.py:score", "weight": 1.0}]
    assert check_resumed_config(yaml.safe_dump(tree), text()) == {}
    with pytest.raises(RunFolderError, match=r"reward\.terms\.0\.scale was 1\.0"):
        check_resumed_config(yaml.safe_dump(tree), text("reward.terms.0.scale=2.0"))


def test_a_check_stays_the_same_check_while_its_files_may_move() -> None:
    term = {"name": "good", "kind": "check", "target": "toxicity", "options": {"words_file": "/here/words.txt"}}
    stored = dump_config(build_config({**BASE, "reward": {"terms": [term]}}))

    def resumed(**changes: Any) -> str:
        return dump_config(build_config({**BASE, "reward": {"terms": [{**term, **changes}]}}))

    key = "reward.terms.0.options.words_file"
    moved = check_resumed_config(stored, resumed(options={"words_file": "/moved/words.txt"}))
    assert moved == {key: ("/here/words.txt", "/moved/words.txt")}
    harsher = {"words_file": "/here/words.txt", "penalty": 0.5}
    for changes in ({"target": "length"}, {"options": {}}, {"options": harsher}, {"center": 1.0}):
        with pytest.raises(RunFolderError, match="made by another config"):
            check_resumed_config(stored, resumed(**changes))
