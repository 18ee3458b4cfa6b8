"""memory.json: what is in memory after a run's first step, role by role, beside what was predicted."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, LlamaForSequenceClassification

from surefoot.assembly.train import train
from surefoot.config import Config
from surefoot.errors import RunError
from surefoot.models.load import quiet_library
from surefoot.models.policy import FrozenReference
from surefoot.records import StepReport
from surefoot.training.display import SilentDisplay
from surefoot.training.memory_report import MemoryReport, measured_roles, memory_report
from surefoot.training.step import Parts
from tests.builders import make_config, make_parts, save_llama, toy_run

SECTIONS: dict[str, dict[str, Any]] = {
    "separate": {"critic": {"kind": "separate"}},
    "shared adapters": {"critic": {"kind": "shared"}, "model": {"lora": {"rank": 2}}},
}


def report_of(cfg: Config) -> dict[str, Any]:
    found = json.loads((Path(cfg.run.dir) / "run" / "memory.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def with_reward_model(folder: Path, **sections: Any) -> Config:
    """A toy run that a random reward model scores."""
    toy_run(folder)
    shutil.copytree(folder / "toy", folder / "quality")
    config = AutoConfig.from_pretrained(folder / "toy")
    config.num_labels = 1
    with quiet_library():
        LlamaForSequenceClassification(config).save_pretrained(folder / "quality")
    term = {"name": "quality", "kind": "model", "target": str(folder / "quality")}
    return toy_run(folder, run={"steps": 1}, reward={"terms": [term]}, **sections)


@pytest.mark.parametrize("kind", SECTIONS)
def test_every_run_says_what_it_took(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Counted from live tensors, and equal to the plan made from configs; Adam also holds a step count a tensor."""
    cfg = with_reward_model(tmp_path, **SECTIONS[kind])
    with caplog.at_level(logging.INFO, "surefoot"):
        train(cfg, display=SilentDisplay())
    found = report_of(cfg)
    planned = found["predicted"]["roles"]
    roles = {name: role for name, role in found["roles"].items() if name in planned}
    assert set(found["roles"]) - set(planned) == ({"reference"} if kind == "shared adapters" else set())
    assert "reward quality" in roles
    for name, role in roles.items():
        assert (role["parameters"], role["gradients"]) == (planned[name]["parameters"], planned[name]["gradients"])
        assert 0 <= role["optimizer"] - planned[name]["optimizer"] < 4 * 100, name
    assert found["step"] == 1
    assert found["peak_is"] == "resident"
    assert found["peak"] > sum(role["parameters"] for role in roles.values()) + 10**8
    assert found["predicted_peak"] == found["predicted"]["training_peak"]
    assert {"cache", "logits", "activations", "decoding_weights"} <= set(found["computed"])
    assert all(size > 0 for size in found["computed"].values())
    said = [record.message for record in caplog.records if "memory.json" in record.message]
    assert len(said) == 1 and "GB were predicted" in said[0]


def test_weights_that_roles_share_count_once(tmp_path: Path) -> None:
    shared = make_config(save_llama(tmp_path / "model"), critic={"kind": "shared"}, model={"lora": {"rank": 2}})
    parts = make_parts(shared, lambda tokens: 1.0)
    roles = measured_roles(parts)
    assert roles["policy"]["parameters"] == bytes_of(parts.learner.policy.module.parameters())
    assert roles["policy"]["gradients"] == bytes_of(parts.learner.policy.trainable().values())
    assert roles["value head"]["parameters"] == roles["value head"]["gradients"] == 16 * 8
    assert roles["reference"] == {"parameters": 0, "gradients": 0, "optimizer": 0}
    parts.reference = FrozenReference(parts.learner.policy.lm, parts.learner.policy.plan)
    assert measured_roles(parts)["reference"]["parameters"] == 0


def bytes_of(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def test_a_resumed_run_writes_it_anew(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 2})
    train(cfg, display=SilentDisplay())
    assert report_of(cfg)["step"] == 1
    train(toy_run(tmp_path, run={"steps": 3}), resume=True, display=SilentDisplay())
    assert report_of(cfg)["step"] == 3


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return make_parts(make_config(save_llama(tmp_path / "model")), lambda tokens: 1.0)


def test_it_is_written_once_and_without_a_plan_too(parts: Parts, tmp_path: Path) -> None:
    tracker = MemoryReport(tmp_path / "memory.json", parts, None)
    for step in (4, 5):
        tracker.log(StepReport(step, {}))
    tracker.close()
    found = json.loads((tmp_path / "memory.json").read_text(encoding="utf-8"))
    assert found["step"] == 4
    assert found["predicted"] is found["predicted_peak"] is found["computed"] is None
    assert found == memory_report(parts, None, step=4) | {"peak": found["peak"]}


def test_a_disk_that_refuses_ends_the_run_in_order(parts: Parts, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"memory\.json could not be written"):
        MemoryReport(tmp_path / "gone" / "memory.json", parts, None).log(StepReport(1, {}))
