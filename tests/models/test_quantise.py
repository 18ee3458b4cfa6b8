"""Frozen weights in few bits: what they stand for, and that all who compute with them see that one model."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from surefoot.errors import MissingExtra, ModelError
from surefoot.models import quantise as subject
from surefoot.models.batching import lay_out
from surefoot.models.critic import SeparateCritic, load_critic
from surefoot.models.decoder import decoder_for
from surefoot.models.digest import digest_tensors
from surefoot.models.frozen_maps import FrozenMap, frozen_linear_onto, frozen_linears
from surefoot.models.layers import linear_weights
from surefoot.models.load import quiet_library, read_causal_lm, ready_lm
from surefoot.models.lora import add_adapter
from surefoot.models.policy import CausalPolicy, FrozenReference, Lora, StartingReference, load_policy
from surefoot.models.quantise import BLOCK, Int8Linear, Nf4Linear, QuantisedLinear, quantise, stored_bytes
from surefoot.models.save import save_critic, save_policy
from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout, Trajectory
from surefoot.rollout.decoding import Sampling, decode
from tests.builders import save_llama
from tests.models.oracle_models import folder

CPU = torch.device("cpu")
ABSENT = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
KINDS = ["int8", pytest.param("nf4", marks=ABSENT)]
ROLLOUT = Rollout.of(
    [
        Trajectory([3, 70, 114, 5, 60, 2, 88, 41, 0, 17], [False] * 3 + [True] * 7),
        Trajectory([9, 11, 25, 87], [False] + [True] * 3),
        Trajectory([3, 70, 114, 5, 9, 9], [False] * 4 + [True] * 2),
    ]
)
# Levels of NF4, Dettmers et al. 2023, appendix E.
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334]
NF4 += [-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224]
NF4 += [0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def weight_of(outputs: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 0.05


def shaken(policy: Any, scale: float = 0.1) -> Any:
    """Adapters away from their start, where B is zero."""
    with torch.no_grad():
        for i, parameter in enumerate(policy.trainable().values()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)) * scale)
    return policy


def quantised(name: str, kind: str, **options: Any) -> CausalPolicy:
    return load_policy(folder(name), quantize=kind, **({"lora": Lora(3)} | options))


def dequantised(policy: CausalPolicy, name: str, **options: Any) -> CausalPolicy:
    """A plain model with the very weights that a quantised one computes with, and adapters as the other's."""
    dtype = str(policy.lm.model.dtype).removeprefix("torch.")
    plain = read_causal_lm(str(folder(name)), dtype=dtype, rows_needed=None, trust_remote_code=False)
    layers = {
        n.replace(".base_layer", ""): m for n, m in policy.lm.model.named_modules() if isinstance(m, QuantisedLinear)
    }
    assert layers
    with torch.no_grad():
        for n, layer in layers.items():
            plain.get_submodule(n).weight.copy_(layer.in_file())
    lm = ready_lm(plain, "plain", device="cpu")
    lm.adapters = add_adapter(lm.model, rank=3, alpha=32.0, targets="all-linear", seed=0)
    other = CausalPolicy(lm, BatchPlan())
    theirs = policy.trainable()
    assert set(theirs) == set(other.trainable())
    with torch.no_grad():
        for n, parameter in other.trainable().items():
            parameter.copy_(theirs[n])
    return other


def gradients(policy: CausalPolicy) -> dict[str, Tensor]:
    logp, entropy, _ = policy.forward(lay_out(ROLLOUT, [0, 1, 2], packed=True, device=CPU), entropy=True)
    assert entropy is not None
    weights = torch.linspace(-1, 2, len(logp), dtype=logp.dtype)
    ((logp * weights).sum() - 0.3 * entropy.sum()).backward()
    return {name: p.grad for name, p in policy.trainable().items() if p.grad is not None}


# ------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(("outputs", "inputs"), [(5, 128), (7, 48), (3, 20)])
def test_int8_is_the_nearest_of_255_multiples_of_a_blocks_scale(outputs: int, inputs: int) -> None:
    weight = weight_of(outputs, inputs)
    weight[1, :16] = 0
    layer = Int8Linear(weight, None)
    assert layer.weight.dtype == torch.int8
    block = {128: 64, 48: 16, 20: 20}[inputs]
    for row in range(outputs):
        for start in range(0, inputs, block):
            part = weight[row, start : start + block].double()
            scale = part.abs().max() / 127
            found = layer.dense()[row, start : start + block].double()
            assert float((found - part).abs().max()) <= float(scale) / 2 + 1e-8
            assert (found == 0).all() == (part == 0).all()
    assert torch.equal(Int8Linear(layer.dense(), None).dense(), layer.dense()), "quantising twice changes nothing"


@pytest.mark.parametrize(("outputs", "inputs"), [(20, 128), (7, 48), (64, 576)])
def test_nf4_is_the_nearest_level_and_what_linear4bit_has(outputs: int, inputs: int) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    weight = weight_of(outputs, inputs)
    layer = Nf4Linear(weight, None)
    theirs = bitsandbytes.nn.Params4bit(
        weight.clone(), requires_grad=False, quant_type="nf4", blocksize=BLOCK, compress_statistics=True
    ).to("cpu")
    if inputs % BLOCK == 0:
        expected = bitsandbytes.functional.dequantize_4bit(theirs.data, theirs.quant_state)
        assert torch.equal(layer.dense(), expected)
    levels = torch.tensor(NF4)
    for part, found in zip(weight.flatten().split(BLOCK), layer.dense().flatten().split(BLOCK), strict=True):
        nearest = levels[(part[:, None] / part.abs().max() - levels).abs().argmin(dim=1)]
        # The scale is in 8 bits itself.
        scale = found.abs().max()
        assert abs(float(scale / part.abs().max()) - 1) < 0.03
        torch.testing.assert_close(found / scale, nearest, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_one_weight_in_every_type_and_nothing_else_is_kept(kind: str) -> None:
    weight = weight_of(96, 128)
    layer = subject.LAYERS[kind](weight, None)
    wide = subject.LAYERS[kind](weight.double(), None)
    assert wide.dense().dtype == torch.float64 and torch.equal(wide.dense().float(), layer.dense())
    half = subject.LAYERS[kind](weight.bfloat16().float(), None).dense()
    torch.testing.assert_close(subject.LAYERS[kind](weight.bfloat16(), None).dense().float(), half, rtol=8e-3, atol=0)
    kept = sum(p.numel() * p.element_size() for p in layer.parameters())
    assert kept == stored_bytes(kind, 96, 128, 4) < 96 * 128 * (1.1 if kind == "int8" else 0.6)
    assert not list(layer.buffers())


def test_rows_of_odd_length_stay_as_they_are() -> None:
    model = AutoModelForCausalLM.from_pretrained(folder("llama"))
    odd, plain = nn.Linear(7, 4), model.model.layers[0].mlp
    plain.odd = odd
    quantise(model, "int8", CPU)
    assert plain.odd is odd and isinstance(plain.up_proj, QuantisedLinear)
    assert stored_bytes("int8", 4, 7, 4) == 4 * 7 * 4


def test_a_model_without_linear_layers_is_refused() -> None:
    class Bare(nn.Module):
        def get_output_embeddings(self) -> None:
            return None

    with pytest.raises(ModelError, match="no linear layers"):
        quantise(Bare(), "int8", CPU)


# --------------------------------------------------------------------------------------------- forward, backward


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_a_quantised_model_is_its_dequantised_one(name: str, kind: str) -> None:
    """Log-probabilities and adapters' gradients; Qwen 2 has biases, GPT-2 transposed weights and no kernels of ours."""
    policy = shaken(quantised(name, kind))
    plain = dequantised(policy, name)
    found, expected = policy.evaluate(ROLLOUT).logp, plain.evaluate(ROLLOUT).logp
    original = shaken(load_policy(folder(name), lora=Lora(3))).evaluate(ROLLOUT).logp
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(original - expected).max() > 1e-3, "quantising changed nothing"
    ours, theirs = gradients(policy), gradients(plain)
    assert set(ours) == set(theirs) == set(policy.trainable())
    for key, gradient in theirs.items():
        assert float((ours[key] - gradient).norm()) < 1e-5 * float(gradient.norm()) + 1e-9, key


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_maps_and_their_gradients_are_those_of_plain_ones(biased: bool, adapted: bool) -> None:
    """Two maps of the same states, and one that is added to a residual."""
    layers = [
        Int8Linear(weight_of(6, 32, i).double(), weight_of(1, 6, 9)[0].double() if biased else None) for i in (1, 2)
    ]
    inputs = [weight_of(*size, seed).double() for seed, size in enumerate([(5, 32), (5, 6), (2, 32), (6, 2)])]
    found = []
    for plain in (False, True):
        x, residual, down, up = (tensor.clone().requires_grad_() for tensor in inputs)
        maps = [FrozenMap(layer, down, up, 0.5) if adapted else FrozenMap(layer) for layer in layers]
        if plain:
            first, second = (
                nn.functional.linear(x, m.weight, m.bias) + (0.5 * x @ down.t() @ up.t() if adapted else 0)
                for m in maps
            )
            onto = residual + first
        else:
            first, second = frozen_linears(x, tuple(maps))
            onto = frozen_linear_onto(residual, x, maps[0])
        (first.sin().sum() + second.cos().sum() + onto.square().sum()).backward()
        found.append([first, second, onto, *(t.grad for t in (x, residual, down, up))])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_our_kernels_run_quantised_layers_and_agree_with_the_library(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms and rotations are in float32 in the library's own code, whatever the type."""
    policy = shaken(quantised(name, "int8", dtype="float64"))
    layer = next(m for m in policy.lm.model.modules() if type(m).__name__.endswith("DecoderLayer"))
    assert linear_weights(layer.mlp.up_proj) is not None
    ours, logp = gradients(policy), policy.evaluate(ROLLOUT).logp
    for parameter in policy.trainable().values():
        parameter.grad = None
    monkeypatch.setattr("surefoot.models.layers.linear_weights", lambda module: None)
    np.testing.assert_allclose(policy.evaluate(ROLLOUT).logp, logp, atol=1e-5)
    for key, gradient in gradients(policy).items():
        assert float((ours[key] - gradient).norm()) < 1e-4 * float(gradient.norm()), key


def test_no_graph_holds_a_dense_weight() -> None:
    policy = shaken(quantised("llama", "int8"))
    sizes = {(m.out_features, m.in_features) for m in policy.lm.model.modules() if isinstance(m, QuantisedLinear)}
    shapes: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
        batch = lay_out(ROLLOUT, [0, 1, 2], packed=True, device=CPU)
        policy.forward(batch, slopes=lambda _, logp: (torch.ones_like(logp), None))
    assert shapes and not sizes & set(shapes) - {tuple(p.shape) for p in policy.trainable().values()}


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointed_layers_give_the_same_gradients(kind: str) -> None:
    whole = gradients(shaken(quantised("llama", kind)))
    again = gradients(shaken(quantised("llama", kind, gradient_checkpointing=True)))
    for key, gradient in whole.items():
        assert torch.equal(again[key], gradient), key


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_types_train_too(dtype: str) -> None:
    found = gradients(shaken(quantised("llama", "int8", dtype=dtype)))
    assert found and all(bool(torch.isfinite(g).all()) and float(g.abs().max()) > 0 for g in found.values())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_was_read_to_be_quantised_leaves_the_main_memory(tmp_path: Path) -> None:
    """The embedding keeps the whole file mapped, and with it all weights that nobody reads any more."""
    path = save_llama(tmp_path / "llama", vocabulary=64, hidden=512, layers=4)
    size = (path / "model.safetensors").stat().st_size
    whole = load_policy(path, lora=Lora(2))
    assert mapped(path) > 0.9 * size, "the file is not mapped: nothing to see here"
    del whole
    gc.collect()
    policy = load_policy(path, lora=Lora(2), quantize="int8")
    assert mapped(path) < 0.15 * size
    weights = load_file(path / "model.safetensors")
    assert torch.equal(policy.lm.model.get_input_embeddings().weight, weights["model.embed_tokens.weight"])


def mapped(folder: Path) -> int:
    """Bytes of a folder's files that lie in main memory for this process."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            ours = str(folder) in line
        elif ours and name == "Rss:":
            found += int(rest[0]) * 1024
    return found


# ------------------------------------------------------------------------------------- head, reference, sampler


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_head_and_embeddings_stay_as_they_are(name: str, kind: str) -> None:
    model, policy = AutoModelForCausalLM.from_pretrained(folder(name)), quantised(name, kind)
    assert torch.equal(policy.lm.head.layer.weight, model.get_output_embeddings().weight)
    assert torch.equal(policy.lm.model.get_input_embeddings().weight, model.get_input_embeddings().weight)
    inner = [m for m in policy.lm.model.modules() if isinstance(m, nn.Linear) and not isinstance(m, QuantisedLinear)]
    adapters = {id(m) for n, m in policy.lm.model.named_modules() if ".lora_" in n}
    assert [m for m in inner if id(m) not in adapters] == [policy.lm.head.layer]


@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_zero_at_the_start_and_counts_from_the_quantised_model(kind: str) -> None:
    policy = quantised("llama", kind)
    reference, own = StartingReference(policy), FrozenReference(quantised("llama", kind, lora=None).lm, BatchPlan())
    start, before = policy.evaluate(ROLLOUT).logp, reference.digest()
    assert np.array_equal(reference.logp(ROLLOUT), start)
    np.testing.assert_allclose(own.logp(ROLLOUT), start, atol=1e-6)
    shaken(policy)
    assert np.abs(policy.evaluate(ROLLOUT).logp - start).max() > 1e-3
    assert np.array_equal(reference.logp(ROLLOUT), start)
    assert reference.digest() == before == StartingReference(quantised("llama", kind)).digest()
    codes = next(m for m in policy.lm.model.modules() if isinstance(m, QuantisedLinear)).weight
    codes.data.view(-1)[0] += 1
    assert reference.digest() != before, "the digest does not see the quantised weights"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("laid_out", [True, False])
def test_the_sampler_says_what_training_reads(kind: str, laid_out: bool) -> None:
    policy = shaken(quantised("llama", kind))
    assert decoder_for(policy.lm, 3) is not None
    prompts = [[3, 70, 114], [9, 11], [25] * 6]
    draws = [np.random.default_rng(i).random(12) for i in range(3)]
    found = decode(policy.lm, prompts, draws, Sampling(12, laid_out=laid_out))
    rollout = Rollout.of(
        [
            Trajectory([*p, *c.tokens], [False] * len(p) + [True] * len(c.tokens))
            for p, c in zip(prompts, found, strict=True)
        ]
    )
    read = policy.evaluate(rollout).logp
    sampled = np.zeros_like(read)
    sampled[rollout.mask] = [x for c in found for x in c.logp]
    assert np.abs(read - sampled).max() < 1e-4


# ------------------------------------------------------------------------------------------------------- saving


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "targets"), [("llama", "all-linear"), ("gpt2", ["c_attn"])])
def test_what_is_saved_is_the_trained_model(name: str, targets: Any, kind: str, tmp_path: Path) -> None:
    policy = shaken(quantised(name, kind, lora=Lora(3, targets=targets)))
    before = digest_tensors(policy.module.named_parameters())
    save_policy(policy, tmp_path / "model", save_tokenizer=None, card="")
    assert digest_tensors(policy.module.named_parameters()) == before
    again = load_policy(tmp_path / "model").evaluate(ROLLOUT).logp
    assert np.abs(again - policy.evaluate(ROLLOUT).logp).max() < 5e-5
    with quiet_library():
        model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert getattr(model.config, "quantization_config", None) is None
    assert (tmp_path / "model" / "adapter" / "adapter_model.safetensors").is_file()


def test_an_adapter_is_merged_before_the_weights_are_quantised(tmp_path: Path) -> None:
    first = shaken(load_policy(folder("llama"), lora=Lora(3)))
    save_policy(first, tmp_path / "model", save_tokenizer=None, card="")
    merged = load_policy(tmp_path / "model", quantize="int8", lora=Lora(2))
    on_top = load_policy(tmp_path / "model" / "adapter", quantize="int8", lora=Lora(2))
    assert on_top.lm.folded == str(tmp_path / "model" / "adapter")
    np.testing.assert_allclose(on_top.evaluate(ROLLOUT).logp, merged.evaluate(ROLLOUT).logp, atol=1e-5)
    beside = load_policy(tmp_path / "model" / "adapter", quantize="int8")
    assert beside.trainable()
    assert np.array_equal(StartingReference(beside).logp(ROLLOUT), beside.evaluate(ROLLOUT).logp)


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_of_its_own_is_quantised_too(kind: str, tmp_path: Path) -> None:
    critic = shaken(load_critic(folder("llama"), quantize=kind, lora=Lora(3)))
    assert isinstance(critic, SeparateCritic)
    assert any(isinstance(m, QuantisedLinear) for m in critic.trunk.modules())
    assert all(
        isinstance(m.get_base_layer(), QuantisedLinear) for m in critic.trunk.modules() if isinstance(m, BaseTunerLayer)
    )
    values = critic.values(ROLLOUT).values
    assert np.abs(values).max() > 1e-3
    save_critic(critic, tmp_path / "critic")
    np.testing.assert_allclose(load_critic(tmp_path / "critic").values(ROLLOUT).values, values, atol=1e-5)


# ------------------------------------------------------------------------------------------------ missing package


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    subject.codec.cache_clear()
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    yield
    subject.codec.cache_clear()


def test_a_missing_package_is_one_line_before_anything_is_read(no_package: None, tmp_path: Path) -> None:
    for load in (load_policy, load_critic):
        with pytest.raises(MissingExtra) as caught:
            load(tmp_path / "no such model", quantize="nf4", lora=Lora(2))
        assert "'bitsandbytes'" in str(caught.value) and "pip install 'surefoot[quantize]'" in str(caught.value)
        assert "\n" not in str(caught.value)
    quantised("llama", "int8")
