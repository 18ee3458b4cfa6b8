"""The kernels against the same formulas written out, operation by operation, in float64: numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surefoot.models.attention import Packed, Padded
from surefoot.models.kernels import LinearWeights, gated_silu, linear_onto, linears, rms_norm, rotary
from surefoot.models.policy import Lora, load_policy
from tests.models.oracle_models import folder

FAMILY = ("llama", "qwen2", "qwen3")


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def plain_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def plain_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def test_norm_silu_and_rotation_have_the_gradients_of_finite_differences() -> None:
    angle = torch.rand(1, 3, 1, 2, dtype=torch.float64)
    cos, sin = (torch.cat((t, t), dim=-1) for t in (angle.cos(), angle.sin()))
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-3), (made(2, 3, 4), made(4, seed=1)))
    assert torch.autograd.gradcheck(gated_silu, (made(2, 3, 4), made(2, 3, 4, seed=1)))
    assert torch.autograd.gradcheck(lambda x: rotary(x, cos, sin), (made(1, 3, 2, 4),))


def test_norm_silu_and_rotation_are_the_formulas() -> None:
    x, weight, gate = made(2, 3, 4), made(4, seed=1), made(2, 3, 4, seed=2)
    angle = torch.rand(1, 3, 1, 2, dtype=torch.float64)
    cos, sin = (torch.cat((t, t), dim=-1) for t in (angle.cos(), angle.sin()))
    torch.testing.assert_close(rms_norm(x, weight, 1e-3), plain_norm(x, weight, 1e-3), rtol=1e-14, atol=0)
    torch.testing.assert_close(gated_silu(gate, x), F.silu(gate) * x, rtol=1e-14, atol=0)
    heads = made(1, 3, 2, 4)
    torch.testing.assert_close(rotary(heads, cos, sin), plain_rotary(heads, cos, sin), rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_linear_maps_and_their_gradients_are_those_of_single_operations(
    bias: bool, adapter: bool, frozen: bool
) -> None:
    x, residual = made(2, 3, 4), made(2, 3, 5, seed=9)
    maps, leaves = [], [x, residual]
    for i, width in enumerate((5, 5, 3)):
        weight = made(width, 4, seed=i).detach().requires_grad_(not frozen)
        tensors = [weight, made(width, seed=10 + i) if bias else None]
        tensors += [made(2, 4, seed=20 + i), made(width, 2, seed=30 + i)] if adapter else [None, None]
        maps.append(LinearWeights(*tensors, scale=0.5 + i))
        leaves += [t for t in tensors if t is not None and t.requires_grad]

    def plain(m: LinearWeights) -> Tensor:
        y = F.linear(x, m.weight, m.bias)
        return y if m.down is None or m.up is None else y + m.scale * F.linear(F.linear(x, m.down), m.up)

    ours = [*linears(x, tuple(maps)), linear_onto(residual, x, maps[0])]
    theirs = [*(plain(m) for m in maps), residual + plain(maps[0])]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
    found = torch.autograd.grad(sum((y.sin() * (i + 1)).sum() for i, y in enumerate(ours)), leaves)
    expected = torch.autograd.grad(sum((y.sin() * (i + 1)).sum() for i, y in enumerate(theirs)), leaves)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def library_layer(layer: Any, x: Tensor, options: dict[str, Any]) -> Tensor:
    """The library's own forward pass of a layer whose kernels are on."""
    out: Tensor = layer.forward.args[1](x, **options)
    return out


@pytest.mark.parametrize("lora", [None, Lora(3)], ids=["full", "lora"])
@pytest.mark.parametrize("name", FAMILY)
def test_a_layer_agrees_with_the_librarys_own(name: str, lora: Lora | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow twin: the library's layer, operation by operation, with its norms in float64 as well."""
    policy = load_policy(folder(name), dtype="float64", lora=lora)
    trunk: Any = policy.lm.trunk
    if lora is not None:
        for parameter in policy.trainable().values():
            torch.nn.init.normal_(parameter, std=0.1)
    layer = trunk.layers[1]
    for norm in (m for m in layer.modules() if type(m).__name__.endswith("RMSNorm")):
        monkeypatch.setattr(norm, "forward", lambda x, n=norm: plain_norm(x, n.weight, n.variance_epsilon))
    width = policy.lm.hidden_size
    x = made(2, 6, width)
    positions = torch.arange(6).expand(2, -1)
    options = {"attention_layout": Padded(), "position_embeddings": trunk.rotary_emb(x, positions)}
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    ours, theirs = layer.forward(x, **options), library_layer(layer, x, options)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weights = made(*ours.shape, seed=3).detach()
    for a, b in zip(
        torch.autograd.grad((ours.sin() * weights).sum(), leaves),
        torch.autograd.grad((theirs.sin() * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("how", ["half", "dora", "dropout", "two adapters", "no layout"])
def test_what_the_kernels_do_not_cover_runs_as_the_library_does(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.models import layers

    policy = load_policy(folder("llama"), dtype="bfloat16" if how == "half" else "float32", lora=Lora(2))
    layer: Any = policy.lm.trunk.layers[0]  # type: ignore[index]
    target = layer.mlp.up_proj
    if how == "dora":
        forward = staticmethod(lambda *_, result, **options: result)
        target.lora_variant["default"] = type("Variant", (), {"forward": forward})()
    if how == "dropout":
        target.lora_dropout["default"] = torch.nn.Dropout(0.1)
    if how == "two adapters":
        policy.lm.adapters.add_adapter("other", policy.lm.adapters.peft_config["default"])
        policy.lm.adapters.base_model.set_adapter(["default", "other"])
    monkeypatch.setattr(layers, "gated_silu", None)
    x = torch.randn(1, 4, policy.lm.hidden_size).to(policy.lm.model.dtype)
    cos_sin = policy.lm.trunk.rotary_emb(x, torch.arange(4)[None])  # type: ignore[operator]
    options = {"attention_layout": Packed((4,)), "position_embeddings": cos_sin}
    if how == "no layout":
        seen = []
        monkeypatch.setattr(layer, "forward", layers.partial(layers._forward, layer, lambda x, **k: seen.append(k)))
        layer.forward(x, position_embeddings=cos_sin)
        assert seen
        return
    assert layer.forward(x, **options).shape == x.shape
