"""Causal attention of short pieces, many to a matrix product.

With a call for each piece, pieces of some ten to a hundred tokens, as prompts with responses often are, take much of
their time between the calls. Those of like size are padded into one array instead, forward and backward. Padding is
never seen: keys are masked, and results of queries left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SHORT: Final = 160
"""Tokens that a piece may see to be one of many; longer ones are faster alone, and take less memory (measured)."""
PADDING: Final = 1.25
"""How much larger padding may make the work on a bucket's pieces."""


@dataclass(frozen=True)
class Heads:
    """Numbers of heads: of queries, and of keys and values; each of these serves as many queries."""

    queries: int
    keys: int


@dataclass(frozen=True)
class Bucket:
    """R pieces of at most Q own tokens that see at most K.

    Attributes:
        queries: ``[R * H * Q]``, by piece and head: which of the ``[N * H]`` heads of tokens stands there.
        keys: ``[R * G * K]``: which of the ``[N * G]``.
        bias: ``[R * G, H / G * Q, K]``: 0 where a query may see, -inf where not.
        padded: which of the queries stand for no token.
    """

    queries: Tensor
    keys: Tensor
    bias: Tensor
    padded: Tensor


@dataclass(frozen=True)
class Grouping:
    """N tokens in buckets.

    Attributes:
        buckets: of their pieces.
        results: ``[N * H]``: where the heads of each token are among the queries of all buckets, end to end.
        own: ``[N * G]``: where they are among the keys, as a piece's own.
        copies: for each piece that others see, its heads among the ``[N * G]`` and ``[C, L * G]`` other places.
    """

    buckets: tuple[Bucket, ...]
    results: Tensor
    own: Tensor
    copies: tuple[tuple[slice, Tensor], ...]


def in_buckets(lengths: Sequence[int], seen: Sequence[int], width: int) -> list[list[int]] | None:
    """Pieces of like size together, the largest first; None where they had better be attended to one by one.

    Args:
        lengths, seen: tokens of each, and how many its last one sees.
        width: bytes of a number; half precision is left to the library's own attention.
    """
    if len(lengths) < 2 or max(seen) > SHORT or width < 4:
        return None
    order = sorted(range(len(lengths)), key=lambda i: (-seen[i], -lengths[i]))
    found: list[list[int]] = []
    work = most = 0
    for i in order:
        longest = max(most, lengths[i])
        padded = (len(found[-1]) + 1) * longest * seen[found[-1][0]] if found else 0
        if not found or padded > PADDING * (work + lengths[i] * seen[i]):
            found.append([])
            work, longest = 0, lengths[i]
        found[-1].append(i)
        work, most = work + lengths[i] * seen[i], longest
    return found


def grouping(lengths: Sequence[int], before: Sequence[Sequence[int]], heads: Heads, like: Tensor) -> Grouping | None:
    """Sort pieces that lie end to end into buckets; None where they had better be attended to one by one.

    Args:
        lengths: of each.
        before: the pieces that each continues, from the first on; empty: none does.
        heads: of the attention.
        like: gives type and device.
    """
    chains = [(*(before[i] if before else ()), i) for i in range(len(lengths))]
    seen = [sum(lengths[j] for j in chain) for chain in chains]
    found = in_buckets(lengths, seen, like.dtype.itemsize)
    if found is None:
        return None
    ends = list(accumulate(lengths))
    spans = [torch.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    buckets: list[Bucket] = []
    results, own = torch.zeros(ends[-1], heads.queries, dtype=torch.long), torch.zeros(ends[-1], heads.keys).long()
    others: dict[int, list[Tensor]] = {}
    queries_so_far = keys_so_far = 0
    for members in found:
        rows, most, widest = len(members), max(lengths[i] for i in members), max(seen[i] for i in members)
        tokens, keys = torch.zeros(rows, most, dtype=torch.long), torch.zeros(rows, widest, dtype=torch.long)
        hidden = torch.full((rows, most, widest), -torch.inf, dtype=like.dtype)
        padded = torch.ones(rows, heads.queries, most, dtype=torch.bool)
        of_queries = torch.arange(padded.numel()).view(padded.shape) + queries_so_far
        of_keys = torch.arange(rows * heads.keys * widest).view(rows, heads.keys, widest) + keys_so_far
        for row, i in enumerate(members):
            length, width, at = lengths[i], seen[i], 0
            tokens[row, :length], padded[row, :, :length] = spans[i], False
            results[spans[i]] = of_queries[row, :, :length].T
            hidden[row, :length, :width].triu_(width - length + 1)
            # A row of -inf alone would be no distribution.
            hidden[row, length:, 0] = 0
            for j in chains[i]:
                places = of_keys[row, :, at : at + lengths[j]].T
                keys[row, at : at + lengths[j]] = spans[j]
                if j == i:
                    own[spans[i]] = places
                else:
                    others.setdefault(j, []).append(places.flatten())
                at += lengths[j]
        buckets.append(_bucket(tokens, keys, hidden, padded, heads, like.device))
        queries_so_far, keys_so_far = queries_so_far + of_queries.numel(), keys_so_far + of_keys.numel()
    copies = [(j, torch.stack(places).to(like.device)) for j, places in sorted(others.items())]
    first = {j: (ends[j] - lengths[j]) * heads.keys for j in others}
    return Grouping(
        tuple(buckets),
        results.flatten().to(like.device),
        own.flatten().to(like.device),
        tuple((slice(first[j], ends[j] * heads.keys), places) for j, places in copies),
    )


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, plan: Grouping, scale: float) -> Tensor:
    """Each piece attends to itself and to what it continues.

    Args:
        query: ``[1, H, N, D]``.
        key, value: ``[1, G, N, D]``.
        plan: made for these tokens.
        scale: of the products of queries and keys.
    Returns:
        ``[1, N, H, D]``.
    """
    apply: Any = _Grouped.apply
    out: Tensor = apply(query, key, value, plan, scale)
    return out


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Grouping, scale: float) -> Tensor:
        results, weights = [], []
        flat = [_by_token(x) for x in (query, key, value)]
        for bucket in plan.buckets:
            q, k, v = _laid(bucket, *flat)
            p = torch.softmax(torch.baddbmm(bucket.bias, q, k.transpose(1, 2), alpha=scale), dim=-1)
            results.append(torch.bmm(p, v).flatten(0, 1))
            weights.append(p)
        ctx.save_for_backward(query, key, value, *weights)
        ctx.plan, ctx.scale = plan, scale
        return _joined(results).index_select(0, plan.results).view(query.transpose(1, 2).shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value, *weights = ctx.saved_tensors
        plan: Grouping = ctx.plan
        flat, flat_grad = [_by_token(x) for x in (query, key, value)], grad.reshape(-1, grad.shape[-1])
        by_query, by_key, by_value = [], [], []
        for bucket, p in zip(plan.buckets, weights, strict=True):
            q, k, v = _laid(bucket, *flat)
            g = flat_grad.index_select(0, bucket.queries).index_fill_(0, bucket.padded, 0.0).view_as(q)
            by_value.append(torch.bmm(p.transpose(1, 2), g).flatten(0, 1))
            by_score = torch._softmax_backward_data(torch.bmm(g, v.transpose(1, 2)), p, -1, p.dtype).mul_(ctx.scale)
            by_query.append(torch.bmm(by_score, k).flatten(0, 1))
            by_key.append(torch.bmm(by_score.transpose(1, 2), q).flatten(0, 1))
        shape = (1, -1, query.shape[1], query.shape[3])
        d_query = _joined(by_query).index_select(0, plan.results).view(shape).transpose(1, 2)
        return d_query, _of_keys(_joined(by_key), plan, key), _of_keys(_joined(by_value), plan, value), None, None


def _of_keys(grad: Tensor, plan: Grouping, key: Tensor) -> Tensor:
    """``[1, G, N, D]`` from gradients of all places where keys stand."""
    total = grad.index_select(0, plan.own)
    for heads, places in plan.copies:
        total[heads] += grad.index_select(0, places.flatten()).view(*places.shape, -1).sum(0)
    return total.view(1, -1, key.shape[1], key.shape[3]).transpose(1, 2)


def _by_token(x: Tensor) -> Tensor:
    """``[1, H, N, D]`` as ``[N * H, D]``."""
    return x.transpose(1, 2).reshape(-1, x.shape[-1])


def _laid(bucket: Bucket, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[R * G, H / G * Q, D]`` queries and ``[R * G, K, D]`` keys and values of a bucket."""
    groups, rows, columns = bucket.bias.shape
    q = query.index_select(0, bucket.queries).view(groups, rows, -1)
    k, v = (x.index_select(0, bucket.keys).view(groups, columns, -1) for x in (key, value))
    return q, k, v


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _bucket(tokens: Tensor, keys: Tensor, hidden: Tensor, padded: Tensor, heads: Heads, device: torch.device) -> Bucket:
    """From pieces' tokens ``[R, Q]``, keys ``[R, K]``, hidden ones ``[R, Q, K]`` and what is padded ``[R, H, Q]``."""
    rows, most, widest = hidden.shape
    shape = (rows, heads.keys, heads.queries // heads.keys, most, widest)
    return Bucket(
        queries=(tokens[:, None] * heads.queries + torch.arange(heads.queries)[:, None]).flatten().to(device),
        keys=(keys[:, None] * heads.keys + torch.arange(heads.keys)[:, None]).flatten().to(device),
        bias=hidden[:, None, None].expand(shape).reshape(rows * heads.keys, -1, widest).to(device),
        padded=torch.nonzero(padded.flatten())[:, 0].to(device),
    )
