"""Per-token losses of the policy and the critic; ``aggregate`` turns them into one number.

None of them takes a mask. A token that no loss reads sends exactly 0 back, whatever stands there; a token whose inputs
are not finite has the loss NaN, so that it is seen, and the gradient 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.algo.inputs import LOG_RATIO_LIMIT, check_clip, check_number, check_same_shape, widen
from surefoot.errors import ConfigError


def check_dual_clip(dual_clip: float | None) -> None:
    """Refuse a dual clip of 1 or less: it would act on tokens whose ratio is 1.

    Raises:
        ConfigError: not above 1 and finite.
    """
    if dual_clip is not None and not 1 < dual_clip < math.inf:
        raise ConfigError("dual_clip is out of range", got=dual_clip, allowed="more than 1, finite; null for off")


def _readable(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(log ratio, advantages, where both can be read), with 0 wherever they cannot."""
    check_same_shape(logp=logp, old_logp=old_logp, advantages=advantages)
    logp, old_logp, advantages = widen(logp, old_logp.detach(), advantages.detach())
    log_ratio = logp - old_logp
    readable = ~log_ratio.isnan() & advantages.isfinite()
    return torch.where(readable, log_ratio, 0.0), torch.where(readable, advantages, 0.0), readable


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """Clipped surrogate loss of each token.

    With r = exp(logp − old_logp)::

        L = −min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A)
        dual clip, where A < 0:  L ← min(L, −c·A)

    The log ratio is clamped to ±20 before it is exponentiated, as two of the public implementations do: without it one
    token whose log-probability ran away makes the loss infinite. Beyond ±20 the gradient is 0.

    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7; an interval that is not symmetric, Yu et al. 2025
    (arXiv:2503.14476), clip-higher; dual clip, Ye et al. 2020 (arXiv:1912.09729).

    Args:
        logp: ``[B, T]`` log-probabilities of the policy being trained; the only input that gradients flow into.
        old_logp: ``[B, T]`` log-probabilities of the policy that sampled, frozen for the whole rollout, same
            temperature.
        advantages: ``[B, T]``.
        clip_low, clip_high: how far the ratio may fall, in [0, 1], and rise, ≥ 0, before it stops paying.
        dual_clip: c > 1, bounds the loss where A < 0 and the ratio is large. None: off.
    Returns:
        ``[B, T]``; NaN where an input is NaN or an advantage infinite.
    Raises:
        ConfigError: a clip out of range. DataError: shapes differ.
    """
    check_clip(clip_low, clip_high)
    check_dual_clip(dual_clip)
    log_ratio, advantages, readable = _readable(logp, old_logp, advantages)
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is not None:
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, dual_clip * advantages), surrogate)
    return torch.where(readable, -surrogate, math.nan)


def kl_policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, *, coef: float) -> Tensor:
    """Surrogate loss of each token with a penalty on KL(π_old ‖ π) in place of the clip.

    With r = exp(logp − old_logp)::

        L = −r·A + β·((r − 1) − log r)

    The penalty is an unbiased estimate of KL(π_old ‖ π): the tokens were drawn from π_old, so E[−log r] is that
    divergence by definition and E[r − 1] = Σ π_old·(π/π_old) − 1 = 0 adds no bias; it cancels the part of the noise
    that is linear in r − 1 and makes every term ≥ 0.

    The log ratio is clamped to ±20 in r and from above in the penalty; from below the penalty is linear and goes on
    pulling back a token whose probability collapsed.

    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 8; the estimator, Schulman 2020, Approximating KL divergence.

    Args:
        logp, old_logp, advantages: as in ``policy_loss``.
        coef: β ≥ 0, moved by ``AdaptivePenalty``.
    Returns:
        ``[B, T]``; NaN where an input is NaN or an advantage infinite.
    Raises:
        ConfigError: ``coef`` negative. DataError: shapes differ.
    """
    check_number("coef", coef, low=0.0)
    log_ratio, advantages, readable = _readable(logp, old_logp, advantages)
    capped = log_ratio.clamp(max=LOG_RATIO_LIMIT)
    ratio = capped.clamp(min=-LOG_RATIO_LIMIT).exp()
    penalty = torch.expm1(capped) - capped
    return torch.where(readable, coef * penalty - ratio * advantages, math.nan)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = 0.2) -> Tensor:
    """Squared error of each token's value, clipped around the value at rollout time.

    ::

        L = ½·max((V − R)², (clip(V, V_old − c, V_old + c) − R)²)        c = None: ½·(V − R)²

    The maximum is pessimistic: a value that left the interval towards its target gets no gradient, one that left it the
    wrong way keeps its full gradient.

    Source: a detail of OpenAI's baselines (ppo2), absent from the paper; Engstrom et al. 2020 (arXiv:2005.12729),
    section 3.

    Args:
        values: ``[B, T]`` of the critic being trained; the only input that gradients flow into.
        old_values: ``[B, T]`` at rollout time; not read without a clip.
        returns: ``[B, T]`` targets.
        clip: c > 0 in the unit of the values, None for off.
    Returns:
        ``[B, T]`` with the factor ½; NaN where an input, or the square of an error, is not finite.
    Raises:
        ConfigError: ``clip`` not positive. DataError: shapes differ.
    """
    check_same_shape(values=values, old_values=old_values, returns=returns)
    values, old_values, returns = widen(values, old_values.detach(), returns.detach())
    # The square and not the input: an input may be finite and still overflow, and then 0·∞ = NaN on the way back.
    readable = (values.detach() - returns).square().isfinite()
    if clip is not None:
        check_number("clip", clip, low=0.0, open_low=True)
        readable = readable & (old_values - returns).square().isfinite()
    values, returns = torch.where(readable, values, 0.0), torch.where(readable, returns, 0.0)
    squared = (values - returns).square()
    if clip is not None:
        old_values = torch.where(readable, old_values, 0.0)
        clipped = torch.clamp(values, old_values - clip, old_values + clip)
        squared = torch.maximum(squared, (clipped - returns).square())
    return torch.where(readable, squared / 2, math.nan)
