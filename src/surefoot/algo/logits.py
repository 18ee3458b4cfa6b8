"""Log-probability of the chosen token and entropy of the distribution it was chosen from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from surefoot.algo.inputs import check_number, widen
from surefoot.errors import DataError

LOWEST_LOGP: Final = -1000.0


def _where_defined(fn: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """``fn`` of each row; NaN, with gradient 0, in the rows where it comes out NaN.

    It does where the row is no distribution: a NaN, a +inf or nothing but -inf. (-inf alone is a banned token.)
    """
    if logits.shape[-1] == 0:
        raise DataError("logits need a vocabulary", got=tuple(logits.shape), allowed="[..., V]")
    out = fn(logits)
    undefined = out.isnan()
    if not bool(undefined.any()):
        return out
    # Run again in this case alone: selecting beforehand would copy [..., V], the largest array there is.
    return torch.where(undefined, math.nan, fn(torch.where(undefined[..., None], 0.0, logits)))


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distribution over the next token.

    ::

        H = −Σ_v p_v·log p_v,  p = softmax(logits);  0·log 0 = 0

    Source: Shannon 1948; as a bonus in the objective, Schulman et al. 2017 (arXiv:1707.06347), eq. 9.

    Args:
        logits: ``[..., V]``, already divided by the temperature; -inf for banned tokens. Gradients flow into them.
    Returns:
        ``[...]`` in nats, in [0, log V]; NaN, with gradient 0, where the row is no distribution (NaN, +inf, all -inf).
    Raises:
        DataError: no vocabulary dimension.
    """
    (logits,) = widen(logits)
    return _where_defined(_entropy, logits)


def _entropy(logits: Tensor) -> Tensor:
    logp = torch.log_softmax(logits, dim=-1)
    # A banned token is 0·(−∞); below the limit p is 0 exactly, in float64 too, so the clamp changes no value.
    return -(logp.exp() * logp.clamp(min=LOWEST_LOGP)).sum(dim=-1)


def token_logp(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability of each chosen token under the tempered distribution.

    ::

        log π(v) = z_v − log Σ_u exp z_u,  z = logits/temperature

    Adding a constant to the logits changes nothing. Sampler, old, new and reference log-probabilities must share the
    temperature. One number a token is kept, but on the way there is an array of the logits' size: callers with many
    tokens hand in chunks.

    Args:
        logits: ``[..., V]``; -inf for banned tokens. Gradients flow into them.
        tokens: ``[...]`` integer ids in [0, V).
        temperature: > 0.
    Returns:
        ``[...]`` in nats, ≤ 0; -inf for a banned token; NaN, with gradient 0, where the row is no distribution.
    Raises:
        ConfigError: temperature not positive (greedy choice has no log-probability to train on). DataError: shapes,
            dtype or ids do not fit.
    """
    check_number("temperature", temperature, low=0.0, open_low=True)
    if tokens.is_floating_point() or tokens.dtype is torch.bool:
        raise DataError("tokens must be integers", got=str(tokens.dtype))
    if tokens.shape != logits.shape[:-1]:
        raise DataError("tokens must have the shape of logits without V", got=tuple(tokens.shape), allowed="[...]")
    if tokens.numel() and not (tokens.min() >= 0 and tokens.max() < logits.shape[-1]):
        raise DataError("a token id is outside the vocabulary", allowed=f"0 to {logits.shape[-1] - 1}")
    (logits,) = widen(logits)
    index = tokens.long()[..., None]

    def chosen(logits: Tensor) -> Tensor:
        scaled = logits if temperature == 1.0 else logits / temperature
        return torch.log_softmax(scaled, dim=-1).gather(-1, index).squeeze(-1)

    return _where_defined(chosen, logits)
