"""Comparing a model's numbers with the library's own, and with themselves in every layout, before it is used.

An architecture whose output layer, attention or memory we would get wrong is refused here instead of being mistrained:
unknown scalings of logits, windows that layers do not hand on, states that leak from one packed row into the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from surefoot.errors import ModelError
from surefoot.models.attention import NAME, Decode, KVCache, Layout, Packed, Padded, Prefill, attention
from surefoot.models.output_head import HeadSettings, OutputHead

LENGTH = 12
SHORT = 5
WINDOWS = "surefoot_windows"

# Largest relative distance of a hidden state. Rounding accumulates over the layers, and more so in half precision.
_STATES_MAY_DIFFER = {torch.float16: 0.05, torch.bfloat16: 0.15}
# Largest distance of logits made from the same states, in units of the type's rounding.
_LOGITS_MAY_DIFFER = {torch.float16: 16, torch.bfloat16: 16}


@torch.no_grad()
def probe(model: Any, trunk: nn.Module, head: OutputHead | None = None) -> None:
    """Refuse a model that we would get wrong.

    Args:
        model: the transformers model.
        trunk: what makes its hidden states; the model itself where it has no output layer.
        head: its output layer as we read it.
    Raises:
        ModelError: some number differs.
    """
    embedding = model.get_input_embeddings().weight
    length = min(LENGTH, int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or LENGTH))
    ids = (torch.arange(1, length + 1, device=embedding.device) * 7919 % embedding.shape[0])[None]
    whole = _states(trunk, ids, _positions(ids), Padded())
    with library_attention(model, "eager"):
        library = _library_states(trunk, ids)
        _compare(model, whole, library, "attention differs from the library's own")
        if head is not None:
            _compare_logits(model, head, library[0], ids)
    with library_attention(model, WINDOWS):
        _library_states(trunk, ids)
    if length > SHORT:
        _compare_packed(model, trunk, ids, whole)
        _compare_decoded(model, trunk, ids, whole)


@contextmanager
def library_attention(model: Any, name: str) -> Iterator[None]:
    """Within this block the model uses another attention than ours."""
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)


def _positions(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)


def _states(trunk: nn.Module, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    out = trunk(input_ids=ids, position_ids=positions, use_cache=False, attention_layout=layout)
    states: Tensor = out.last_hidden_state
    return states


def _library_states(trunk: nn.Module, ids: Tensor) -> Tensor:
    states: Tensor = trunk(input_ids=ids, position_ids=_positions(ids), use_cache=False).last_hidden_state
    return states


def _compare(model: Any, ours: Tensor, expected: Tensor, what: str) -> None:
    """Relative distance of the worst position."""
    gap = (ours.double() - expected.double()).norm(dim=-1) / expected.double().norm(dim=-1).clamp(min=1e-6)
    allowed = _STATES_MAY_DIFFER.get(ours.dtype, 1e-3)
    if not float(gap.max()) <= allowed:
        raise ModelError(
            f"{type(model).__name__}: {what}, by {float(gap.max()):.2g} of a hidden state",
            allowed=f"{allowed:.2g}",
            hint="this architecture is not supported",
        )


def _compare_logits(model: Any, head: OutputHead, states: Tensor, ids: Tensor) -> None:
    """Our reading of the output layer on the library's states, against the library's logits."""
    plain = HeadSettings(1.0, head.settings.scale, head.settings.softcap)
    ours = OutputHead(head.layer, plain).logits(states)
    theirs = model(input_ids=ids, position_ids=_positions(ids), use_cache=False).logits[0].to(ours.dtype)
    # Some models make logits in float32 whatever their own type.
    rounding = max(torch.finfo(states.dtype).eps, torch.finfo(torch.float32).eps)
    allowed = _LOGITS_MAY_DIFFER.get(states.dtype, 256) * rounding * max(1.0, float(theirs.abs().max()))
    gap = float((ours - theirs).abs().max())
    if not gap <= allowed:
        raise ModelError(
            f"{type(model).__name__}: logits differ from the library's own by {gap:.2g}",
            allowed=f"{allowed:.2g}",
            hint="this architecture changes its logits in a way that is not supported",
        )


def _compare_packed(model: Any, trunk: nn.Module, ids: Tensor, whole: Tensor) -> None:
    """A short row and a long one end to end: neither may see the other."""
    length = ids.shape[1]
    packed = torch.cat([ids[:, :SHORT], ids], dim=1)
    positions = torch.cat([_positions(ids)[:, :SHORT], _positions(ids)], dim=1)
    states = _states(trunk, packed, positions, Packed((SHORT, length)))
    expected = torch.cat([whole[:, :SHORT], whole], dim=1)
    _compare(model, states, expected, "rows laid end to end are not independent")


def _compare_decoded(model: Any, trunk: nn.Module, ids: Tensor, whole: Tensor) -> None:
    """The last token of a long and of a short row, decoded from a cache."""
    at = torch.tensor([ids.shape[1] - 1, SHORT - 1], device=ids.device)
    cache = KVCache(2, ids.shape[1])
    both, one = ids.expand(2, -1), ids[:, :-1]
    everything = torch.arange(one.shape[1], device=ids.device).expand(2, -1)
    prefill = Prefill(Packed((one.shape[1],)), cache, torch.arange(2, device=ids.device), everything)
    _states(trunk, one, _positions(one), prefill)
    token = both.gather(1, at[:, None])
    states = _states(trunk, token, at[:, None], Decode(cache, at, ids.shape[1]))
    _compare(model, states[:, 0], whole[0, at], "tokens decoded from a cache differ")


def _marked_mask(*args: Any, **options: Any) -> Tensor:
    """The library's mask, and the window that it was made for."""
    mask: Any = eager_mask(*args, **options)
    mask.surefoot_window = options.get("local_size")
    marked: Tensor = mask
    return marked


def _check_window(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The library masks a window whose width its layers need not hand on; ours depends on their doing so."""
    missing = object()
    of_mask = getattr(attention_mask, "surefoot_window", missing)
    if of_mask is not missing and of_mask != options.get("sliding_window"):
        raise ModelError(
            f"{type(module).__name__} attends to a window that it does not hand on to its attention",
            got=of_mask,
            hint="this architecture is not supported, unless its config turns the window off",
        )
    return attention(module, query, key, value, None, **(options | {"attention_layout": Padded()}))


AttentionInterface.register(WINDOWS, _check_window)
AttentionMaskInterface.register(WINDOWS, _marked_mask)
