"""Attention over rows that lie end to end, against each row alone, written out in float64: numbers and gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surefoot.models import grouped_attention
from surefoot.models.attention import Packed, attention

SCALE = 0.3
PIECES: dict[str, Packed] = {
    "rows": Packed((3, 9, 4, 1, 9)),
    "one": Packed((7,)),
    "sizes far apart": Packed((2, 60, 9, 58, 3, 10, 1), ((), (), (), (2,), (2,), (), (2, 4))),
    "a tree": Packed((5, 3, 8, 2, 6, 1), ((), (0,), (0,), (0, 2), (0, 2), ())),
    "samples of two prompts": Packed((6, 4, 4, 2, 7, 4, 1), ((), (0,), (0,), (0,), (), (4,), (4,))),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "windowed": {"sliding_window": 5},
    "capped": {"softcap": 2.0},
    "windowed and capped": {"sliding_window": 5, "softcap": 2.0},
}


def made(heads: int, tokens: int, seed: int) -> Tensor:
    """``[1, H, N, D]`` heads as the projections give them: a token's lie together."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(1, tokens, heads, 8, generator=draw, dtype=torch.float64).transpose(1, 2).requires_grad_()


def ours(query: Tensor, key: Tensor, value: Tensor, layout: Packed, **options: Any) -> Tensor:
    module = SimpleNamespace(layer_idx=0)
    return attention(module, query, key, value, None, attention_layout=layout, scaling=SCALE, **options)[0]


def row_by_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Packed,
    softcap: float | None = None,
    sliding_window: int | None = None,
) -> Tensor:
    """The slow twin: the rows that end with each piece, one after the other, masked."""
    spans = torch.arange(sum(layout.lengths)).split(list(layout.lengths))
    parts = []
    for i, span in enumerate(spans):
        seen = torch.cat([spans[j] for j in (*(layout.before[i] if layout.before else ()), i)])
        k, v = (x[:, :, seen].repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        scores = query[:, :, span] @ k.transpose(-1, -2) * SCALE
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        columns = torch.arange(len(seen))
        distance = columns[-len(span) :, None] - columns
        visible = (distance >= 0) & (distance < (sliding_window or len(seen)))
        parts.append(torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1) @ v)
    return torch.cat(parts, dim=2).transpose(1, 2)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PIECES)
def test_rows_end_to_end_are_attended_to_as_if_alone(
    name: str, variant: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not together:
        monkeypatch.setattr(grouped_attention, "SHORT", 0)
    drawn, options = PIECES[name], VARIANTS[variant]
    layout = Packed(drawn.lengths, drawn.before)
    total = sum(layout.lengths)
    leaves = (made(4, total, 0), made(2, total, 1), made(2, total, 2))
    found, expected = ours(*leaves, layout, **options), row_by_row(*leaves, layout, **options)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    weights = made(4, total, 5).detach().transpose(1, 2)
    for a, b in zip(
        torch.autograd.grad((found.sin() * weights).sum(), leaves),
        torch.autograd.grad((expected.sin() * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_one_layout_serves_models_of_different_types() -> None:
    layout = Packed((5, 3, 8), ((), (0,), (0,)))
    heads = [made(n, 16, seed) for n, seed in ((4, 0), (2, 1), (2, 2))]
    exact = ours(*heads, layout)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        found = ours(*(x.to(dtype) for x in heads), layout)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=0.0, atol=tolerance)


def test_equal_pieces_and_all_layers_share_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers over a prompt with three samples, two of them equally long: two masks in all."""
    masks = []
    plain = F.scaled_dot_product_attention

    def listening(*tensors: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return plain(*tensors, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", listening)
    monkeypatch.setattr(grouped_attention, "SHORT", 0)
    layout = Packed((6, 4, 4, 2), ((), (0,), (0,), (0,)))
    for _ in range(2):
        ours(made(4, 16, 0), made(2, 16, 1), made(2, 16, 2), layout)
    assert [mask is None for mask in masks] == [True, False, False, False] * 2
    assert len({id(mask) for mask in masks if mask is not None}) == 2


def calls(monkeypatch: pytest.MonkeyPatch, layout: Packed, dtype: torch.dtype = torch.float64, **options: Any) -> int:
    """Calls of torch's own attention for these pieces."""
    made_calls = []
    plain = F.scaled_dot_product_attention

    def listening(*tensors: Tensor, **given: Any) -> Tensor:
        made_calls.append(1)
        return plain(*tensors, **given)

    monkeypatch.setattr(F, "scaled_dot_product_attention", listening)
    total = sum(layout.lengths)
    ours(*(made(heads, total, 0).to(dtype) for heads in (4, 2, 2)), layout, **options)
    return len(made_calls)


def test_short_pieces_need_no_call_each_and_long_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of attention are kept: with long pieces they would be the largest thing in memory."""
    short = grouped_attention.SHORT
    assert calls(monkeypatch, Packed((short, 5, 5))) == 0
    assert calls(monkeypatch, Packed((5, 5), ((), (0,))), sliding_window=short) == 0
    assert calls(monkeypatch, Packed((short + 1, 5, 5))) == 3
    assert calls(monkeypatch, Packed((short - 4, 5, 5), ((), (0,), ()))) == 3, "what is continued counts"
    assert calls(monkeypatch, Packed((7,))) == 1
    assert calls(monkeypatch, Packed((5, 5)), dtype=torch.bfloat16) == 2


def test_pieces_of_like_size_come_together_and_padding_stays_small() -> None:
    lengths = [90, 12, 88, 11, 86, 85, 10, 92, 40]
    plan = grouped_attention.grouping(lengths, (), grouped_attention.Heads(4, 2), torch.zeros(1))
    assert plan is not None and len(plan.buckets) == 3
    work = sum(bucket.bias.numel() for bucket in plan.buckets)
    assert sum(n * n for n in lengths) * 4 < work < sum(n * n for n in lengths) * 4 * grouped_attention.PADDING
