"""Loading: what is wrong with a folder is said at once, and numbers that would be wrong are refused."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    Cohere2Config,
    Cohere2ForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from surefoot.errors import ModelError
from surefoot.models.load import context_length, load_causal_lm
from surefoot.models.policy import CausalPolicy, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout, Trajectory
from tests.models.oracle_models import NAMES, altered, folder, reading

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROLLOUT = Rollout.of([Trajectory([3, 9, 27, 41, 60, 2], [0, 0, 1, 1, 0, 1]), Trajectory([5, 8, 2], [0, 1, 1])])


def write(model_class: Any, config: Any, target: Path) -> Path:
    """A random model of some architecture, with weights large enough that every part of it matters."""
    torch.manual_seed(0)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.4)
    model.save_pretrained(target)
    return target


def library_logp(path: Path, temperature: float) -> np.ndarray:
    """Row by row through the library's own eager forward pass."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    out = np.zeros(ROLLOUT.tokens.shape)
    for row, trajectory in enumerate(ROLLOUT.trajectories):
        ids = torch.tensor([list(trajectory.tokens)])
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids).logits[0] / temperature, dim=-1)
        for t, acted in enumerate(trajectory.mask):
            if acted:
                out[row, t] = logp[t - 1, ids[0, t]]
    return out


def error(path: Path | str, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load_policy(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------------------- what cannot be read


def test_what_is_no_model_folder_is_named(tmp_path: Path) -> None:
    assert "does not exist" in error(tmp_path / "absent")
    assert "does not exist" in error("./absent")
    (tmp_path / "empty").mkdir()
    assert "no config.json" in error(tmp_path / "empty")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    message = error(tmp_path / "model.gguf")
    assert "folder, not a file" in message and "GGUF" in message
    assert "could not be read" in error("surefoot-tests/absent")


def test_a_config_that_is_no_model_is_named(tmp_path: Path) -> None:
    for name, text in {"broken": "{", "unknown": '{"model_type": "no-such-architecture"}', "empty": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
        assert "config could not be read" in error(tmp_path / name)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    copy = altered("llama", tmp_path / "m")
    tensors = dict(reading("llama", BatchPlan()).lm.model.state_dict())
    (copy / "model.safetensors").unlink()
    torch.save(tensors, copy / "pytorch_model.bin")
    assert "could not be loaded" in error(copy)
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    assert "safetensors" in error(copy)


def test_a_torn_weight_file_is_named(tmp_path: Path) -> None:
    copy = altered("llama", tmp_path / "m")
    whole = (copy / "model.safetensors").read_bytes()
    for size in (0, 4, 300, len(whole) // 2):
        (copy / "model.safetensors").write_bytes(whole[:size])
        assert "could not be loaded" in error(copy)


@pytest.mark.parametrize("lost", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_lost_weights_are_never_filled_in_at_random(tmp_path: Path, lost: str) -> None:
    copy = altered("llama", tmp_path / "m", tensors=lambda t: {k: v for k, v in t.items() if k != lost})
    message = error(copy)
    assert "1 weights" in message and lost in message


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    assert "could not be loaded" in error(altered("llama", tmp_path / "m", config={"intermediate_size": 96}))


def test_a_model_for_another_task_is_no_policy(tmp_path: Path) -> None:
    path = write(LlamaForSequenceClassification, LlamaConfig(**TINY, num_labels=1), tmp_path / "m")
    assert "no causal language model" in error(path)


@pytest.mark.parametrize("options", [{"dtype": "float8"}, {"temperature": 0.0}, {"temperature": -1.0}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        load_policy(folder("llama"), **options)


# ---------------------------------------------------------------------------------------------- what would be wrong


def test_bidirectional_models_are_refused(tmp_path: Path) -> None:
    config = BertConfig(**{k: v for k, v in TINY.items() if k != "num_key_value_heads"})
    error(write(BertLMHeadModel, config, tmp_path / "m"))


def test_attention_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    path = altered("llama", tmp_path / "m", config={"is_causal": False})
    assert "attention differs from the library's own" in error(path)


def test_models_with_a_memory_besides_attention_are_refused(tmp_path: Path) -> None:
    """Convolutions run on from one packed row into the next, and decoding would start without their state."""
    config = Lfm2Config(**TINY, full_attn_idxs=[1], block_auto_adjust_ff_dim=False)
    path = write(Lfm2ForCausalLM, config, tmp_path / "m")
    assert "not supported" in error(path)


def test_windows_that_layers_do_not_hand_on_are_refused(tmp_path: Path) -> None:
    """A window wider than the probe would never show in its numbers."""
    options = TINY | {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    options |= {"shared_expert_intermediate_size": 8, "use_sliding_window": True, "sliding_window": 40}
    config = Qwen2MoeConfig(**options, max_window_layers=2)
    assert "window" in error(write(Qwen2MoeForCausalLM, config, tmp_path / "m"))


def test_attention_that_cannot_be_replaced_is_refused(tmp_path: Path) -> None:
    config = GPTNeoConfig(
        vocab_size=64,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        attention_types=[[["global"], 1]],
        max_position_embeddings=64,
    )
    assert "pluggable attention" in error(write(GPTNeoForCausalLM, config, tmp_path / "m"))


ARCHITECTURES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "logits multiplied": lambda: (Cohere2ForCausalLM, Cohere2Config(**TINY, logit_scale=0.3, sliding_window=3)),
    "logits divided": lambda: (GraniteForCausalLM, GraniteConfig(**TINY, logits_scaling=4.0, attention_multiplier=0.3)),
    "window everywhere": lambda: (MistralForCausalLM, MistralConfig(**TINY, sliding_window=3)),
    "head with bias": lambda: (LlamaForCausalLM, LlamaConfig(**TINY, attention_bias=True, mlp_bias=True)),
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_other_architectures_agree_with_the_library_or_are_refused(kind: str, tmp_path: Path) -> None:
    path = write(*ARCHITECTURES[kind](), tmp_path / "m")
    for temperature in (1.0, 0.6):
        expected = library_logp(path, temperature)
        for packing in ("on", "off"):
            policy = load_policy(path, temperature=temperature, plan=BatchPlan(packing=packing))
            np.testing.assert_allclose(policy.evaluate(ROLLOUT).logp, expected, atol=1e-5)


def test_scaled_attention_of_gpt2_is_read_from_the_config(tmp_path: Path) -> None:
    path = altered(
        "gpt2", tmp_path / "m", config={"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}
    )
    found = load_policy(path).evaluate(ROLLOUT).logp
    np.testing.assert_allclose(found, library_logp(path, 1.0), atol=1e-5)
    assert np.abs(found - load_policy(folder("gpt2")).evaluate(ROLLOUT).logp).max() > 1e-3


@pytest.mark.parametrize(("config", "what"), [({"final_logit_softcapping": 1.0}, "logits"), ({}, "")])
def test_a_head_read_wrongly_is_refused(
    config: dict[str, Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe finds what an architecture does to its logits and we do not know of."""
    path = altered("gemma2", tmp_path / "m", config=config)
    load_causal_lm(str(path))
    if what:
        monkeypatch.setattr(
            "surefoot.models.load.head_settings", lambda c, t, b: reading("llama", BatchPlan()).lm.head.settings
        )
        with pytest.raises(ModelError, match=what):
            load_causal_lm(str(path))


# ------------------------------------------------------------------------------------------------ what is made right


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_loads_and_agrees_roughly(name: str, dtype: str) -> None:
    rollout = ROLLOUT
    half, whole = load_policy(folder(name), dtype=dtype), reading(name, BatchPlan())
    for packing in ("on", "off"):
        found = CausalPolicy(half.lm, BatchPlan(packing=packing)).evaluate(rollout)
        assert found.logp.dtype == np.float32
        np.testing.assert_allclose(found.logp, whole.evaluate(rollout).logp, atol=0.02 if dtype == "float16" else 0.2)


def different_head(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] * 0.5}


def same_head(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


def test_a_head_that_differs_from_its_embedding_stays_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CKP-08: the flag says tied, the file holds two tensors."""
    path = altered("qwen2", tmp_path / "m", tensors=different_head)
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        lm = load_causal_lm(str(path))
    head, embedding = lm.model.get_output_embeddings().weight, lm.model.get_input_embeddings().weight
    torch.testing.assert_close(head, embedding * 0.5)
    assert not lm.model.config.tie_word_embeddings
    assert "kept apart" in caplog.text
    lm.model.tie_weights()
    assert not torch.equal(lm.model.get_output_embeddings().weight, embedding)


def test_a_head_stored_twice_is_still_one_parameter(tmp_path: Path) -> None:
    lm = load_causal_lm(str(altered("qwen2", tmp_path / "m", tensors=same_head)))
    assert lm.model.get_output_embeddings().weight is lm.model.get_input_embeddings().weight
    assert lm.model.config.tie_word_embeddings


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_missing_rows_are_added_and_nothing_else_changes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """TOK-08: an added id has a row before it is used, the same in policy, reference and critic."""
    small, grown = reading(name, BatchPlan()), load_policy(folder(name), rows_needed=131, banned=(128, 129))
    embedding = grown.lm.model.get_input_embeddings().weight
    head = grown.lm.model.get_output_embeddings().weight
    assert embedding.shape[0] == head.shape[0] == 131
    assert "rows added" in caplog.text
    assert (head is embedding) == (name != "llama")
    torch.testing.assert_close(embedding[128:], embedding[:128].mean(0).expand(3, -1))
    assert grown.lm.model.config.vocab_size == 131
    new = Rollout.of([Trajectory([3, 130, 5, 130], [0, 0, 1, 1])])
    assert np.isfinite(grown.evaluate(new).logp).all()
    everything_new_banned = load_policy(folder(name), rows_needed=131, banned=(128, 129, 130))
    np.testing.assert_allclose(everything_new_banned.evaluate(ROLLOUT).logp, small.evaluate(ROLLOUT).logp, atol=1e-6)


def test_ids_without_a_row_are_refused_before_the_model_sees_them() -> None:
    for odd in (128, 5000):
        rollout = Rollout.of([Trajectory([3, odd, 5], [0, 1, 1])])
        with pytest.raises(ValueError, match="no embedding"):
            reading("llama", BatchPlan()).evaluate(rollout)


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize(("name", "context"), [("gpt2", 48), ("llama", 64)])
def test_trajectories_longer_than_the_context_are_refused(name: str, context: int, packing: str) -> None:
    fits = Rollout.of([Trajectory([1] * context, [0] + [1] * (context - 1))] * 2)
    policy = reading(name, BatchPlan(packing=packing))
    assert policy.lm.context == context
    assert np.isfinite(policy.evaluate(fits).logp).all()
    with pytest.raises(ModelError, match="longer than the model's context"):
        policy.evaluate(Rollout.of([Trajectory([1] * (context + 1), [0] + [1] * context)]))


def test_contexts_beyond_which_rotary_embeddings_depend_on_the_batch_are_not_used(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    path = altered("llama", tmp_path / "m", config={"rope_parameters": rope, "max_position_embeddings": 64})
    policy = load_policy(path)
    assert policy.lm.context == 16 == context_length(policy.lm.model.config)


def test_generation_settings_of_the_folder_change_no_number(tmp_path: Path) -> None:
    """ALG-15"""
    path = altered("llama", tmp_path / "m")
    settings = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    (path / "generation_config.json").write_text(json.dumps(settings))
    policy = load_policy(path)
    assert policy.temperature == 1.0
    np.testing.assert_array_equal(policy.evaluate(ROLLOUT).logp, reading("llama", BatchPlan()).evaluate(ROLLOUT).logp)
