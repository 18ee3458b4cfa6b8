"""Attention over the layouts that Surefoot uses, registered with transformers under the name ``surefoot``.

The library's models call it for every layer, so one model serves training (rows side by side or end to end) and
decoding (a preallocated cache) without padding ever reaching a real token. Pads stand on the right, where a causal
model cannot see them; hence no padding mask exists, and positions are simply 0, 1, 2, ...
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from surefoot.errors import ModelError
from surefoot.models.grouped_attention import SHORT, Grouping, Heads, grouped_attention, grouping

NAME = "surefoot"


@dataclass(frozen=True)
class Padded:
    """``[R, C]`` rows side by side, right-padded."""


@dataclass(frozen=True)
class Packed:
    """``[1, N]`` pieces of rows end to end.

    Attributes:
        lengths: where the pieces part.
        before: for each piece the pieces that it continues, from the first on; none when left out.
    """

    lengths: tuple[int, ...]
    before: tuple[tuple[int, ...], ...] = ()

    def bias(self, queries: int, keys: int, like: Tensor) -> Tensor:
        """``[C, K]``: 0 where the last C of K tokens may see, -inf where not; one for all layers and equal pieces."""
        kept: dict[tuple[int, int, torch.dtype], Tensor] = self.__dict__.setdefault("_bias", {})
        shape = (queries, keys, like.dtype)
        if shape not in kept:
            hidden = torch.full((queries, keys), -torch.inf, dtype=like.dtype, device=like.device)
            kept[shape] = hidden.triu_(keys - queries + 1)
        return kept[shape]

    def grouping(self, heads: Heads, like: Tensor) -> Grouping | None:
        """The pieces by size, where several are attended to at once; the same for all layers."""
        kept: dict[tuple[Heads, torch.dtype], Grouping | None] = self.__dict__.setdefault("_grouping", {})
        if (heads, like.dtype) not in kept:
            kept[heads, like.dtype] = grouping(self.lengths, self.before, heads, like)
        return kept[heads, like.dtype]


class KVCache:
    """Keys and values of up to ``capacity`` tokens for ``rows`` rows, allocated when the first layer writes.

    Row r holds its tokens at 0, 1, ..., so rows of different lengths need no padding between prompt and response.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def fill(self, layer: int, keys: Tensor, values: Tensor, layout: Prefill) -> None:
        """Store the prompts' ``[1, H, N, D]`` keys and values, each row's from position 0 on."""
        for store, new in ((self._keys, keys), (self._values, values)):
            if layer not in store:
                store[layer] = new.new_zeros(self.rows, new.shape[1], self.capacity, new.shape[3])
            copies = new[0].index_select(1, layout.places.flatten()).unflatten(1, layout.places.shape)
            store[layer][layout.rows, :, : layout.places.shape[1]] = copies.transpose(0, 1)

    def append(self, layer: int, keys: Tensor, values: Tensor, layout: Decode) -> tuple[Tensor, Tensor]:
        """Write one token per row ``[R, H, 1, D]`` at its own position; gives the first columns, ``[R, H, C, D]``."""
        places = layout.places(keys.shape[1])
        for store, new in ((self._keys, keys), (self._values, values)):
            store[layer].view(-1, new.shape[-1]).index_copy_(0, places, new.reshape(-1, new.shape[-1]))
        return self._keys[layer][:, :, : layout.longest], self._values[layer][:, :, : layout.longest]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.rows = len(rows)
        for store in (self._keys, self._values):
            for layer, tensor in store.items():
                store[layer] = tensor.index_select(0, rows)


@dataclass(frozen=True)
class Prefill:
    """``[1, N]`` prompts end to end whose keys and values go into the cache.

    Attributes:
        packed: how they lie.
        cache: where to.
        rows: ``[P]`` their places among the cache's rows.
        places: ``[P, C]`` where each one's tokens are among the N; repeated beyond its end.
    """

    packed: Packed
    cache: KVCache
    rows: Tensor
    places: Tensor


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

    @cached_property
    def mask(self) -> Tensor:
        """``[R, 1, 1, C]`` boolean: what each row may see."""
        columns = torch.arange(self.longest, device=self.positions.device)
        return (columns[None] <= self.positions[:, None])[:, None, None]

    def places(self, heads: int) -> Tensor:
        """``[R * H]``: where the token's keys go in the cache of all rows, heads and positions."""
        kept: dict[int, Tensor] = self.__dict__.setdefault("_places", {})
        if heads not in kept:
            rows = torch.arange(len(self.positions) * heads, device=self.positions.device)
            kept[heads] = rows * self.cache.capacity + self.positions.repeat_interleave(heads)
        return kept[heads]

    def bias(self, heads: int, dtype: torch.dtype) -> Tensor:
        """``[R * H, 1, C]``: 0 where a row may see, -inf where not."""
        kept: dict[int, Tensor] = self.__dict__.setdefault("_bias", {})
        if heads not in kept:
            hidden = torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)
            kept[heads] = hidden.masked_fill_(~self.mask, -torch.inf)[:, 0].repeat_interleave(heads, dim=0)
        return kept[heads]


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
    if isinstance(layout, Prefill):
        layout.cache.fill(module.layer_idx, key, value, layout)
    if isinstance(layout, (Packed, Prefill)):
        packed = layout.packed if isinstance(layout, Prefill) else layout
        return _packed(query, key, value, packed, scale, softcap, window), None
    if isinstance(layout, Decode):
        keys, values = layout.cache.append(module.layer_idx, key, value, layout)
        if softcap is None and (window is None or keys.shape[2] <= window):
            return _next_token(query, keys, values, scale, layout), None
        out = _attend(query, keys, values, scale, softcap, window, layout)
    else:
        out = _attend(query, key, value, scale, softcap, window, layout)
    return out.transpose(1, 2).contiguous(), None


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Packed,
    scale: float | None,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    """Each piece attends to itself and to the pieces before it; ``[1, N, H, D]``."""
    if softcap is None and (window is None or window >= SHORT):
        groups = layout.grouping(Heads(query.shape[1], key.shape[1]), query)
        if groups is not None:
            return grouped_attention(query, key, value, groups, query.shape[3] ** -0.5 if scale is None else scale)
    # Joined as the tokens lie, a token's heads together, which is faster than a head at a time (measured).
    keys, values = (x.transpose(1, 2).split(layout.lengths, dim=1) for x in (key, value))
    parts = []
    for i, q in enumerate(query.split(layout.lengths, dim=2)):
        before = layout.before[i] if layout.before else ()
        k, v = (torch.cat([x[j] for j in (*before, i)], dim=1) if before else x[i] for x in (keys, values))
        parts.append(_attend(q, k.transpose(1, 2), v.transpose(1, 2), scale, softcap, window, layout).transpose(1, 2))
    return torch.cat(parts, dim=1)


def _next_token(query: Tensor, keys: Tensor, values: Tensor, scale: float | None, layout: Decode) -> Tensor:
    """One query per row, ``[R, 1, H, D]``: queries that share a key's head are one small matrix."""
    rows, heads, _, width = keys.shape
    q = query.reshape(rows * heads, query.shape[1] // heads, width)
    scores = torch.baddbmm(
        layout.bias(heads, q.dtype),
        q,
        keys.flatten(0, 1).transpose(1, 2),
        alpha=width**-0.5 if scale is None else scale,
    )
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, dim=-1, dtype=wide).to(scores.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).view(rows, 1, -1, width)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    softcap: float | None,
    window: int | None,
    layout: Padded | Packed | Decode,
) -> Tensor:
    """Causal attention of the last ``C`` of ``K`` tokens, or of one token per row of a cache."""
    windowed = window is not None and key.shape[2] > window
    grouped = key.shape[1] != query.shape[1]
    if softcap is None and not windowed:
        mask: Tensor | None = None
        if isinstance(layout, Decode):
            mask = layout.mask
        elif isinstance(layout, Packed) and query.shape[2] < key.shape[2]:
            mask = layout.bias(query.shape[2], key.shape[2], query)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
    return _explicit(query, key, value, scale, softcap, _visible(query, key, window, layout))


def _visible(query: Tensor, key: Tensor, window: int | None, layout: Padded | Packed | Decode) -> Tensor:
    """Which keys each query sees, boolean, broadcastable to ``[R, H, C, K]``."""
    columns = torch.arange(key.shape[2], device=key.device)
    if isinstance(layout, Decode):
        at = layout.positions[:, None, None, None]
        mask = layout.mask
    else:
        at = columns[None, None, key.shape[2] - query.shape[2] :, None]
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
