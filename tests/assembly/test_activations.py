"""What the memory plan says of a pass is what the pass takes, on several models, layouts and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from surefoot.assembly.activations import decoding_weights, kept_by_a_layer, kept_for_backward
from surefoot.assembly.memory import Estimate, memory_for
from surefoot.assembly.model_shape import shape_of
from surefoot.assembly.models import build_critic, build_policy
from surefoot.assembly.phases import Holder, trained_model
from surefoot.assembly.roles import CRITIC, POLICY, role_of, shapes_of
from surefoot.assembly.step_sizes import step_sizes
from surefoot.config import Config
from surefoot.models.batching import MicroBatch, micro_batches
from surefoot.models.critic import SeparateCritic
from surefoot.models.decoder import decoder_for
from surefoot.models.load import load_model_config, quiet_library
from surefoot.models.policy import CausalPolicy
from surefoot.models.tokenizer import VocabularyPlan
from surefoot.models.toy import make_toy_model
from surefoot.records import Rollout, StopReason, Trajectory
from surefoot.rollout.decoding import Sampling, decode
from tests.assembly.live_bytes import LiveBytes, saved_bytes
from tests.builders import make_config, merged, save_gpt2

CPU = torch.device("cpu")
ORACLES = Path(__file__).parents[1] / "oracles" / "models"
NEW = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The toy, a Llama of middle size, and two that are other: normed heads, and layers without kernels."""
    folder = tmp_path_factory.mktemp("models")
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    with quiet_library():
        LlamaForCausalLM(config).save_pretrained(folder / "middle")
    return {
        "toy": make_toy_model(folder / "toy"),
        "middle": folder / "middle",
        "qwen3": ORACLES / "qwen3",
        "gpt2": save_gpt2(folder / "gpt2", hidden=64, layers=4),
    }


def prompts_of(count: int, common: int = 0) -> list[tuple[int, ...]]:
    """Prompts of different lengths, the first tokens of which are the same in all."""
    rng = np.random.default_rng(count)
    start = rng.integers(0, 10, common).tolist()
    return [tuple(start + rng.integers(0, 10, 5 + n % 7).tolist()) for n in range(count)]


def config_of(folder: Path, count: int, **sections: Any) -> Config:
    base = {
        "model": {"dtype": "float32"},
        "rollout": {"prompts_per_step": count, "max_new_tokens": NEW, "temperature": 0.7},
        "ppo": {"minibatches": 1},
        "batch": {"packing": "on"},
        "reward": {"terms": []},
    }
    return make_config(folder, **merged(base, sections))


def rollout_of(prompts: Sequence[tuple[int, ...]]) -> Rollout:
    """Responses as long as may be, and different from their first tokens on."""
    rows = []
    for n, ids in enumerate(prompts):
        response = (n % 12, n // 12, *np.random.default_rng(n).integers(0, 10, NEW - 2).tolist())
        mask = (False,) * len(ids) + (True,) * NEW
        rows.append(Trajectory(tokens=(*ids, *response), mask=mask, stop_reason=StopReason.LENGTH))
    return Rollout.of(rows)


def largest(config: Config, prompts: Sequence[tuple[int, ...]]) -> MicroBatch:
    packed = config.batch.packing == "on"
    rows = range(len(prompts))
    cut = micro_batches(rollout_of(prompts), rows, tokens=config.batch.tokens, packed=packed, device=CPU)
    return max(cut, key=lambda batch: batch.input_ids.numel())


def built(config: Config) -> tuple[CausalPolicy, Any, Holder]:
    model_config = load_model_config(str(config.model.policy))
    rows = int(model_config.vocab_size)
    policy = build_policy(config, VocabularyPlan(rows, rows, ()), CPU)
    shapes = shapes_of(config, model_config)
    roles = {name: role_of(config, name, shape) for name, shape in shapes.items()}
    return policy, build_critic(config, policy, CPU), Holder(config, shapes, roles, CPU)


def estimate_of(config: Config, prompts: Sequence[tuple[int, ...]]) -> Estimate:
    return memory_for(config, load_model_config(str(config.model.policy)), prompts)


# ------------------------------------------------------------------------------------ kept for the backward pass

SETTINGS: list[dict[str, Any]] = [
    {},
    {"model": {"lora": {"rank": 4}}},
    {"model": {"lora": {"rank": 4, "targets": ["q_proj", "down_proj"]}}},
    {"model": {"gradient_checkpointing": True}},
    {"model": {"gradient_checkpointing": True, "lora": {}}},
    {"model": {"dtype": "float64"}},
    {"critic": {"kind": "shared"}},
    {"critic": {"kind": "shared"}, "model": {"lora": {}}},
    {"batch": {"packing": "off"}},
    {"batch": {"packing": "off"}, "model": {"lora": {}}},
    {"batch": {"tokens": 100}},
]


@pytest.mark.parametrize("sections", SETTINGS, ids=str)
def test_what_autograd_keeps(sections: dict[str, Any], models: dict[str, Path]) -> None:
    """The bytes of all saved tensors, within half a percent (ids and such are left out of the formula)."""
    check_kept(config_of(models["toy"], 24, **sections), prompts_of(24, common=12), 0.005)


@pytest.mark.parametrize("sections", SETTINGS[:2], ids=str)
@pytest.mark.parametrize(("name", "count"), [("toy", 4), ("middle", 3), ("middle", 12)])
def test_what_autograd_keeps_at_other_sizes(
    name: str, count: int, sections: dict[str, Any], models: dict[str, Path]
) -> None:
    check_kept(config_of(models[name], count, **sections), prompts_of(count), 0.005)


@pytest.mark.parametrize("packing", ["on", "off"])
def test_what_autograd_keeps_of_normed_heads(packing: str, models: dict[str, Path]) -> None:
    check_kept(config_of(models["qwen3"], 6, batch={"packing": packing}), prompts_of(6), 0.01)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("gpt2", {}),
        ("middle", {"model": {"dtype": "bfloat16"}}),
        ("middle", {"model": {"dtype": "bfloat16"}, "batch": {"packing": "off"}}),
        ("middle", {"model": {"dtype": "bfloat16", "lora": {}}}),
    ],
    ids=str,
)
def test_layers_without_kernels_are_counted_roughly(
    name: str, sections: dict[str, Any], models: dict[str, Path]
) -> None:
    check_kept(config_of(models[name], 8, **sections), prompts_of(8), 0.1)


def check_kept(config: Config, prompts: Sequence[tuple[int, ...]], rel: float) -> None:
    policy, critic, run = built(config)
    laid, batch = step_sizes(config, prompts, CPU).training, largest(config, prompts)
    assert (laid.tokens, laid.actions) == (batch.input_ids.numel(), len(batch.tokens))

    def forward() -> Any:
        logp, _, states = policy.forward(batch, slopes=slopes_of_sums)
        return logp if isinstance(critic, SeparateCritic) else (logp, critic.head(states))

    policy_model = trained_model(run, POLICY)
    saved = saved_bytes(forward, policy.module.parameters())
    if not policy_model.ranks:
        # The output layer's gradient is there already, and counted with the gradients.
        saved -= policy_model.shape.vocabulary * policy_model.shape.hidden * policy_model.width
    expect_kept(policy_model, laid, saved, rel)
    if isinstance(critic, SeparateCritic):
        weights = [*critic.trunk.parameters(), *critic.head.parameters()]
        expect_kept(trained_model(run, CRITIC), laid, saved_bytes(lambda: critic.forward(batch), weights), rel)


def slopes_of_sums(_: slice, logp: Tensor) -> tuple[Tensor, Tensor]:
    """Of the sum of all log-probabilities and entropies."""
    return torch.ones_like(logp), torch.ones_like(logp)


def expect_kept(model: Any, laid: Any, saved: int, rel: float) -> None:
    expected = kept_for_backward(model, laid)
    if model.checkpointing:
        # A layer that is computed again is not there yet after the forward pass, and the angles are its arguments.
        expected -= kept_by_a_layer(model, laid) + laid.tokens * model.ranks * model.width // model.shape.layers
        expected -= 2 * laid.tokens * model.shape.per_head * model.width
    # Masks of pieces that are attended to together are kept by the layout.
    expected -= laid.weights * model.shape.heads * model.width
    # Ids, norms' factors and log-sums: some numbers a token.
    assert saved == pytest.approx(expected, rel=rel, abs=5 * 8 * laid.tokens)


# ------------------------------------------------------------------------------------------ whole phases


@pytest.mark.parametrize(
    ("count", "sections"),
    [
        (4, {}),
        (16, {}),
        (4, {"model": {"lora": {}}}),
        (16, {"model": {"gradient_checkpointing": True}}),
        (16, {"ppo": {"entropy_coef": 0.01}}),
    ],
    ids=str,
)
def test_the_update_at_its_fullest(
    count: int, sections: dict[str, Any], models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live tensors of a forward and backward pass, whose gradients come while activations go."""
    in_small_chunks(monkeypatch)
    config, prompts = config_of(models["middle"], count, **sections), prompts_of(count)
    policy, _, run = built(config)
    batch = largest(config, prompts)
    entropy = config.ppo.entropy_coef > 0
    with LiveBytes(*policy.module.parameters()) as live:
        logp, entropies, _ = policy.forward(batch, entropy=entropy, slopes=slopes_of_sums)
        (logp.sum() if entropies is None else logp.sum() + entropies.sum()).backward()
    phase = estimate_of(config, prompts).phases["update"]
    gradients = run.roles[POLICY].gradients
    # Beside the gradients, what belongs to the layout: masks, and indices.
    laid, shape = step_sizes(config, prompts, CPU).training, run.shapes[POLICY]
    assert gradients <= live.now < gradients + laid.weights * shape.heads * 4 + 500_000
    # With one micro-batch gradients and activations share some of the time.
    assert 0.93 * (phase.total - gradients) < live.peak < 1.02 * phase.total


@pytest.mark.parametrize("rows_in_chunk", [1, 60])
def test_reading_at_its_fullest(rows_in_chunk: int, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Either a layer or the logits take most."""
    in_small_chunks(monkeypatch, rows_in_chunk)
    config, prompts = config_of(models["middle"], 16), prompts_of(16)
    policy, _, _ = built(config)
    with LiveBytes(*policy.module.parameters()) as live:
        policy.evaluate(rollout_of(prompts))
    phase = estimate_of(config, prompts).phases["score"]
    assert phase.who == POLICY
    assert live.peak == pytest.approx(phase.total - phase.parts["freed_gradients"], rel=0.15)


def in_small_chunks(monkeypatch: pytest.MonkeyPatch, rows: int = 60) -> None:
    """So that there are several of them."""
    for module in ("models.output_head", "assembly.activations"):
        monkeypatch.setattr(f"surefoot.{module}.CHUNK_BYTES", rows * 8000 * 4)


@pytest.mark.parametrize(("rows", "sections"), [(64, {}), (4, {"model": {"lora": {"rank": 4}}})], ids=str)
def test_a_rollout_at_its_fullest(rows: int, sections: dict[str, Any], models: dict[str, Path]) -> None:
    config, prompts = config_of(models["middle"], rows, **sections), prompts_of(rows)
    policy, _, _ = built(config)
    uniform = [np.random.default_rng(n).random(NEW) for n in range(rows)]
    with LiveBytes(*policy.module.parameters()) as live:
        decode(policy.lm, prompts, uniform, Sampling(max_new_tokens=NEW))
    phase = estimate_of(config, prompts).phases["rollout"]
    # Packed weights are opaque to what follows tensors (the next test counts them), and holes are no tensors.
    packed = decoding_weights(run_shape(config), rows, 4, CPU, adapted=bool(sections)) - unpacked(config, sections)
    assert live.peak == pytest.approx(phase.total - phase.parts["freed_gradients"] - packed, rel=0.25)


def run_shape(config: Config) -> Any:
    return shape_of(load_model_config(str(config.model.policy)))


def unpacked(config: Config, sections: dict[str, Any]) -> int:
    """Bytes of the weights that are joined or have adapters folded in."""
    return decoding_weights(run_shape(config), 4, 4, torch.device("cuda"), adapted=bool(sections))


@pytest.mark.parametrize("sections", [{}, {"model": {"lora": {"rank": 4}}}, {"model": {"dtype": "float64"}}], ids=str)
@pytest.mark.parametrize("rows", [4, 64])
def test_weights_laid_out_for_decoding(rows: int, sections: dict[str, Any], models: dict[str, Path]) -> None:
    config = config_of(models["middle"], rows, **sections)
    policy, _, _ = built(config)
    decoder = decoder_for(policy.lm, rows)
    assert decoder is not None
    maps = [decoder.head, *(m for layer in decoder.layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down))]
    own = {p.data_ptr() for p in policy.module.parameters()}
    weights = sum(m.weight.numel() for m in maps if m.weight.data_ptr() not in own)
    packed = sum(m.weight.numel() for m in maps if m.packed is not None)
    width = 8 if config.model.dtype == "float64" else 4
    adapted = config.model.lora is not None
    assert decoding_weights(run_shape(config), rows, width, CPU, adapted=adapted) == (weights + packed) * width
