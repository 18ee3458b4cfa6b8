"""The sections of the stages before PPO: what each command requires, rates that fit, keys that do not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.config import Command, build_config, load_config, require
from surefoot.errors import ConfigError

COMPLETE: dict[Command, dict[str, Any]] = {
    "sft": {"model": {"policy": "m"}, "sft": {"data": "d"}},
    "reward-model": {"reward_model": {"data": "d", "init": "m"}},
    "sample": {"model": {"policy": "m"}, "data": {"prompts": "p"}},
}


@pytest.mark.parametrize("command", COMPLETE)
def test_each_command_requires_its_own_keys(command: Command) -> None:
    require(build_config(COMPLETE[command]), command)
    with pytest.raises(ConfigError) as caught:
        require(build_config({}), command)
    for key in {
        "sft": ("model.policy", "sft.data"),
        "reward-model": ("reward_model.data", "reward_model.init or model.policy"),
        "sample": ("model.policy", "sample.prompts or data.prompts"),
    }[command]:
        assert key in str(caught.value)
    with pytest.raises(ConfigError, match=r"cluster is not available"):
        require(build_config({**COMPLETE[command], "cluster": {"nodes": 2}}), command)


def test_ppos_own_checks_are_not_made_for_the_stages() -> None:
    """One file may hold all stages, PPO's unfinished or not."""
    odd = {"rollout": {"top_k": 5}, "ppo": {"minibatches": 99}, "stop": {"score": 1.0}}
    for command, tree in COMPLETE.items():
        require(build_config({**odd, **tree}), command)


def test_patience_needs_held_out_rows_and_evaluations() -> None:
    patient = {**COMPLETE["sft"], "stop": {"patience": 2}}
    with pytest.raises(ConfigError, match=r"hint: set sft\.held_out or sft\.held_out_share, and evaluate\.every"):
        require(build_config(patient), "sft")
    patient["sft"] = {"data": "d", "held_out": "h"}
    with pytest.raises(ConfigError, match=r"stop\.patience counts evaluations"):
        require(build_config(patient), "sft")
    require(build_config({**patient, "evaluate": {"every": 1}}), "sft")


def test_a_rate_that_is_not_set_fits_what_is_trained() -> None:
    config = build_config({})
    assert config.sft.learning_rate(lora=False) == 2e-5 and config.sft.learning_rate(lora=True) == 2e-4
    assert config.reward_model.rates(lora=False) == (1e-5, pytest.approx(1e-4))
    assert config.reward_model.rates(lora=True) == (1e-4, pytest.approx(1e-3))
    given = build_config({"sft": {"lr": 0.1}, "reward_model": {"lr": 0.1, "head_lr": 0.5}})
    assert given.sft.learning_rate(lora=True) == 0.1 and given.reward_model.rates(lora=True) == (0.1, 0.5)


def test_paths_are_looked_for_beside_the_config(tmp_path: Path) -> None:
    for name in ("d.jsonl", "h.jsonl", "t.jsonl", "p.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "rm").mkdir()
    (tmp_path / "c.yaml").write_text(
        "sft: {data: d.jsonl, held_out: h.jsonl}\n"
        "reward_model: {data: d.jsonl, held_out: h.jsonl, tasks: t.jsonl, init: rm}\n"
        "sample: {prompts: p.jsonl}\n"
    )
    config = load_config(tmp_path / "c.yaml")
    sections = config.sft, config.reward_model
    assert {section.data for section in sections} == {str(tmp_path / "d.jsonl")}
    assert {section.held_out for section in sections} == {str(tmp_path / "h.jsonl")}
    assert config.reward_model.tasks == str(tmp_path / "t.jsonl") and config.reward_model.init == str(tmp_path / "rm")
    assert config.sample.prompts == str(tmp_path / "p.jsonl")


def test_disagreement_is_of_reward_models_only() -> None:
    term = {"name": "short", "target": "reward.py:short", "ensemble": "min"}
    with pytest.raises(ConfigError, match="ensemble is for terms of kind model, and short is of kind function"):
        build_config({"reward": {"terms": [term]}})
    assert build_config({"reward": {"terms": [{**term, "kind": "model"}]}}).reward.terms[0].ensemble == "min"


def test_a_rate_of_another_section_is_named() -> None:
    for tree, said in (
        ({"lr": 0.1}, "it belongs to optim.policy_lr or reward_model.lr or sft.lr"),
        ({"optim": {"lr": 0.1}}, "it is called optim.policy_lr here"),
    ):
        with pytest.raises(ConfigError) as caught:
            build_config(tree)
        assert said in str(caught.value)


def test_quantised_weights_are_refused_where_they_would_be_trained() -> None:
    def asked(command: Command, **model: object) -> None:
        sections = {"sft": {"data": "d.jsonl"}, "reward_model": {"data": "d.jsonl"}, "sample": {"prompts": "p.jsonl"}}
        require(build_config({"model": {"policy": "m", "quantize": "int8", **model}, **sections}), command)

    with pytest.raises(ConfigError, match="there is nothing else to train"):
        asked("sft")
    asked("sft", lora={"rank": 4})
    asked("sample")
    for lora in (None, {"rank": 4}):
        with pytest.raises(ConfigError, match="a reward model is trained on whole weights"):
            asked("reward-model", lora=lora)
