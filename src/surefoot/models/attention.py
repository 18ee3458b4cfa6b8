"""Attention over the layouts that Surefoot uses, registered with transformers under the name ``surefoot``.

The library's models call it for every layer, so one model serves training (rows side by side or end to end) and
decoding (a preallocated cache) without padding ever reaching a real token. Pads stand on the right, where a causal
model cannot see them; hence no padding mask exists, and positions are simply 0, 1, 2, ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from surefoot.errors import ModelError

NAME = "surefoot"


@dataclass(frozen=True)
class Padded:
    """``[R, C]`` rows side by side, right-padded."""


@dataclass(frozen=True)
class Packed:
    """``[1, N]`` rows end to end; ``lengths`` says where they part."""

    lengths: tuple[int, ...]


class KVCache:
    """Keys and values of up to ``capacity`` tokens for R rows, allocated when the first layer writes.

    Row r holds its tokens at 0, 1, ..., so rows of different lengths need no padding between prompt and response.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def fill(self, layer: int, keys: Tensor, values: Tensor, layout: Prefill) -> None:
        """Store a prefill's ``[R, H, C, D]`` keys and values from position 0 on."""
        for store, new in ((self._keys, keys), (self._values, values)):
            rows, heads, length, width = new.shape
            if layer not in store:
                store[layer] = new.new_zeros(layout.total or rows, heads, self.capacity, width)
            store[layer][layout.start : layout.start + rows, :, :length] = new

    def append(
        self, layer: int, keys: Tensor, values: Tensor, positions: Tensor, longest: int
    ) -> tuple[Tensor, Tensor]:
        """Write one token per row at its own position and return the first ``longest`` columns."""
        rows = torch.arange(keys.shape[0], device=keys.device)
        self._keys[layer][rows, :, positions] = keys[:, :, 0]
        self._values[layer][rows, :, positions] = values[:, :, 0]
        return self._keys[layer][:, :, :longest], self._values[layer][:, :, :longest]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be kept several times."""
        for store in (self._keys, self._values):
            for layer, tensor in store.items():
                store[layer] = tensor.index_select(0, rows)


@dataclass(frozen=True)
class Prefill:
    """``[R, C]`` rows side by side whose keys and values go into the cache.

    Attributes:
        cache: new, or filled with other rows so far.
        start: the place of the first of them among the cache's rows.
        total: rows that the cache will have; None: these.
    """

    cache: KVCache
    start: int = 0
    total: int | None = None


@dataclass(frozen=True)
class Decode:
    """``[R, 1]``: the next token of each row.

    Attributes:
        cache: holds everything before it.
        positions: ``[R]`` position of the token in its row.
        longest: the largest position + 1.
    """

    cache: KVCache
    positions: Tensor
    longest: int
    mask: Tensor = field(init=False)

    def __post_init__(self) -> None:
        columns = torch.arange(self.longest, device=self.positions.device)
        object.__setattr__(self, "mask", (columns[None] <= self.positions[:, None])[:, None, None])


Layout = Padded | Packed | Prefill | Decode


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls: ``[R, H, C, D]`` in, ``[R, C, H, D]`` out."""
    layout: Layout | None = options.get("attention_layout")
    if layout is None or attention_mask is not None:
        raise ModelError(
            f"{type(module).__name__} does not hand the attention layout through to its attention",
            hint="this architecture is not supported yet",
        )
    for unknown in ("s_aux", "position_bias", "head_mask"):
        if options.get(unknown) is not None:
            raise ModelError(f"attention with {unknown} is not supported", got=type(module).__name__)
    scale, softcap, window = options.get("scaling"), options.get("softcap"), options.get("sliding_window")
    if isinstance(layout, Packed):
        parts = [
            _attend(q, k, v, scale, softcap, window)
            for q, k, v in zip(
                query.split(layout.lengths, dim=2),
                key.split(layout.lengths, dim=2),
                value.split(layout.lengths, dim=2),
                strict=True,
            )
        ]
        out = torch.cat(parts, dim=2)
    elif isinstance(layout, Decode):
        keys, values = layout.cache.append(module.layer_idx, key, value, layout.positions, layout.longest)
        out = _attend(query, keys, values, scale, softcap, window, decode=layout)
    else:
        if isinstance(layout, Prefill):
            layout.cache.fill(module.layer_idx, key, value, layout)
        out = _attend(query, key, value, scale, softcap, window)
    return out.transpose(1, 2).contiguous(), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    softcap: float | None,
    window: int | None,
    decode: Decode | None = None,
) -> Tensor:
    windowed = window is not None and key.shape[2] > window
    grouped = key.shape[1] != query.shape[1]
    if softcap is None and not windowed:
        if decode is None:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=decode.mask, scale=scale, enable_gqa=grouped)
    return _explicit(query, key, value, scale, softcap, _visible(query, key, window, decode))


def _visible(query: Tensor, key: Tensor, window: int | None, decode: Decode | None) -> Tensor:
    """Which keys each query sees, boolean, broadcastable to ``[R, H, C, K]``."""
    columns = torch.arange(key.shape[2], device=key.device)
    if decode is not None:
        at = decode.positions[:, None, None, None]
        mask = decode.mask
    else:
        at = torch.arange(query.shape[2], device=query.device)[None, None, :, None]
        mask = columns <= at
    return mask if window is None else mask & (columns > at - window)


def _explicit(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, softcap: float | None, mask: Tensor
) -> Tensor:
    """Attention spelt out, for models whose attention scores are capped or windowed."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=wide).to(query.dtype) @ value


AttentionInterface.register(NAME, attention)
