"""Attention over rows that lie end to end: pieces of like size side by side, so that one call serves many.

Pieces are copied into buckets, padded a little, and attended to at once. Where to copy from and back to depends on the
layout alone and is worked out once for all layers. On a CPU this takes as long as a call per piece (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from surefoot.records import BoolArray, IntArray

# Keys that a bucketed piece may have; longer pieces are attended to one by one, without a mask in memory.
LONGEST = 512
# A bucket may hold this many times the query-key pairs that it needs.
PADDING = 1.5


@dataclass(frozen=True)
class Bucket:
    """Pieces that one call attends to.

    Attributes:
        rows, queries, keys: R pieces, the C tokens of the longest, and the K keys of that with most.
        mask: ``[R, 1, C, K]`` boolean, None for a single piece that continues nothing: plainly causal.
    """

    rows: int
    queries: int
    keys: int
    mask: Tensor | None


@dataclass(frozen=True)
class Copies:
    """Which rows of ``[N, W]`` are copied where, and how gradients come back.

    Attributes:
        source: ``[M]`` rows to copy.
        home: ``[N]`` for each row the copy that is its own.
        again, other: ``[S]`` copies beyond the own ones, and the rows they are of.
    """

    source: Tensor
    home: Tensor
    again: Tensor
    other: Tensor


@dataclass(frozen=True)
class PiecePlan:
    """Buckets, with the copies that fill them."""

    buckets: tuple[Bucket, ...]
    queries: Copies
    keys: Copies


def plan_pieces(lengths: Sequence[int], before: Sequence[Sequence[int]], device: torch.device) -> PiecePlan:
    """Put the pieces of a layout into buckets.

    Args:
        lengths: of the pieces.
        before: for each the pieces that it continues; empty where none does.
        device: of the indices.
    """
    starts = np.cumsum([0, *lengths])
    spans = [np.arange(a, b) for a, b in pairwise(starts)]
    seen = [np.concatenate([spans[j] for j in (*(before[i] if before else ()), i)]) for i in range(len(lengths))]
    buckets, queries, keys, own = [], [], [], []
    for group in _groups(lengths, [len(s) for s in seen]):
        width, depth = max(lengths[i] for i in group), max(len(seen[i]) for i in group)
        queries += [_padded(spans[i], width) for i in group]
        keys += [_padded(seen[i], depth) for i in group]
        own += [np.arange(len(seen[i])) >= len(seen[i]) - lengths[i] for i in group]
        buckets.append(_bucket([(lengths[i], len(seen[i])) for i in group], width, depth, device))
    total = int(starts[-1])
    all_own = [query >= 0 for query in queries]
    return PiecePlan(tuple(buckets), _copies(queries, all_own, total, device), _copies(keys, own, total, device))


def _groups(lengths: Sequence[int], depths: Sequence[int]) -> list[list[int]]:
    """Pieces of like size together, so that little is padded."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], depths[i], i)):
        group = [*groups[-1], i] if groups else [i]
        padded = len(group) * max(lengths[j] for j in group) * max(depths[j] for j in group)
        fits = padded <= PADDING * sum(lengths[j] * depths[j] for j in group)
        if groups and fits and max(depths[j] for j in group) <= LONGEST:
            groups[-1] = group
        else:
            groups.append([i])
    return groups


def _padded(span: IntArray, width: int) -> IntArray:
    """A span of rows, then -1 up to a width."""
    return np.concatenate([span, np.full(width - len(span), -1)])


def _bucket(sizes: list[tuple[int, int]], width: int, depth: int, device: torch.device) -> Bucket:
    if len(sizes) == 1 and width == depth:
        return Bucket(1, width, depth, None)
    rows = np.arange(width)[None, :, None]
    own = np.array([size[0] for size in sizes])[:, None, None]
    past = np.array([size[1] - size[0] for size in sizes])[:, None, None]
    # Queries beyond a piece's end see what its last token sees; nobody reads what they find.
    mask = np.arange(depth)[None, None] <= past + np.minimum(rows, own - 1)
    return Bucket(len(sizes), width, depth, torch.from_numpy(mask[:, None]).to(device))


def _copies(padded: list[IntArray], own: list[BoolArray], total: int, device: torch.device) -> Copies:
    source = np.concatenate(padded)
    is_own = np.concatenate([np.pad(o, (0, len(p) - len(o))) for p, o in zip(padded, own, strict=True)])
    home = np.empty(total, dtype=np.int64)
    home[source[is_own]] = np.nonzero(is_own)[0]
    again = np.nonzero((source >= 0) & ~is_own)[0]
    arrays = (np.maximum(source, 0), home, again, source[again])
    return Copies(*(torch.from_numpy(a).to(device) for a in arrays))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: Copies) -> Tensor:
        ctx.copies = copies
        return x.index_select(0, copies.source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        copies: Copies = ctx.copies
        out = grad.index_select(0, copies.home)
        if len(copies.again):
            out.index_add_(0, copies.other, grad.index_select(0, copies.again))
        return out, None


class _Return(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: Copies) -> Tensor:
        ctx.copies = copies
        return x.index_select(0, copies.home)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        copies: Copies = ctx.copies
        out = grad.new_zeros(len(copies.source), grad.shape[1])
        return out.index_copy_(0, copies.home, grad), None


def attend_to_pieces(query: Tensor, key: Tensor, value: Tensor, plan: PiecePlan, scale: float | None) -> Tensor:
    """``[1, H, N, D]`` heads to ``[1, N, H, D]`` mixed values; heads of keys may be fewer (grouped queries)."""
    gather, back = _apply(_Gather), _apply(_Return)
    q, k, v = (
        gather(x[0].transpose(0, 1).flatten(1), copies).view(len(copies.source), x.shape[1], x.shape[3])
        for x, copies in ((query, plan.queries), (key, plan.keys), (value, plan.keys))
    )
    rows = [b.rows * b.queries for b in plan.buckets]
    depth = [b.rows * b.keys for b in plan.buckets]
    out = []
    for b, bq, bk, bv in zip(plan.buckets, q.split(rows), k.split(depth), v.split(depth), strict=True):
        mixed = F.scaled_dot_product_attention(
            bq.view(b.rows, b.queries, *bq.shape[1:]).transpose(1, 2),
            bk.view(b.rows, b.keys, *bk.shape[1:]).transpose(1, 2),
            bv.view(b.rows, b.keys, *bv.shape[1:]).transpose(1, 2),
            attn_mask=b.mask,
            is_causal=b.mask is None,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        out.append(mixed.transpose(1, 2).flatten(2).flatten(0, 1))
    whole = out[0] if len(out) == 1 else torch.cat(out)
    mixed_rows: Tensor = back(whole, plan.queries)
    return mixed_rows.view(1, query.shape[2], query.shape[1], query.shape[3])


def _apply(function: Any) -> Any:
    return function.apply
