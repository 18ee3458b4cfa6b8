"""Adapters: started from, put on top of one another, refused where they would be trained by nothing."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from surefoot.errors import ModelError
from surefoot.models.critic import load_critic
from surefoot.models.lora import merged_tensors, save_adapter, starting_policy
from surefoot.models.policy import Lora, StartingReference, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout, Trajectory
from tests.models.oracle_models import folder, reading
from tests.models.test_policy import ROLLOUT, kl, train


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained adapter of the tiny Llama, in peft's format."""
    policy = load_policy(folder("llama"), lora=Lora(4), seed=5)
    train(policy)
    target = tmp_path_factory.mktemp("adapter") / "a"
    save_adapter(policy.lm.adapters, target, str(folder("llama")))
    return target


@contextmanager
def quiet_peft() -> Iterator[None]:
    """peft warns of transformers' deprecations and of tied layers; neither is what these tests are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@quiet_peft()
def made_by_peft(name: str, target: Path, **options: Any) -> Path:
    """An adapter as somebody else's training leaves it, every tensor of it random."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder(name))
    adapted = get_peft_model(model, LoraConfig(r=3, lora_alpha=6, task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    adapted.save_pretrained(target)
    return target


@quiet_peft()
def library_logp(name: str, adapter: Path) -> np.ndarray:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder(name)), adapter).eval()
    out = np.zeros(ROLLOUT.tokens.shape)
    for row, trajectory in enumerate(ROLLOUT.trajectories):
        ids = torch.tensor([list(trajectory.tokens)])
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
        for t, acted in enumerate(trajectory.mask):
            if acted:
                out[row, t] = logp[t - 1, ids[0, t]]
    return out


def test_training_continues_an_adapter_and_kl_counts_from_it(adapter: Path) -> None:
    """CKP-09: KL is 0 at step 0, not the distance of the starting adapter to the raw model."""
    policy = load_policy(adapter)
    reference = StartingReference(policy)
    start = policy.evaluate(ROLLOUT).logp
    np.testing.assert_allclose(start, library_logp("llama", adapter), atol=1e-5)
    assert np.abs(start - reading("llama", BatchPlan()).evaluate(ROLLOUT).logp).max() > 0.05
    assert kl(policy, reference).max() == 0.0
    digest = reference.digest()
    trainable = policy.trainable()
    train(policy)
    assert kl(policy, reference).max() > 0.05
    np.testing.assert_array_equal(reference.logp(ROLLOUT), start)
    assert reference.digest() == digest
    assert policy.trainable().keys() == trainable.keys()
    assert all(".default." in name for name in trainable)


def test_the_starting_adapter_never_becomes_trainable(adapter: Path) -> None:
    policy = load_policy(adapter)
    names = set(policy.trainable())
    StartingReference(policy).logp(ROLLOUT)
    assert set(policy.trainable()) == names
    assert all(p.requires_grad for p in policy.trainable().values())


def test_nothing_is_trainable_while_the_start_is_read(adapter: Path) -> None:
    policy = load_policy(adapter)
    with starting_policy(policy.lm.adapters):
        assert not policy.trainable()
    assert policy.trainable()


def test_a_failing_reading_leaves_the_policy_active(adapter: Path) -> None:
    policy = load_policy(adapter)
    train(policy)
    now = policy.evaluate(ROLLOUT).logp
    with pytest.raises(ValueError, match="no embedding"):
        StartingReference(policy).logp(Rollout.of([Trajectory([1, 999], [0, 1])]))
    np.testing.assert_array_equal(policy.evaluate(ROLLOUT).logp, now)
    assert policy.trainable()


def test_fresh_adapters_on_top_of_one_start_where_it_ended(adapter: Path) -> None:
    policy = load_policy(adapter, lora=Lora(2))
    reference = StartingReference(policy)
    start = policy.evaluate(ROLLOUT).logp
    np.testing.assert_allclose(start, library_logp("llama", adapter), atol=1e-5)
    assert kl(policy, reference).max() == 0.0
    train(policy)
    assert kl(policy, reference).max() > 0.05
    np.testing.assert_array_equal(reference.logp(ROLLOUT), start)
    assert sum("lora_A" in name for name in policy.trainable()) == 14


def test_the_seed_decides_the_random_half_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    weights = []
    for seed in (1, 1, 2):
        policy = load_policy(folder("llama"), lora=Lora(4), seed=seed)
        weights.append(torch.cat([p.flatten() for p in policy.trainable().values()]))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_merged_tensors_give_the_adapted_numbers_and_leave_the_model_alone(name: str) -> None:
    policy = load_policy(folder(name), lora=Lora(4), dtype="float64")
    train(policy)
    now = policy.evaluate(ROLLOUT).logp
    before = {n: p.clone() for n, p in policy.module.state_dict().items()}
    merged = merged_tensors(policy.lm.model)
    assert all(torch.equal(p, before[n]) for n, p in policy.module.state_dict().items())
    np.testing.assert_array_equal(policy.evaluate(ROLLOUT).logp, now)
    plain = load_policy(folder(name), dtype="float64")
    assert merged.keys() == plain.lm.model.state_dict().keys()
    plain.lm.model.load_state_dict(merged)
    np.testing.assert_allclose(plain.evaluate(ROLLOUT).logp, now, atol=1e-10)


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_adapters_on_the_output_layer_are_refused_or_merged(name: str, tmp_path: Path) -> None:
    """Its own weight is what log-probabilities read; with tied embeddings a merge must not reach the embedding."""
    with pytest.raises(ModelError, match="output layer"):
        load_policy(folder(name), lora=Lora(4, targets=["lm_head"]))
    path = made_by_peft(name, tmp_path / "a", target_modules=["lm_head", "q_proj"])
    with pytest.raises(ModelError, match=r"output layer.*model\.lora"):
        load_policy(path)
    merged = load_policy(path, lora=Lora(2))
    np.testing.assert_allclose(merged.evaluate(ROLLOUT).logp, library_logp(name, path), atol=1e-5)
    embedding = merged.lm.model.get_input_embeddings().weight
    assert torch.equal(embedding, reading(name, BatchPlan()).lm.model.get_input_embeddings().weight)
    assert merged.lm.model.config.tie_word_embeddings is False


def test_adapters_with_whole_modules_are_refused_or_merged(tmp_path: Path) -> None:
    path = made_by_peft("llama", tmp_path / "a", target_modules=["q_proj"], modules_to_save=["lm_head"])
    with pytest.raises(ModelError, match=r"whole modules.*model\.lora"):
        load_policy(path)
    merged = load_policy(path, lora=Lora(2))
    np.testing.assert_allclose(merged.evaluate(ROLLOUT).logp, library_logp("llama", path), atol=1e-5)


@pytest.mark.parametrize("options", [{"use_dora": True}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 1}}])
def test_other_kinds_of_low_rank_adapters_are_read_as_peft_reads_them(options: dict[str, Any], tmp_path: Path) -> None:
    path = made_by_peft("llama", tmp_path / "a", target_modules="all-linear", **options)
    policy = load_policy(path)
    expected = library_logp("llama", path)
    np.testing.assert_allclose(policy.evaluate(ROLLOUT).logp, expected, atol=1e-5)
    assert kl(policy, StartingReference(policy)).max() < 1e-5
    plain = load_policy(folder("llama"))
    plain.lm.model.load_state_dict(merged_tensors(policy.lm.model))
    np.testing.assert_allclose(plain.evaluate(ROLLOUT).logp, expected, atol=1e-5)


def test_targets_that_match_nothing_are_named() -> None:
    with pytest.raises(ModelError, match="no_such_layer"):
        load_policy(folder("llama"), lora=Lora(4, targets=["no_such_layer"]))


def test_broken_adapters_are_named(adapter: Path, tmp_path: Path) -> None:
    def error(change: Any, **options: Any) -> str:
        copy = tmp_path / "a"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(adapter, copy)
        change(copy)
        with pytest.raises(ModelError) as caught:
            load_policy(copy, **options)
        return str(caught.value)

    def set_config(**values: Any) -> Any:
        def change(copy: Path) -> None:
            file = copy / "adapter_config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | values))

        return change

    def pickled(copy: Path) -> None:
        torch.save(load_file(copy / "adapter_model.safetensors"), copy / "adapter_model.bin")
        (copy / "adapter_model.safetensors").unlink()

    def fewer(copy: Path) -> None:
        tensors = load_file(copy / "adapter_model.safetensors")
        save_file({k: v for k, v in tensors.items() if "layers.1" not in k}, copy / "adapter_model.safetensors")

    def torn(copy: Path) -> None:
        file = copy / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:500])

    for options in ({}, {"lora": Lora(2)}):
        assert "pickled weights are refused" in error(pickled, **options)
        assert "not in its file" in error(fewer, **options)
        assert "could not be loaded" in error(torn, **options)
        assert "only LoRA" in error(set_config(peft_type="IA3"), **options)
        assert "which base model" in error(set_config(base_model_name_or_path=None), **options)
        assert "does not exist" in error(set_config(base_model_name_or_path="/absent/model"), **options)
        assert "could not be loaded" in error(set_config(base_model_name_or_path=str(folder("qwen3"))), **options)


def test_a_base_given_relative_to_the_adapter_is_found(adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(folder("llama"), tmp_path / "base")
    copy = tmp_path / "adapters" / "a"
    shutil.copytree(adapter, copy)
    file = copy / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "../../base"}))
    found = load_policy(copy).evaluate(ROLLOUT).logp
    np.testing.assert_array_equal(found, load_policy(adapter).evaluate(ROLLOUT).logp)


def test_a_critic_from_an_adapter_has_the_adapter_in_its_trunk(adapter: Path) -> None:
    """An adapter names its layers as the whole model does; put on a bare trunk it would be lost without an error."""
    critic = load_critic(adapter)
    merged = load_policy(adapter, lora=Lora(2))
    ours, theirs = dict(critic.trunk.named_parameters()), dict(merged.lm.model.named_parameters())
    for name, parameter in ours.items():
        wanted = theirs.get(f"model.{name}")
        wanted = theirs[f"model.{name.replace('proj.', 'proj.base_layer.')}"] if wanted is None else wanted
        torch.testing.assert_close(parameter.detach(), wanted.detach())
    raw = dict(load_critic(folder("llama")).trunk.named_parameters())
    assert any(not torch.equal(p, raw[n]) for n, p in ours.items())
