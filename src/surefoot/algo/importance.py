"""Weights that correct for an engine whose log-probabilities are not the trainer's."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.algo.inputs import LOG_RATIO_LIMIT, check_same_shape, widen
from surefoot.errors import ConfigError


@torch.no_grad()
def importance_weights(train_logp: Tensor, engine_logp: Tensor, *, cap: float = 2.0) -> Tensor:
    """Truncated importance weight of each token: the trainer's probability over the engine's.

    ::

        w = min(π_train(token)/π_engine(token), cap)

    Multiplied onto the per-token policy loss; the denominator of the mean stays the number of action tokens. Truncation
    bounds the variance at the price of a bias towards the engine's policy.

    Source: Ionides 2008, Truncated importance sampling (J. Comput. Graph. Stat. 17(2)); for engine and trainer of a
    language model, Yao et al. 2025, Your efficient RL framework secretly brings you off-policy RL training.

    Args:
        train_logp: ``[B, T]`` log-probabilities before the update, from the trainer's own forward pass.
        engine_logp: ``[B, T]`` log-probabilities the engine reported while sampling.
        cap: ≥ 1 (below 1 even equal log-probabilities would be scaled); ``inf`` for no truncation, though the log ratio
            is clamped to ±20 in any case.
    Returns:
        ``[B, T]`` in [0, cap], without a graph; 0 where either input is NaN. On the mask a NaN shows all the same: a
        trajectory refuses one from the engine, and one from the trainer makes the loss of that token NaN.
    Raises:
        ConfigError: ``cap`` below 1. DataError: shapes differ.
    """
    if not cap >= 1:
        raise ConfigError("the cap of importance weights is out of range", got=cap, allowed="1 or more, or inf")
    check_same_shape(train_logp=train_logp, engine_logp=engine_logp)
    train_logp, engine_logp = widen(train_logp, engine_logp)
    weights = (train_logp - engine_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    # A NaN weight would spoil gradients even where the mask takes the token out of the loss.
    return weights.clamp(max=cap).nan_to_num(nan=0.0)
