"""From a loss a token to the loss of a batch, so that no split of the batch changes it."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from surefoot.algo.inputs import check_mask, widen
from surefoot.errors import ConfigError, DataError

FORMS: Final = ("token-mean", "sequence-mean", "sequence-sum")


def aggregate(x: Tensor, mask: Tensor, how: str = "token-mean", *, count: float | Tensor | None = None) -> Tensor:
    """Sum over action tokens divided by a count over the whole optimizer batch.

    ::

        token-mean      Σ_b Σ_t x / number of action tokens
        sequence-mean   Σ_b (Σ_t x / n_b) / number of sequences with an action token      n_b = action tokens of row b
        sequence-sum    Σ_b (Σ_t x) / number of sequences with an action token

    When ``x`` is a micro-batch, ``count`` is that number for the whole optimizer batch (all micro-batches, all ranks)
    and the parts add up to the loss of the whole, gradients too. Where ranks average their gradients, hand in
    count/ranks. Rows without an action token are in no count.

    Source: token-mean, Yu et al. 2025 (arXiv:2503.14476), section 3.3; sequence-mean, Shao et al. 2024
    (arXiv:2402.03300), eq. 3; sequence-sum is the objective of the policy gradient itself, a sum over the actions of a
    trajectory.

    Args:
        x: ``[B, T]`` loss, KL, entropy or any other number a token.
        mask: ``[B, T]`` boolean, True on action tokens.
        how: ``token-mean``, ``sequence-mean`` or ``sequence-sum``.
        count: denominator of the whole optimizer batch, > 0; may be 0 when the mask is empty. None: this batch is the
            whole.
    Returns:
        Scalar. On an empty mask 0, still connected to ``x`` (gradient 0), so that backward runs on every rank.
    Raises:
        ConfigError: unknown form. DataError: shapes do not fit, or a count that is not positive with tokens on the
            mask.
    """
    check_mask(mask, x=x)
    if how not in FORMS:
        raise ConfigError("unknown aggregation", got=how, allowed=FORMS)
    (x,) = widen(x)
    kept = torch.where(mask, x, 0.0)
    if how == "token-mean":
        return kept.sum() / _denominator(count, mask.sum())
    tokens = mask.sum(dim=1)
    rows = kept.sum(dim=1)
    if how == "sequence-mean":
        rows = rows / tokens.clamp(min=1)
    return rows.sum() / _denominator(count, (tokens > 0).sum())


def _denominator(count: float | Tensor | None, own: Tensor) -> float | Tensor:
    if count is None:
        return own.clamp(min=1)
    if isinstance(count, Tensor):
        # Not looked at on the host: that would make the device wait at every micro-batch. A wrong 0 shows as inf.
        return torch.where(own > 0, count, 1)
    if 0 < count < math.inf:
        return count
    if count == 0 and own.item() == 0:
        return 1
    raise DataError(
        "the count of an optimizer batch must be positive and finite", got=count, hint="count over all micro-batches"
    )
