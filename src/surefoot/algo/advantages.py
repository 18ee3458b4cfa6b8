"""Generalised advantage estimation over action tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.algo.inputs import check_mask, check_number, check_rows, widen


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of every action token.

    With the action tokens of a row numbered 1 … n, given tokens left out::

        δᵢ = rᵢ + γ·Vᵢ₊₁ − Vᵢ          Vₙ₊₁ = bootstrap, or 0
        Aᵢ = δᵢ + γλ·Aᵢ₊₁              Aₙ₊₁ = 0
        Rᵢ = Aᵢ + Vᵢ

    λ = 1 gives the discounted reward-to-go minus the value, λ = 0 the one-step temporal difference.

    Given tokens inside a row (a tool's answer) are passed over without decay: the next action token's value and
    advantage are carried across them, because no decision was taken there and their number says nothing about time.

    Source: Schulman et al. 2016, High-dimensional continuous control using generalized advantage estimation
    (arXiv:1506.02438), eq. 16; in the truncated form of Schulman et al. 2017 (arXiv:1707.06347), eq. 11 and 12.

    Args:
        rewards: ``[B, T]`` reward received on choosing each token.
        values: ``[B, T]`` value of the state in which each token was chosen.
        mask: ``[B, T]`` boolean, True on action tokens.
        gamma: discount a token, in [0, 1].
        lam: decay of the estimator, in [0, 1].
        bootstrap: ``[B]`` value of the state after the last token, for rows that were cut off; 0 for rows that ended.
            None means 0 for all.
    Returns:
        (advantages, returns), each ``[B, T]``, without a graph, exactly 0 off the mask. A row without an action token
        is 0.
    Raises:
        DataError: shapes do not fit. ConfigError: ``gamma`` or ``lam`` out of range.
    """
    check_mask(mask, rewards=rewards, values=values)
    check_number("gamma", gamma, low=0.0, high=1.0)
    check_number("lam", lam, low=0.0, high=1.0)
    after = values.new_zeros(values.shape[:1]) if bootstrap is None else bootstrap
    check_rows("bootstrap", after, mask)
    rewards, values, next_value = widen(rewards, values, after)
    next_advantage = torch.zeros_like(next_value)
    advantages = torch.zeros_like(values)
    for t in reversed(range(mask.shape[1])):
        chosen, value = mask[:, t], values[:, t]
        advantage = rewards[:, t] + gamma * next_value - value + gamma * lam * next_advantage
        # Selecting, never multiplying by the mask: 0·NaN is NaN.
        next_advantage = torch.where(chosen, advantage, next_advantage)
        next_value = torch.where(chosen, value, next_value)
        advantages[:, t] = torch.where(chosen, advantage, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)
