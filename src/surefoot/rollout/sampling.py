"""Drawing one token per row by inverse CDF: one uniform number, cumulative sums, a search.

Over 49k entries this is many times faster than a multinomial draw, and the uniform numbers can be fixed per row, so a
row's tokens do not depend on what it is batched with.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256


class Drawn(NamedTuple):
    """Tokens with what the unfiltered distribution says about them, ``[R]`` each.

    Attributes:
        tokens: ids.
        logp: their log-probabilities; NaN where a row's logits are no distribution.
        entropy: of the distributions, in nats.
    """

    tokens: Tensor
    logp: Tensor
    entropy: Tensor


def sample_tokens(
    logits: Tensor, uniform: Tensor, *, greedy: bool = False, top_k: int = 0, top_p: float = 1.0
) -> Drawn:
    """Draw a token per row.

    Args:
        logits: ``[R, V]``, temperature applied; -inf where nothing may be drawn.
        uniform: ``[R]`` float64 draws from [0, 1).
        greedy: take the likeliest token instead.
        top_k: draw from the k likeliest only; 0: off.
        top_p: of what top_k leaves, draw from the smallest set of likeliest tokens that holds this share; 1: off.
    """
    log_p = torch.log_softmax(logits, dim=-1)
    probabilities = torch.exp(log_p)
    if greedy:
        tokens = logits.argmax(dim=-1)
    elif top_k > 0 or top_p < 1.0:
        tokens = _draw(_filtered(probabilities, top_k, top_p), uniform)
    else:
        tokens = _draw(probabilities, uniform)
    logp = log_p.gather(1, tokens[:, None])[:, 0]
    # Probability 0 times -inf must be 0.
    finite = log_p.clamp_(min=torch.finfo(log_p.dtype).min)
    return Drawn(tokens, logp, -torch.linalg.vecdot(probabilities, finite))


def _draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds the draw's share of the total: first its block, then it."""
    rows, vocabulary = probabilities.shape
    missing = -vocabulary % BLOCK
    whole = torch.nn.functional.pad(probabilities, (0, missing)) if missing else probabilities
    blocks = whole.view(rows, -1, BLOCK)
    # float64 over the blocks: in float32 the tail of a 49k-entry sum is rounded away.
    sums = blocks.sum(dim=-1).to(torch.float64)
    cdf = sums.cumsum(dim=-1)
    draw = uniform.to(cdf.dtype)[:, None] * cdf[:, -1:]
    block = torch.searchsorted(cdf, draw, right=True).clamp(max=cdf.shape[-1] - 1)
    inner = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].cumsum(dim=-1, dtype=torch.float64)
    rest = draw - (cdf - sums).gather(1, block)
    place = torch.searchsorted(inner, rest, right=True).clamp(max=BLOCK - 1)
    tokens = (block * BLOCK + place)[:, 0].clamp(max=vocabulary - 1)
    chosen = probabilities.gather(1, tokens[:, None])[:, 0]
    if bool((chosen <= 0).any()):
        # A sum was rounded so that the draw fell on a token of probability zero: take its neighbour.
        columns = torch.arange(vocabulary, device=tokens.device)
        possible = probabilities > 0
        before = torch.where(possible & (columns <= tokens[:, None]), columns, -1).amax(dim=-1)
        first = possible.to(torch.uint8).argmax(dim=-1)
        tokens = torch.where(chosen > 0, tokens, torch.where(before >= 0, before, first))
    return tokens


def _filtered(probabilities: Tensor, top_k: int, top_p: float) -> Tensor:
    """Zero what top-k and top-p leave out; the rest need not sum to 1."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_k > 0:
        ordered[:, top_k:] = 0
    if top_p < 1.0:
        # A token stays if what is likelier than it does not reach p yet; before the likeliest there is nothing.
        sums = ordered.cumsum(dim=-1, dtype=torch.float64)
        ordered = ordered.masked_fill(sums - ordered >= top_p * sums[:, -1:], 0)
    return torch.zeros_like(probabilities).scatter(1, order, ordered)
