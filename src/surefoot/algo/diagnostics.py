"""Numbers that tell how an update went: clip fraction, explained variance, effective sample size.

All come back as 0-dim tensors without a graph. A statistic that is not defined is nan; callers write it as null.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.algo.aggregation import aggregate
from surefoot.algo.inputs import check_clip, check_mask, widen
from surefoot.algo.losses import check_dual_clip
from surefoot.algo.mean_variance import moments


@torch.no_grad()
def clip_fraction(
    logp: Tensor,
    old_logp: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    count: float | Tensor | None = None,
) -> Tensor:
    """Share of action tokens whose ratio lies outside the clip interval, whatever the sign of the advantage.

    ::

        mean over action tokens of [r < 1 − clip_low or r > 1 + clip_high],  r = exp(logp − old_logp)

    With unchanged weights it is 0. How many tokens stopped learning is another number: ``zero_gradient_fraction``.

    Source: the interval of Schulman et al. 2017 (arXiv:1707.06347), eq. 7.

    Args:
        logp, old_logp: ``[B, T]`` log-probabilities.
        mask: ``[B, T]`` boolean, True on action tokens.
        clip_low, clip_high: as in ``policy_loss``.
        count: action tokens of the whole optimizer batch, so that micro-batches add up; None: this batch is the whole.
    Returns:
        0-dim tensor in [0, 1]; 0 on an empty mask.
    """
    check_clip(clip_low, clip_high)
    check_mask(mask, logp=logp, old_logp=old_logp)
    logp, old_logp = widen(logp, old_logp)
    ratio = (logp - old_logp).exp()
    outside = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
    return aggregate(outside.to(ratio.dtype), mask, "token-mean", count=count)


@torch.no_grad()
def zero_gradient_fraction(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """Share of action tokens that the clip silences: the flat branch of ``policy_loss`` was the one taken.

    ::

        mean over action tokens of [A > 0 and r > 1 + clip_high, or A < 0 and r < 1 − clip_low]
        with a dual clip also       [A < 0 and r > c]

    Tokens with A = 0 have no gradient either but are not counted: the clip is not the cause.

    Source: the gradient of Schulman et al. 2017 (arXiv:1707.06347), eq. 7.

    Args:
        logp, old_logp, advantages: ``[B, T]``, as in ``policy_loss``.
        mask: ``[B, T]`` boolean, True on action tokens.
        clip_low, clip_high, dual_clip: as in ``policy_loss``.
    Returns:
        0-dim tensor in [0, 1]; 0 on an empty mask.
    """
    check_clip(clip_low, clip_high)
    check_dual_clip(dual_clip)
    check_mask(mask, logp=logp, old_logp=old_logp, advantages=advantages)
    logp, old_logp, advantages = widen(logp, old_logp, advantages)
    ratio = (logp - old_logp).exp()
    flat = (advantages > 0) & (ratio > 1.0 + clip_high) | (advantages < 0) & (ratio < 1.0 - clip_low)
    if dual_clip is not None:
        flat = flat | (advantages < 0) & (ratio > dual_clip)
    return aggregate(flat.to(ratio.dtype), mask, "token-mean")


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """How much of the returns' variance the critic's values account for.

    ::

        EV = 1 − Var(R − V)/Var(R)

    1: a perfect critic (up to a constant); 0: no better than a constant; negative: worse than one.

    Source: the coefficient of determination, as logged by OpenAI's baselines (common/math_util).

    Args:
        values: ``[B, T]`` at rollout time.
        returns: ``[B, T]``.
        mask: ``[B, T]`` boolean, True on action tokens.
    Returns:
        0-dim tensor, at most 1; nan when undefined: fewer than two action tokens, or returns that are all equal.
    """
    check_mask(mask, values=values, returns=returns)
    values, returns = widen(values, returns)
    total = moments(returns, mask)
    # With fewer than two values the variance is 0 as well.
    if total.variance == 0:
        return returns.new_tensor(math.nan)
    return returns.new_tensor(1.0 - moments(returns - values, mask).variance / total.variance)


@torch.no_grad()
def effective_sample_size(weights: Tensor, mask: Tensor) -> Tensor:
    """How many equally weighted tokens the weighted ones are worth, as a share of their number.

    ::

        ESS = (Σ w)² / (N · Σ w²)

    Source: Kish 1965, Survey sampling, section 11.7; for importance weights, Kong 1992.

    Args:
        weights: ``[B, T]``, ≥ 0.
        mask: ``[B, T]`` boolean, True on action tokens.
    Returns:
        0-dim tensor in (0, 1], 1 when all weights are equal; nan when undefined: an empty mask, or all weights 0.
    """
    check_mask(mask, weights=weights)
    (weights,) = widen(weights)
    valid = weights[mask]
    return valid.sum().square() / (valid.numel() * valid.square().sum())
