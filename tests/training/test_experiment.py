"""experiment.yaml: the handbook's keys, filled from config and lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from surefoot.config import build_config
from surefoot.records import Lineage
from surefoot.training.experiment import write_experiment


def page(folder: Path, tree: dict[str, Any], inputs: dict[str, Any]) -> Any:
    lineage = Lineage("tiny", inputs, {}, 0, {}, {})
    write_experiment(folder / "experiment.yaml", build_config(tree), lineage)
    return yaml.safe_load((folder / "experiment.yaml").read_text())["experiment"]


def test_every_key_of_the_handbook_is_there_and_filled(tmp_path: Path) -> None:
    tree = {
        "run": {"name": "enterprise-ppo-v3"},
        "model": {"policy": "/models/sft-v7"},
        "reward": {"terms": [{"name": "quality", "kind": "model", "target": "/models/reward-v4"}]},
        "ppo": {"epochs": 4, "kl": {"coef": 0.05}},
        "optim": {"policy_lr": 1.0e-6},
        "evaluate": {"prompts": "/data/eval-v12.jsonl"},
    }
    inputs = {
        "base": {"path": "foundation-model", "revision": "abc123"},
        "sft": {"path": "/models/sft-v7", "sha256": "11"},
        "policy": {"path": "/models/sft-v7", "sha256": "11"},
        "reward/quality": {"path": "/models/reward-v4", "sha256": "22"},
        "evaluate": {"path": "/data/eval-v12.jsonl", "sha256": "33"},
    }
    assert page(tmp_path, tree, inputs) == {
        "name": "enterprise-ppo-v3",
        "base_model": {"name": "foundation-model", "revision": "abc123"},
        "sft": {"checkpoint": "/models/sft-v7", "sha256": "11"},
        "reward_model": {"checkpoint": "/models/reward-v4", "sha256": "22"},
        "reward_functions": None,
        "reference_policy": {"checkpoint": "/models/sft-v7", "sha256": "11"},
        "ppo": {"clip_range": 0.2, "kl_coefficient": 0.05, "learning_rate": 1.0e-6, "epochs": 4},
        "evaluation": {"dataset": "/data/eval-v12.jsonl", "sha256": "33"},
    }


def test_where_there_is_no_such_stage_there_is_null(tmp_path: Path) -> None:
    tree = {
        "run": {"name": "tiny"},
        "model": {"policy": "/models/a", "reference": "/models/b"},
        "ppo": {"clip_high": 0.3},
        "reward": {"terms": [{"name": "short", "target": "reward.py:short"}]},
    }
    inputs = {"policy": {"path": "/models/a", "sha256": "11"}, "reference": {"path": "/models/b", "sha256": "44"}}
    found = page(tmp_path, tree, inputs)
    assert found["sft"] == {"checkpoint": None}
    assert found["reward_model"] == {"checkpoint": None}
    assert found["evaluation"] == {"dataset": None, "sha256": None}
    assert found["reward_functions"] == {"short": "reward.py:short"}
    assert found["base_model"] == {"name": "/models/a", "revision": "11"}
    assert found["reference_policy"] == {"checkpoint": "/models/b", "sha256": "44"}
    assert found["ppo"]["clip_range"] == [0.2, 0.3]


def test_several_reward_models_are_a_list(tmp_path: Path) -> None:
    terms = [{"name": n, "kind": "model", "target": f"/models/{n}"} for n in ("a", "b")]
    found = page(tmp_path, {"run": {"name": "tiny"}, "reward": {"terms": terms}}, {})
    assert [entry["checkpoint"] for entry in found["reward_model"]] == ["/models/a", "/models/b"]
