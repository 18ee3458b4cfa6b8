"""From a score a trajectory and a KL a token to one reward a token."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.algo.inputs import check_mask, check_number, check_rows, widen


def last_action_token(mask: Tensor) -> Tensor:
    """``[B, T]`` boolean, True on the last action token of each row; a row without one is all False."""
    remaining = mask.flip(1).cumsum(dim=1).flip(1)
    return mask & (remaining == 1)


@torch.no_grad()
def shape_rewards(
    scores: Tensor,
    kl: Tensor,
    mask: Tensor,
    *,
    kl_coef: float,
    step_rewards: Tensor | None = None,
    clip_score: float | None = None,
) -> Tensor:
    """Reward of every action token: minus the KL penalty, plus what a step earned, plus the score on the last one.

    ::

        rₜ = −β·KLₜ + stepₜ + [t is the last action token]·clip(score, −c, c)

    The score sits on the last action token (the end-of-sequence token when there is one), never behind it: there it
    would be masked away, or reach the token through the next value only.

    Source: Ziegler et al. 2019 (arXiv:1909.08593), eq. 2; Ouyang et al. 2022 (arXiv:2203.02155), eq. 2.

    Args:
        scores: ``[B]`` score of each trajectory; not read in rows without an action token.
        kl: ``[B, T]`` KL a token in nats, k1 (k2 and k3 as rewards are biased).
        mask: ``[B, T]`` boolean, True on action tokens.
        kl_coef: β ≥ 0. With 0 the KL is not read.
        step_rewards: ``[B, T]`` rewards by position, read on the mask; not clipped.
        clip_score: c > 0; scores are clamped to ±c first. None: not clamped.
    Returns:
        ``[B, T]``, without a graph, exactly 0 off the mask. A row without an action token gets nothing.
    Raises:
        DataError: shapes do not fit. ConfigError: ``kl_coef`` negative or ``clip_score`` not positive.
    """
    check_mask(mask, kl=kl)
    check_rows("scores", scores, mask)
    check_number("kl_coef", kl_coef, low=0.0)
    steps = kl.new_zeros(kl.shape) if step_rewards is None else step_rewards
    check_mask(mask, step_rewards=steps)
    scores, kl, rewards = widen(scores, kl, steps)
    if clip_score is not None:
        check_number("clip_score", clip_score, low=0.0, open_low=True)
        scores = scores.clamp(-clip_score, clip_score)
    if kl_coef > 0:
        rewards = rewards - kl_coef * kl
    rewards = torch.where(last_action_token(mask), rewards + scores[:, None], rewards)
    return torch.where(mask, rewards, 0.0)
