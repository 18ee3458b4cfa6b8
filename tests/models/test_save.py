"""What is saved loads anywhere and gives the trained numbers; what is alive stays bit for bit as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from surefoot.errors import CheckpointError, ModelError
from surefoot.models import save
from surefoot.models.batching import lay_out
from surefoot.models.critic import SeparateCritic, load_critic, shared_critic
from surefoot.models.digest import digest_tensors
from surefoot.models.lora import save_adapter
from surefoot.models.policy import CausalPolicy, Lora, StartingReference, load_policy
from surefoot.models.save import save_critic, save_policy
from surefoot.models.scoring import BatchPlan
from tests.models.oracle_models import NAMES, altered, folder, reading
from tests.models.test_load import different_head
from tests.models.test_policy import ROLLOUT, kl, train

CARD = "# a card\n"


def digest(policy: CausalPolicy) -> str:
    return digest_tensors(policy.module.state_dict().items())


def write(policy: CausalPolicy, target: Path) -> Path:
    before, config = digest(policy), policy.lm.model.config.to_json_string()
    now = policy.evaluate(ROLLOUT).logp
    save_policy(policy, target, save_tokenizer=None, card=CARD)
    assert digest(policy) == before
    assert policy.lm.model.config.to_json_string() == config
    np.testing.assert_array_equal(policy.evaluate(ROLLOUT).logp, now)
    return target


def library_logp(path: Path, attention: str) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=attention).eval()
    out = np.zeros(ROLLOUT.tokens.shape)
    for row, trajectory in enumerate(ROLLOUT.trajectories):
        ids = torch.tensor([list(trajectory.tokens)])
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
        for t, acted in enumerate(trajectory.mask):
            if acted:
                out[row, t] = logp[t - 1, ids[0, t]]
    return out


def names_in(path: Path) -> set[str]:
    with safe_open(path / "model.safetensors", framework="pt") as tensors:
        return set(tensors.keys())


@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
def test_a_trained_policy_loads_in_the_library_with_its_numbers(name: str, lora: Lora | None, tmp_path: Path) -> None:
    policy = load_policy(folder(name), lora=lora)
    train(policy, lr=1e-3 if lora is None else 0.02)
    path = write(policy, tmp_path / "model")
    now = policy.evaluate(ROLLOUT).logp
    assert np.abs(now - reading(name, BatchPlan()).evaluate(ROLLOUT).logp).max() > 0.01
    np.testing.assert_allclose(library_logp(path, "eager"), now, atol=1e-5)
    again = load_policy(path).evaluate(ROLLOUT).logp
    if lora is None:
        np.testing.assert_array_equal(again, now)
    else:
        np.testing.assert_allclose(again, now, atol=1e-5)
    source = json.loads((folder(name) / "config.json").read_text())
    saved = json.loads((path / "config.json").read_text())
    assert saved == source
    assert names_in(path) == names_in(folder(name))
    assert "surefoot" not in (path / "config.json").read_text() + (path / "generation_config.json").read_text()
    assert (path / "README.md").read_text() == CARD
    assert (path / "adapter").is_dir() == (lora is not None)
    assert not list(path.rglob("*.bin"))


def test_generation_settings_are_kept_even_where_the_library_would_not_save_them(tmp_path: Path) -> None:
    source = altered("llama", tmp_path / "m")
    settings = {"temperature": 0.7, "top_p": 0.8, "do_sample": False, "eos_token_id": [1, 5], "pad_token_id": 7}
    (source / "generation_config.json").write_text(json.dumps(settings))
    path = write(load_policy(source), tmp_path / "model")
    saved = json.loads((path / "generation_config.json").read_text())
    assert {k: saved.get(k, False) for k in settings} == settings


def test_generation_settings_changed_in_memory_do_not_stop_the_saving(tmp_path: Path) -> None:
    policy = load_policy(folder("llama"))
    settings: Any = policy.lm.model.generation_config
    settings.temperature, settings.do_sample = 0.5, False
    path = write(policy, tmp_path / "model")
    assert json.loads((path / "generation_config.json").read_text())["temperature"] == 0.5
    assert policy.lm.model.generation_config is settings


def test_the_adapter_alone_gives_the_policy_too(tmp_path: Path) -> None:
    policy = load_policy(folder("llama"), lora=Lora(4))
    train(policy)
    path = write(policy, tmp_path / "model")
    again = load_policy(path / "adapter")
    np.testing.assert_array_equal(again.evaluate(ROLLOUT).logp, policy.evaluate(ROLLOUT).logp)
    config = json.loads((path / "adapter" / "adapter_config.json").read_text())
    assert Path(config["base_model_name_or_path"]) == folder("llama").resolve()


def test_an_adapter_that_went_on_training_is_saved_without_its_start(tmp_path: Path) -> None:
    first = load_policy(folder("llama"), lora=Lora(4))
    train(first)
    save_adapter(first.lm.adapters, tmp_path / "a", str(folder("llama")))
    policy = load_policy(tmp_path / "a")
    train(policy)
    path = write(policy, tmp_path / "model")
    assert kl(policy, StartingReference(policy)).max() > 0.05
    np.testing.assert_allclose(library_logp(path, "sdpa"), policy.evaluate(ROLLOUT).logp, atol=1e-5)
    np.testing.assert_array_equal(load_policy(path / "adapter").evaluate(ROLLOUT).logp, policy.evaluate(ROLLOUT).logp)
    assert sorted(p.name for p in (path / "adapter").iterdir() if p.suffix != ".md") == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_an_adapter_on_top_of_a_merged_one_is_not_saved_alone(tmp_path: Path) -> None:
    """Put on the raw base it would be another policy, and nothing would say so."""
    first = load_policy(folder("llama"), lora=Lora(4))
    train(first)
    save_adapter(first.lm.adapters, tmp_path / "a", str(folder("llama")))
    policy = load_policy(tmp_path / "a", lora=Lora(2))
    train(policy)
    path = write(policy, tmp_path / "model")
    assert not (path / "adapter").exists()
    np.testing.assert_allclose(library_logp(path, "sdpa"), policy.evaluate(ROLLOUT).logp, atol=1e-5)


# ------------------------------------------------------------------------------------------------------ tied embeddings


def test_a_tied_head_is_saved_once(tmp_path: Path) -> None:
    path = write(load_policy(folder("qwen2")), tmp_path / "model")
    assert "lm_head.weight" not in names_in(path)
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
def test_a_head_apart_from_its_embedding_is_saved_apart(lora: Lora | None, tmp_path: Path) -> None:
    """CKP-08"""
    source = altered("qwen2", tmp_path / "m", tensors=different_head)
    policy = load_policy(source, lora=lora)
    train(policy, lr=1e-3)
    path = write(policy, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    assert not torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_allclose(library_logp(path, "eager"), policy.evaluate(ROLLOUT).logp, atol=1e-5)


def test_a_head_that_drifted_in_memory_is_saved_apart(tmp_path: Path) -> None:
    """The flag still says tied; the tensors do not."""
    policy = load_policy(folder("qwen2"))
    head: Any = policy.lm.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach() * 0.5)
    assert policy.lm.model.config.tie_word_embeddings
    path = write(policy, tmp_path / "model")
    assert "lm_head.weight" in names_in(path)
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_allclose(library_logp(path, "eager"), policy.evaluate(ROLLOUT).logp, atol=1e-5)


def test_an_adapter_on_a_tied_embedding_unties_it(tmp_path: Path) -> None:
    policy = load_policy(folder("qwen2"), lora=Lora(4, targets=["embed_tokens", "q_proj"]))
    train(policy)
    path = write(policy, tmp_path / "model")
    assert "lm_head.weight" in names_in(path)
    np.testing.assert_allclose(library_logp(path, "eager"), policy.evaluate(ROLLOUT).logp, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_added_rows_are_saved(name: str, tmp_path: Path) -> None:
    policy = load_policy(folder(name), rows_needed=131, banned=(128,), lora=Lora(4))
    train(policy)
    path = write(policy, tmp_path / "model")
    assert json.loads((path / "config.json").read_text())["vocab_size"] == 131
    again = load_policy(path, rows_needed=131, banned=(128,))
    np.testing.assert_allclose(again.evaluate(ROLLOUT).logp, policy.evaluate(ROLLOUT).logp, atol=1e-5)
    alone = load_policy(path / "adapter", rows_needed=131, banned=(128,))
    np.testing.assert_array_equal(alone.evaluate(ROLLOUT).logp, policy.evaluate(ROLLOUT).logp)


# ------------------------------------------------------------------------------------------------- types and writing


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
def test_other_types_are_saved_as_they_are(dtype: str, lora: Lora | None, tmp_path: Path) -> None:
    policy = load_policy(folder("qwen3"), dtype=dtype, lora=lora)
    if lora is not None:
        train(policy, lr=0.005)
    path = write(policy, tmp_path / "model")
    assert json.loads((path / "config.json").read_text())["dtype"] == dtype
    assert {t.dtype for t in load_file(path / "model.safetensors").values()} == {getattr(torch, dtype)}
    # A merged weight is rounded once more.
    tolerance = 0 if lora is None else {"float64": 1e-10, "float16": 0.02, "bfloat16": 0.2}[dtype]
    again = load_policy(path, dtype=dtype).evaluate(ROLLOUT).logp
    np.testing.assert_allclose(again, policy.evaluate(ROLLOUT).logp, atol=tolerance, rtol=0)


def test_an_existing_folder_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "model"
    policy = load_policy(folder("llama"), lora=Lora(2))
    write(policy, target)
    (target / "stale.safetensors").write_bytes(b"")
    write(load_policy(folder("llama")), target)
    assert not (target / "stale.safetensors").exists() and not (target / "adapter").exists()
    assert [p.name for p in target.parent.iterdir()] == ["model"]
    assert target.stat().st_mode & 0o777 == 0o755


def test_a_wrong_wrapper_is_found_and_the_old_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving the bare base in place of what was trained must not pass."""
    policy = load_policy(folder("llama"), lora=Lora(4))
    path = write(policy, tmp_path / "model")
    train(policy)

    def without_adapters(model: Any) -> dict[str, Tensor]:
        tensors = model.state_dict().items()
        return {n.replace(".base_layer", ""): t for n, t in tensors if "lora_" not in n}

    monkeypatch.setattr(save, "merged_tensors", without_adapters)
    with pytest.raises(ModelError, match="logits differ from the live one's"):
        save_policy(policy, path, save_tokenizer=None, card=CARD)
    assert (path / "README.md").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_the_tokenizer_goes_into_the_same_folder_and_its_failure_is_told(tmp_path: Path) -> None:
    def save_tokenizer(target: str) -> None:
        Path(target, "vocabulary.txt").write_text("a b")

    def fail(target: str) -> None:
        raise OSError(28, "No space left on device")

    policy = load_policy(folder("llama"))
    save_policy(policy, tmp_path / "model", save_tokenizer=save_tokenizer, card=CARD)
    assert (tmp_path / "model" / "vocabulary.txt").read_text() == "a b"
    with pytest.raises(CheckpointError, match="No space left"):
        save_policy(policy, tmp_path / "model", save_tokenizer=fail, card=CARD)
    assert (tmp_path / "model" / "vocabulary.txt").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError):
        save_policy(policy, tmp_path / "file" / "model", save_tokenizer=None, card=CARD)


# -------------------------------------------------------------------------------------------------------------- critics


def trained_critic(**options: Any) -> SeparateCritic:
    critic = load_critic(folder("llama"), **options)
    optimizer = torch.optim.AdamW(critic.trainable().values(), lr=0.01)
    for _ in range(3):
        batch = lay_out(ROLLOUT, [0, 1, 2], packed=True, device=torch.device("cpu"))
        optimizer.zero_grad()
        (critic.forward(batch) - 3.0).square().mean().backward()
        optimizer.step()
    return critic


def test_a_separate_critic_gives_the_same_bits_again(tmp_path: Path) -> None:
    """CKP-01: trunk and head, trained; neither untrained nor made anew."""
    critic = trained_critic()
    save_critic(critic, tmp_path / "critic")
    now, again = critic.values(ROLLOUT), load_critic(tmp_path / "critic").values(ROLLOUT)
    np.testing.assert_array_equal(again.values, now.values)
    np.testing.assert_array_equal(again.after, now.after)
    head = load_file(tmp_path / "critic" / "value_head.safetensors")["weight"]
    assert torch.equal(head, critic.head.weight.detach())
    assert not torch.equal(head, load_critic(folder("llama")).head.weight)
    trunk = digest_tensors(load_critic(tmp_path / "critic").trunk.state_dict().items())
    assert trunk == digest_tensors(critic.trunk.state_dict().items())
    assert trunk != digest_tensors(load_critic(folder("llama")).trunk.state_dict().items())


def test_adapters_of_a_critic_are_merged(tmp_path: Path) -> None:
    critic = trained_critic(lora=Lora(4))
    before = digest_tensors(critic.trunk.state_dict().items())
    now = critic.values(ROLLOUT)
    save_critic(critic, tmp_path / "critic")
    assert digest_tensors(critic.trunk.state_dict().items()) == before
    np.testing.assert_array_equal(critic.values(ROLLOUT).values, now.values)
    again = load_critic(tmp_path / "critic")
    np.testing.assert_allclose(again.values(ROLLOUT).values, now.values, atol=1e-4)
    save_critic(again, tmp_path / "twice")
    np.testing.assert_array_equal(load_critic(tmp_path / "twice").values(ROLLOUT).values, again.values(ROLLOUT).values)


@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
def test_a_shared_critic_lies_inside_its_policy(lora: Lora | None, tmp_path: Path) -> None:
    policy = load_policy(folder("llama"), lora=lora)
    critic = shared_critic(policy, folder("llama"))
    train(policy, lr=1e-3)
    with pytest.raises(ModelError, match="save the policy first"):
        save_critic(critic, tmp_path / "model" / "critic")
    write(policy, tmp_path / "model")
    save_critic(critic, tmp_path / "model" / "critic")
    assert sorted(p.name for p in (tmp_path / "model" / "critic").iterdir()) == [
        "critic.json",
        "value_head.safetensors",
    ]
    assert not (tmp_path / "model" / "value_head.safetensors").exists()
    now = critic.values(ROLLOUT)
    again = load_critic(tmp_path / "model" / "critic").values(ROLLOUT)
    np.testing.assert_allclose(again.values, now.values, atol=0 if lora is None else 1e-4)
    reloaded = shared_critic(load_policy(tmp_path / "model"), tmp_path / "model" / "critic")
    np.testing.assert_array_equal(reloaded.values(ROLLOUT).values, again.values)


def test_a_critic_saved_without_its_head_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    critic = trained_critic()
    monkeypatch.setattr(save, "save_file", lambda tensors, file: None)
    with pytest.raises(ModelError, match="values differ"):
        save_critic(critic, tmp_path / "critic")
    assert not (tmp_path / "critic").exists()
