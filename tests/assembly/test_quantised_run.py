"""Runs on quantised weights: whole, resumed, planned for, checked, and refused where they cannot be."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from surefoot.assembly import plan as planning
from surefoot.assembly.memory import Estimate, memory_for
from surefoot.assembly.preflight import preflight
from surefoot.assembly.step_sizes import even_prompts
from surefoot.assembly.train import train
from surefoot.config import Config, require
from surefoot.errors import ConfigError, MissingExtra
from surefoot.models import quantise as subject
from surefoot.models.load import load_model_config, quiet_library
from surefoot.models.policy import load_policy
from surefoot.models.quantise import QuantisedLinear
from surefoot.training.display import SilentDisplay
from surefoot.training.memory_report import measured_roles
from tests.builders import make_config, make_parts, make_prompts, save_llama, toy_run

ABSENT = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
KINDS = ["int8", pytest.param("nf4", marks=ABSENT)]
CRITICS = ["separate", "shared"]
UNSTABLE = ("time/", "memory/", "throughput/")


def config_of(folder: Path, kind: str, **sections: Any) -> Config:
    base: dict[str, Any] = {"model": {"quantize": kind, "lora": {"rank": 2}}, "run": {"steps": 2}}
    return toy_run(folder, **{**base, **sections})


def metrics_of(config: Config) -> list[dict[str, Any]]:
    text = (Path(config.run.dir) / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(UNSTABLE)} for line in text.splitlines()]


def planned_for(config: Config, folder: Path) -> Estimate:
    """For prompts of 8 tokens."""
    return memory_for(config, load_model_config(str(folder)), even_prompts(config, 8))


def weights_of(config: Config) -> dict[str, torch.Tensor]:
    with quiet_library():
        return AutoModelForCausalLM.from_pretrained(Path(config.run.dir) / "run" / "model").state_dict()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("critic", CRITICS)
def test_a_run_trains_saves_and_counts_its_bytes(kind: str, critic: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, kind, critic={"kind": critic})
    train(config, display=SilentDisplay())
    first, second = metrics_of(config)
    assert first["kl/reference_k1"] == pytest.approx(0, abs=1e-5)
    assert second["kl/reference_k1"] != 0, "nothing was trained"
    # The sampler's log-probabilities were taken over: those of the rows that were read again agree.
    assert first["engine/logp_gap"] < 1e-4 and second["engine/logp_gap"] < 1e-4
    folder = Path(config.run.dir) / "run"
    found = json.loads((folder / "memory.json").read_text(encoding="utf-8"))
    for name, role in found["predicted"]["roles"].items():
        assert found["roles"][name]["parameters"] == role["parameters"], name
    card = (folder / "model" / "README.md").read_text(encoding="utf-8")
    assert f"| frozen weights | {kind}" in card and "unquantised" in card
    lineage = json.loads((folder / "lineage.json").read_text(encoding="utf-8"))
    assert len(lineage["inputs"]["reference"]["weights_sha256"]) == 64
    start = AutoModelForCausalLM.from_pretrained(tmp_path / "toy").state_dict()
    trained = weights_of(config)
    assert set(trained) == set(start) and all(trained[n].dtype == torch.float32 for n in trained)
    assert torch.equal(trained["model.embed_tokens.weight"], start["model.embed_tokens.weight"])
    assert not torch.equal(trained["model.layers.0.mlp.up_proj.weight"], start["model.layers.0.mlp.up_proj.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_repeats_the_whole_one_bit_for_bit(kind: str, tmp_path: Path) -> None:
    steps = {"steps": 4}
    whole = config_of(tmp_path / "whole", kind, run=steps)
    train(whole, display=SilentDisplay())
    config = config_of(tmp_path / "parts", kind, run={"steps": 2})
    train(config, display=SilentDisplay())
    config = config_of(tmp_path / "parts", kind, run=steps)
    train(config, resume=True, display=SilentDisplay())
    assert metrics_of(config) == metrics_of(whole)
    expected = weights_of(whole)
    for name, tensor in weights_of(config).items():
        assert torch.equal(tensor, expected[name]), name


def test_decoding_with_the_layers_own_weights_changes_rounding_only(tmp_path: Path) -> None:
    found = {}
    for how in ("laid_out", "stored"):
        config = config_of(tmp_path / how, "int8", rollout={"decode_weights": how})
        train(config, display=SilentDisplay())
        found[how] = metrics_of(config)
    for one, other in zip(*found.values(), strict=True):
        for key, value in one.items():
            assert value == other[key] or value == pytest.approx(other[key], rel=1e-3, abs=1e-4), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [{"hidden": 64}, {"hidden": 48, "layers": 2}], ids=str)
def test_bytes_are_known_before_anything_is_loaded(kind: str, sizes: dict[str, int], tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model", vocabulary=40, **sizes)
    model = {"quantize": kind, "lora": {"rank": 2}, "reference": str(folder), "dtype": "float32"}
    config = make_config(folder, model=model)
    parts = make_parts(config, lambda tokens: 1.0, vocabulary=40)
    planned = planned_for(config, folder)
    for name, role in measured_roles(parts).items():
        assert role["parameters"] == planned.roles[name].parameters, name
    full = planned_for(make_config(folder, model={**model, "quantize": None}), folder)
    for name in ("policy", "critic", "reference"):
        assert planned.roles[name].parameters < 0.6 * full.roles[name].parameters
    assert planned.model == full.roles["reference"].parameters, "the aligned model is written in full"
    assert planned.phases["load"].total == full.roles["reference"].parameters
    assert "load" not in full.phases
    stored = make_config(folder, model=model, rollout={"decode_weights": "stored"})
    assert planned_for(stored, folder).rollout < planned.rollout


def test_a_reference_of_its_own_is_quantised_and_kl_starts_at_zero(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    config = make_config(folder, model={"quantize": "int8", "lora": {"rank": 2}, "reference": str(folder)})
    parts = make_parts(config, lambda tokens: 1.0)
    trunk = parts.reference.lm.trunk  # type: ignore[attr-defined]
    assert any(isinstance(module, QuantisedLinear) for module in trunk.modules())
    rollout = parts.engine.rollout(make_prompts((3, 4), (5,)), parts.environment, seed=(0, 1))
    policy = parts.learner.policy
    np.testing.assert_allclose(parts.reference.logp(rollout), policy.evaluate(rollout).logp, atol=1e-8)
    plain = load_policy(folder, dtype="float64").evaluate(rollout).logp
    assert np.abs(plain - policy.evaluate(rollout).logp).max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_check_finds_the_identities_to_hold(kind: str, tmp_path: Path) -> None:
    found = preflight(config_of(tmp_path, kind))
    assert not [f for f in found if f.severity == "error"]
    assert {"identities/ratio", "identities/reference", "identities/engine"} <= {f.name for f in found}


def test_the_plan_offers_it_where_there_are_adapters(tmp_path: Path) -> None:
    for lora in (None, {"rank": 2}):
        config = toy_run(tmp_path, model={"lora": lora})
        estimate = planning.plan(config).estimate
        offered = dict(planning._changes(config, estimate))
        assert ("model.quantize=int8" in offered) is (lora is not None)
    section, values = offered["model.quantize=int8"]
    assert values == {"quantize": "int8"} and section == "model"
    less = planning.plan(config_of(tmp_path, "int8")).estimate
    assert sum(less.fixed.values()) < sum(estimate.fixed.values())


def test_quantised_weights_without_adapters_are_refused(tmp_path: Path) -> None:
    config = toy_run(tmp_path, model={"quantize": "nf4"})
    with pytest.raises(ConfigError, match=r"quantised weights are frozen.*hint: add model\.lora"):
        require(config, "train")


def test_a_missing_package_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, "nf4")
    for name in ("bitsandbytes", "bitsandbytes.functional"):
        monkeypatch.setitem(sys.modules, name, None)
    subject.codec.cache_clear()
    try:
        with pytest.raises(MissingExtra, match=r"'bitsandbytes'.*pip install 'surefoot\[quantize\]'"):
            train(config, display=SilentDisplay())
    finally:
        subject.codec.cache_clear()
    assert not Path(config.run.dir).exists()
    problems = {f.name: f for f in preflight(config) if f.severity == "error"}
    assert "surefoot[quantize]" in problems["machine/packages"].advice
