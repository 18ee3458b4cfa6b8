"""One token per row, again and again, at the speed at which weights can be read.

A few rows use each weight so briefly that how it lies in memory decides. For a rollout, weights of known layers are
therefore laid out anew: maps of the same states joined, adapters folded in, and the large ones packed the way the
matrix library wants them; quantised ones in full. The numbers are those of the layers up to rounding; they last as long
as the weights do not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surefoot.models.attention import Decode, attention
from surefoot.models.frozen_maps import FrozenMap
from surefoot.models.kernels import LinearWeights, rotated
from surefoot.models.layers import is_known, linear_weights, window_of
from surefoot.models.load import CausalLM
from surefoot.parallel.allocator import hand_back, hand_back_next

# Up to this many rows ``W x^T`` is faster on a CPU than ``x W^T`` (measured at 16, 32 and 64).
FEW_ROWS = 48
# Outputs from which packing pays even for few rows.
MANY_OUTPUTS = 900
# Bytes that MKL takes for a packed weight, by shape.
_room: dict[tuple[int, ...], int] = {}


class _Map:
    """``x W^T + b`` for a fixed number of rows; other numbers of rows work, more slowly.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]`` or None.
        rows: how many rows will mostly come.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        self.weight, self.bias, self.rows = weight, bias, rows
        self.packed: Tensor | None = None
        on_cpu = weight.device.type == "cpu"
        self.turned = on_cpu
        if on_cpu and weight.dtype == torch.float32 and (rows >= FEW_ROWS or len(weight) >= MANY_OUTPUTS) and has_mkl():
            self.packed = _pack(weight, rows)

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, in]`` to ``[rows, out]``."""
        if self.packed is not None and len(x) == self.rows:
            out: Tensor = torch.ops.mkl._mkl_linear(x, self.packed, self.weight, self.bias, self.rows)
            return out
        if self.turned and len(x) < FEW_ROWS:
            out = torch.mm(self.weight, x.t()).t()
            return out.contiguous() if self.bias is None else out + self.bias
        return F.linear(x, self.weight, self.bias)

    def release(self) -> None:
        """Let the packed weight go, with its memory; the map works on, more slowly."""
        if self.packed is not None:
            hand_back(torch.ops.mkldnn.data_ptr(self.packed), torch.ops.mkldnn._nbytes(self.packed))
            self.packed = None


def _pack(weight: Tensor, rows: int) -> Tensor:
    """A weight as MKL wants it, for :func:`torch.ops.mkl._mkl_linear`.

    MKL takes two to five times the room that it fills. What was freed before lies there with its old contents, and
    would stay in main memory unread; so it is handed back first.
    """
    shape = tuple(weight.shape)
    if shape in _room:
        hand_back_next(_room[shape])
    packed: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    _room[shape] = torch.ops.mkldnn._nbytes(packed)
    return packed


def has_mkl() -> bool:
    """Whether torch can pack weights for MKL, as its own compiler does for frozen models."""
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_reorder_linear_weight")


@dataclass(frozen=True)
class _Layer:
    """A layer's maps, its attention module and its norms."""

    module: Any
    qkv: _Map
    out: _Map
    gate_up: _Map
    down: _Map
    heads: tuple[int, int]


class Decoder:
    """A model whose next tokens are read one at a time.

    Args:
        lm: of an architecture whose layers are known; see :func:`decoder_for`.
        layers: its layers with their maps.
        rows: how many rows will mostly be decoded.
    """

    def __init__(self, lm: CausalLM, layers: list[_Layer], rows: int) -> None:
        self.lm, self.layers = lm, layers
        weight, bias = lm.head.parameters()
        self.head = _Map(weight, bias, rows)

    def __enter__(self) -> Decoder:
        """For one rollout."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the packed weights go, with their memory."""
        for m in (self.head, *(m for layer in self.layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down))):
            m.release()

    def logits(self, states: Tensor) -> Tensor:
        """Finished logits ``[R, V]``, as :meth:`surefoot.models.output_head.OutputHead.logits`."""
        return self.lm.head.settings.logits(self.head(states))

    def states(self, tokens: Tensor, layout: Decode) -> Tensor:
        """``[R, H]`` states after one more token ``[R]`` of each row."""
        trunk: Any = self.lm.trunk
        x: Tensor = trunk.embed_tokens(tokens[:, None])[:, 0]
        cos, sin = trunk.rotary_emb(x[:, None], layout.positions[:, None])
        for layer in self.layers:
            x = _step(layer, x, cos, sin, layout)
        return _norm(trunk.norm, x)


def _step(layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, layout: Decode) -> Tensor:
    module, attn = layer.module, layer.module.self_attn
    queries, keys = layer.heads
    heads = layer.qkv(_norm(module.input_layernorm, x)).view(len(x), queries + 2 * keys, attn.head_dim)
    turned, value = heads[:, : queries + keys], heads[:, queries + keys :]
    if hasattr(attn, "q_norm"):
        parts = (_norm(attn.q_norm, turned[:, :queries]), _norm(attn.k_norm, turned[:, queries:]))
        turned = torch.cat(parts, dim=1)
    turned = rotated(turned, cos, sin, 1.0)
    mixed, _ = attention(
        attn,
        turned[:, :queries, None],
        turned[:, queries:, None],
        value[:, :, None],
        None,
        attention_layout=layout,
        scaling=attn.scaling,
        sliding_window=window_of(attn),
    )
    x = x + layer.out(mixed.flatten(1))
    gate, up = layer.gate_up(_norm(module.post_attention_layernorm, x)).chunk(2, dim=1)
    return x + layer.down(F.silu(gate).mul_(up))


def _norm(module: Any, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = norm.square_().mul_(1.0 / x.shape[-1]).add_(module.variance_epsilon).rsqrt_()
    out: Tensor = (x * inverse).mul_(module.weight)
    return out


@torch.no_grad()
def decoder_for(lm: CausalLM, rows: int) -> Decoder | None:
    """A decoder for the model as it is now; None where its layers, its type or its adapters are not known to it."""
    trunk: Any = lm.trunk
    modules = list(getattr(trunk, "layers", []))
    plain = all(hasattr(trunk, name) for name in ("embed_tokens", "rotary_emb", "norm"))
    if not plain or not modules or not all(map(is_known, modules)) or lm.model.dtype.itemsize < 4:
        return None
    layers = []
    for module in modules:
        attn, mlp = module.self_attn, module.mlp
        parts = (attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        maps = [linear_weights(part) for part in parts]
        if any(m is None for m in maps):
            return None
        q, k, v, o, gate, up, down = (m for m in maps if m is not None)
        heads = (attn.q_proj.out_features // attn.head_dim, attn.k_proj.out_features // attn.head_dim)
        joined = (_joined((q, k, v), rows), _joined((o,), rows), _joined((gate, up), rows), _joined((down,), rows))
        layers.append(_Layer(module, *joined, heads))
    return Decoder(lm, layers, rows)


def _joined(maps: tuple[LinearWeights | FrozenMap, ...], rows: int) -> _Map:
    """Maps of the same states as one, adapters folded in."""
    weights = []
    for m in maps:
        weight = m.weight
        if m.down is not None and m.up is not None:
            weight = torch.addmm(weight, m.up, m.down, alpha=m.scale)
        weights.append(weight)
    biases = [torch.zeros_like(w[:, 0]) if m.bias is None else m.bias for m, w in zip(maps, weights, strict=True)]
    bias = torch.cat(biases) if any(m.bias is not None for m in maps) else None
    return _Map(weights[0] if len(weights) == 1 else torch.cat(weights), bias, rows)
