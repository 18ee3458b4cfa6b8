"""The eight common mistakes of the handbook: one config that makes each, and one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.assembly.mistakes import common_mistakes
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import build_config
from surefoot.records import Finding
from tests.cli.conftest import Workspace

FUNCTION = {"name": "tone", "target": "reward.py:tone"}
SOUND: dict[str, Any] = {
    "reward": {"terms": [FUNCTION]},
    "data": {"prompts": "a.jsonl"},
    "evaluate": {"prompts": "b.jsonl"},
}


def verdicts(tree: dict[str, Any]) -> dict[str, Finding]:
    found = Verdicts()
    common_mistakes(build_config({**SOUND, **tree}), found)
    return {finding.name.removeprefix("mistakes/"): finding for finding in found.findings}


def reward_model(folder: Path, *files: str) -> dict[str, Any]:
    folder.mkdir()
    for name in files:
        (folder / name).write_text("accuracy on held-out pairs: 0.71\n", encoding="utf-8")
    return {"name": "quality", "kind": "model", "target": str(folder)}


def test_a_sound_config_makes_none() -> None:
    found = verdicts({})
    assert [name for name, finding in found.items() if finding.severity != "info" or finding.advice] == []


@pytest.mark.parametrize(
    ("mistake", "made", "avoided"),
    [
        (
            "reward_only",
            {"ppo": {"kl": {"coef": 0}}, "evaluate": {}},
            {"ppo": {"kl": {"coef": 0.02}}, "evaluate": {}},
        ),
        ("reward_only", {"ppo": {"kl": {"coef": 0}}, "evaluate": {}}, {"ppo": {"kl": {"coef": 0}}}),
        ("kl", {"ppo": {"kl": {"coef": 0}}}, {"ppo": {"kl": {"coef": 0.01}}}),
        ("kl", {"ppo": {"kl": {"coef": 0}}}, {"ppo": {"kl": {"coef": 0}}, "stop": {"kl_budget": 20}}),
        ("epochs", {"ppo": {"epochs": 5}}, {"ppo": {"epochs": 4}}),
        ("learning_rate", {"optim": {"policy_lr": 2e-5}}, {"optim": {"policy_lr": 1e-5}}),
        (
            "learning_rate",
            {"optim": {"policy_lr": 2e-3}, "model": {"lora": {}}},
            {"optim": {"policy_lr": 1e-3}, "model": {"lora": {}}},
        ),
        ("held_out", {"evaluate": {}}, {}),
        ("held_out", {"evaluate": {"prompts": "a.jsonl"}}, {}),
    ],
)
def test_a_mistake_is_seen_where_it_is_made(mistake: str, made: dict[str, Any], avoided: dict[str, Any]) -> None:
    assert verdicts(made)[mistake].severity == "warning"
    assert verdicts(made)[mistake].advice
    assert verdicts(avoided).get(mistake, Finding(mistake, "info", "")).severity == "info"


def test_3_response_length_is_ignored(tmp_path: Path) -> None:
    model = reward_model(tmp_path / "rm", "README.md")
    alone = {"reward": {"terms": [model]}}
    assert verdicts(alone)["length"].severity == "warning"
    assert verdicts({**alone, "ppo": {"cut_off": "penalise"}})["length"].severity == "info"
    brevity = {"name": "brevity", "target": "reward.py:brevity"}
    assert verdicts({"reward": {"terms": [model, brevity]}})["length"].severity == "info"


def test_4_a_reward_model_of_which_nothing_is_known(tmp_path: Path) -> None:
    silent, documented = reward_model(tmp_path / "a"), reward_model(tmp_path / "b", "lineage.json")
    found = verdicts({"reward": {"terms": [silent]}})["reward_model_data"]
    assert found.severity == "warning"
    assert "quality" in found.message
    assert "nothing else is rewarded" in found.message
    assert verdicts({"reward": {"terms": [documented]}})["reward_model_data"].severity == "info"
    both = verdicts({"reward": {"terms": [silent, FUNCTION]}})["reward_model_data"]
    assert both.severity == "warning"
    assert "nothing else is rewarded" not in both.message


def test_6_an_adapter_has_the_limit_of_adapters(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    rate = {"optim": {"policy_lr": 2e-4}}
    assert verdicts({**rate, "model": {"policy": str(tmp_path)}})["learning_rate"].severity == "info"
    assert verdicts({**rate, "model": {"policy": "elsewhere"}})["learning_rate"].severity == "warning"


@pytest.mark.parametrize("name", ["safety", "content_policy", "Toxicity", "no-pii"])
def test_8_a_reward_is_no_security_control(name: str) -> None:
    """A reminder, not a warning: such a term is a good thing to have."""
    found = verdicts({"reward": {"terms": [{"name": name, "target": "reward.py:f"}]}})["security"]
    assert found.severity == "info"
    assert "forbids nothing" in found.message
    assert "deterministic controls" in found.advice
    assert not verdicts({})["security"].advice


def test_the_command_warns_of_them(space: Workspace) -> None:
    space.set({"evaluate": {}})
    found = space.check("ppo.kl.coef=0", "ppo.epochs=8", "optim.policy_lr=0.001").findings
    made = {
        name for name, finding in found.items() if name.startswith("mistakes/") and finding["severity"] == "warning"
    }
    assert made == {f"mistakes/{m}" for m in ("reward_only", "kl", "epochs", "learning_rate", "held_out")}


def test_7_held_out_prompts_that_are_trained_on(space: Workspace) -> None:
    """Another file with the same prompts in it, capitals and blanks aside, is no independent evaluation."""
    assert space.check().findings["mistakes/held_out"]["severity"] == "info"
    text = (space.path / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[1]
    space.write("held-out.jsonl", text.replace("Write one", "write  One") + "\n" + text.replace("film", "story") + "\n")
    finding = space.check().findings["mistakes/held_out"]
    assert finding["severity"] == "warning"
    assert "1 of 2 held-out prompts are training prompts" in finding["message"]
