"""Decoder layers of the Llama family, run through our own kernels instead of the library's operations.

The library's modules stay what they are: they hold the weights, adapters go into them, and they are saved. Only the
way a layer computes is replaced, where its architecture is known and its state is one that the kernels cover; in all
other cases the library's own forward pass runs. :func:`surefoot.models.probe.probe` compares both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from surefoot.models.attention import attention
from surefoot.models.frozen_maps import FrozenMap, frozen_linear_onto, frozen_linears
from surefoot.models.kernels import LinearWeights, gated_silu, linear_onto, linears, rms_norm, rotary
from surefoot.models.quantise import QuantisedLinear

# Layers of these classes are: norm, attention with rotary positions, residual, norm, SwiGLU, residual.
KNOWN = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})


def use_kernels(model: nn.Module) -> int:
    """Let a model's known layers compute through our kernels; gives how many there are."""
    found: list[Any] = [module for module in model.modules() if is_known(module)]
    for layer in found:
        layer.forward = partial(_forward, layer, layer.forward)
    norm: Any = getattr(getattr(model, "base_model", model), "norm", None)
    if found and type(norm) is type(found[0].input_layernorm):
        norm.forward = partial(_final_norm, norm, norm.forward)
    return len(found)


def is_known(layer: Any) -> bool:
    """Whether this is a decoder layer that the kernels can run."""
    return type(layer).__name__ in KNOWN and isinstance(layer.mlp.act_fn, (nn.SiLU, SiLUActivation))


def _forward(layer: Any, library: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """One layer: ``[R, C, H]`` states in and out."""
    attn, mlp = layer.self_attn, layer.mlp
    modules = (attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    maps = [linear_weights(module) for module in modules]
    layout = options.get("attention_layout")
    if layout is None or hidden_states.dtype.itemsize < 4 or None in maps or len({*map(type, maps)}) > 1:
        out: Tensor = library(hidden_states, **options)
        return out
    q, k, v, o, gate, up, down = (m for m in maps if m is not None)
    normed = _norm(layer.input_layernorm, hidden_states)
    cos, sin = (t[:, :, None] for t in options["position_embeddings"])
    shape = (*hidden_states.shape[:-1], -1, attn.head_dim)
    query, key, value = (t.view(shape) for t in _linears(normed, q, k, v))
    if hasattr(attn, "q_norm"):
        query, key = _norm(attn.q_norm, query), _norm(attn.k_norm, key)
    mixed, _ = attention(
        attn,
        rotary(query, cos, sin).transpose(1, 2),
        rotary(key, cos, sin).transpose(1, 2),
        value.transpose(1, 2),
        None,
        attention_layout=layout,
        scaling=attn.scaling,
        sliding_window=window_of(attn),
    )
    states = _linear_onto(hidden_states, mixed.flatten(2), o)
    normed = _norm(layer.post_attention_layernorm, states)
    return _linear_onto(states, gated_silu(*_linears(normed, gate, up)), down)


def window_of(attn: Any) -> int | None:
    """The sliding window of an attention module, where its layer or its model has one."""
    if hasattr(attn, "sliding_window"):
        return None if attn.sliding_window is None else int(attn.sliding_window)
    width = getattr(attn.config, "sliding_window", None)
    return None if width is None else int(width)


def _final_norm(module: Any, library: Any, x: Tensor) -> Tensor:
    out: Tensor = library(x) if x.dtype.itemsize < 4 else _norm(module, x)
    return out


def _norm(module: Any, x: Tensor) -> Tensor:
    return rms_norm(x, module.weight, module.variance_epsilon)


def _linears(x: Tensor, *maps: LinearWeights | FrozenMap) -> tuple[Tensor, ...]:
    frozen = tuple(m for m in maps if isinstance(m, FrozenMap))
    return frozen_linears(x, frozen) if frozen else linears(x, tuple(m for m in maps if isinstance(m, LinearWeights)))


def _linear_onto(residual: Tensor, x: Tensor, m: LinearWeights | FrozenMap) -> Tensor:
    return frozen_linear_onto(residual, x, m) if isinstance(m, FrozenMap) else linear_onto(residual, x, m)


def linear_weights(module: Any) -> LinearWeights | FrozenMap | None:
    """The tensors of a plain, quantised or LoRA-adapted linear layer as it computes now; None where it does something
    else."""
    if type(module) is not LoraLinear:
        return _plain(module)
    base, plain = module.base_layer, _plain(module.base_layer)
    if plain is None:
        return None
    active = [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or module.merged or not active:
        # Asked to be switched off, a merged layer first undoes its merging; the library does that.
        return None if module.merged and module.disable_adapters else plain
    name = active[0]
    alone = len(active) == 1 and name not in module.lora_variant and isinstance(module.lora_dropout[name], nn.Identity)
    down, up = module.lora_A[name], module.lora_B[name]
    dtype = base.compute_dtype if isinstance(base, QuantisedLinear) else base.weight.dtype
    if not alone or up.bias is not None or down.weight.dtype != dtype:
        return None
    return replace(plain, down=down.weight, up=up.weight, scale=float(module.scaling[name]))


def _plain(module: Any) -> LinearWeights | FrozenMap | None:
    if isinstance(module, QuantisedLinear):
        return FrozenMap(module)
    return LinearWeights(module.weight, module.bias) if type(module) is nn.Linear else None
