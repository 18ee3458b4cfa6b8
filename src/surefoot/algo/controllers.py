"""Coefficients of the KL penalty: fixed, adaptive, and the adaptive penalty of PPO's other form.

Each holds its state in one plain attribute, ``coef``: reading it is saving, setting it is restoring.
"""

from __future__ import annotations

import math
import sys
from typing import Final

from surefoot.algo.inputs import check_number
from surefoot.errors import TrainingError

ERROR_LIMIT: Final = 0.2
SMALLEST_FACTOR: Final = 0.1
_LOWEST, _HIGHEST = sys.float_info.min, sys.float_info.max


def _check_kl(kl: float) -> float:
    kl = float(kl)
    if not math.isfinite(kl):
        raise TrainingError("the KL given to a controller is not finite", got=kl, hint="skip the update of that step")
    return kl


class FixedKL:
    """A coefficient that does not move.

    Args:
        coef: ≥ 0.
    Raises:
        ConfigError: ``coef`` is negative or not finite.
    """

    def __init__(self, coef: float) -> None:
        check_number("kl coef", coef, low=0.0)
        self.coef = float(coef)

    def update(self, kl: float, num_trajectories: int) -> None:
        """Change nothing; here so that both controllers are called alike."""


class AdaptiveKL:
    """Proportional control of the KL coefficient towards a target KL a trajectory.

    Once a rollout batch::

        e = clip(KL/target − 1, −0.2, 0.2)
        coef ← coef · (1 + e · n/horizon)

    The factor is floored at 0.1: with n > 4.5·horizon the formula alone would take the coefficient to 0 or below, from
    where it never comes back.

    Source: Ziegler et al. 2019, Fine-tuning language models from human preferences (arXiv:1909.08593), section 2.2;
    n/horizon in place of the constant K_β as in the code published with it.

    Args:
        coef: where to start, > 0 (from 0 it could never move).
        target: KL to hold, in nats a trajectory, > 0.
        horizon: number of trajectories over which the coefficient adapts, > 0.
    Raises:
        ConfigError: one of them is not positive and finite.
    """

    def __init__(self, coef: float, target: float, horizon: float) -> None:
        check_number("kl coef", coef, low=0.0, open_low=True)
        check_number("kl target", target, low=0.0, open_low=True)
        check_number("kl horizon", horizon, low=0.0, open_low=True)
        self.coef = float(coef)
        self.target = float(target)
        self.horizon = float(horizon)

    def update(self, kl: float, num_trajectories: int) -> None:
        """Move the coefficient, once a rollout batch.

        Args:
            kl: mean over trajectories of the KL to the reference SUMMED over action tokens, in nats; not the KL between
                old and new policy, and not a mean over tokens. May be negative.
            num_trajectories: trajectories of the batch over all ranks, ≥ 0.
        Raises:
            TrainingError: ``kl`` is not finite; the coefficient stays. ConfigError: a negative number of trajectories.
        """
        check_number("num_trajectories", num_trajectories, low=0)
        error = min(max(_check_kl(kl) / self.target - 1.0, -ERROR_LIMIT), ERROR_LIMIT)
        factor = max(1.0 + error * num_trajectories / self.horizon, SMALLEST_FACTOR)
        self.coef = min(max(self.coef * factor, _LOWEST), _HIGHEST)


class AdaptivePenalty:
    """Coefficient of the penalty on KL(π_old ‖ π) in the adaptive-KL form of PPO.

    After the updates on one rollout, with d the KL that they led to::

        d < target/1.5  →  coef ← coef/2
        d > target·1.5  →  coef ← coef·2

    Source: Schulman et al. 2017, Proximal policy optimization algorithms (arXiv:1707.06347), section 4.

    Args:
        coef: where to start, > 0; the paper finds the choice unimportant.
        target: KL an update may lead to, in nats a token, > 0.
    Raises:
        ConfigError: one of them is not positive and finite.
    """

    def __init__(self, coef: float, target: float) -> None:
        check_number("penalty coef", coef, low=0.0, open_low=True)
        check_number("penalty target", target, low=0.0, open_low=True)
        self.coef = float(coef)
        self.target = float(target)

    def update(self, d: float) -> None:
        """Halve, double or keep the coefficient.

        Args:
            d: measured KL(π_old ‖ π) after the updates, in nats a token.
        Raises:
            TrainingError: ``d`` is not finite; the coefficient stays.
        """
        d = _check_kl(d)
        if d < self.target / 1.5:
            self.coef = max(self.coef / 2, _LOWEST)
        elif d > self.target * 1.5:
            self.coef = min(self.coef * 2, _HIGHEST)
