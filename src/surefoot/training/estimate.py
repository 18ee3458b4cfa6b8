"""From a scored rollout to what the update needs: shaped rewards, advantages, returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from surefoot import algo
from surefoot.config import Config
from surefoot.records import FloatArray, Rollout, Score
from surefoot.rewards import ScoreNormaliser


@dataclass(frozen=True)
class Reading:
    """What the models say about a rollout, before any update.

    Attributes:
        logp, entropy, values, ref_logp: ``[B, T]``.
        after: ``[B]``.
        checked: rows that the trainer read to check the sampler's numbers, and what it found ``[C, T]``; None where
            all numbers are the trainer's own.
    """

    logp: FloatArray
    entropy: FloatArray
    values: FloatArray
    after: FloatArray
    ref_logp: FloatArray
    checked: tuple[list[int], FloatArray] | None = None


@dataclass(frozen=True)
class Batch:
    """A rollout with its estimates; tensors ``[B, T]`` on the CPU, 0 off the mask.

    Attributes:
        rollout: the trajectories; failed ones have no action tokens any more.
        mask: bool, action tokens.
        old_logp, ref_logp, values: before the update.
        kl: k1 of policy against reference per token.
        scores: ``[B]`` as shaped (penalised, normalised, clipped); 0 where scoring failed.
        rewards, returns, advantages: per token; advantages whitened if the config says so.
        weights: importance weights of a foreign engine, or None.
        bootstrap: ``[B]`` value counted after the last token.
        kl_coef: that the rewards were shaped with.
        moments: (count, mean, variance) of the advantages before whitening.
    """

    rollout: Rollout
    mask: Tensor
    old_logp: Tensor
    ref_logp: Tensor
    values: Tensor
    kl: Tensor
    scores: Tensor
    rewards: Tensor
    returns: Tensor
    advantages: Tensor
    weights: Tensor | None
    bootstrap: Tensor
    kl_coef: float
    moments: tuple[float, float, float]

    @property
    def trained_rows(self) -> list[int]:
        """Rows with at least one action token."""
        return [int(r) for r in torch.nonzero(self.mask.any(dim=1))[:, 0]]


def clear_failed(rollout: Rollout, scores: Sequence[Score]) -> Rollout:
    """Take the action tokens of trajectories whose score failed out of everything that follows."""
    failed = np.array([score.failed for score in scores], dtype=np.bool_)
    if not failed.any():
        return rollout
    mask = rollout.mask & ~failed[:, None]

    def kept(array: FloatArray | None) -> FloatArray | None:
        return None if array is None else np.where(mask, array, 0.0)

    return replace(
        rollout,
        mask=mask,
        logp=kept(rollout.logp),
        step_rewards=kept(rollout.step_rewards),
        entropy=kept(rollout.entropy),
        values=kept(rollout.values),
    )


def estimate(
    rollout: Rollout,
    scores: Sequence[Score],
    reading: Reading,
    cfg: Config,
    *,
    kl_coef: float,
    normaliser: ScoreNormaliser | None = None,
    foreign_engine: bool = False,
) -> Batch:
    """Shape rewards and estimate advantages.

    Args:
        rollout: failed trajectories already cleared.
        scores: B scores.
        reading: of policy, critic and reference.
        cfg: sections ``ppo`` and ``reward``.
        kl_coef: coefficient of the KL now.
        normaliser: of scores, None: as they are.
        foreign_engine: the sampler is not the trainer's own code, so its distribution is corrected for.
    """
    mask = torch.from_numpy(np.ascontiguousarray(rollout.mask))
    logp, ref_logp = _tensor(reading.logp), _tensor(reading.ref_logp)
    values, after = _tensor(reading.values), _tensor(reading.after)
    shaped = _tensor(shape_scores(rollout, scores, cfg, normaliser)).to(logp.dtype)
    kl = torch.where(mask, algo.kl(logp, ref_logp, "k1"), 0.0)
    rewards = algo.shape_rewards(
        shaped,
        kl,
        mask,
        kl_coef=kl_coef if cfg.ppo.kl.place == "reward" else 0.0,
        step_rewards=_step_rewards(rollout, scores, logp.dtype),
    )
    cut_off = torch.from_numpy(rollout.cut_off)
    bootstrap = torch.where(cut_off, after, 0.0) if cfg.ppo.cut_off == "bootstrap" else torch.zeros_like(after)
    advantages, returns = algo.gae(rewards, values, mask, gamma=cfg.ppo.gamma, lam=cfg.ppo.lam, bootstrap=bootstrap)
    moments = algo.moments(advantages, mask)
    if cfg.ppo.whiten:
        advantages = algo.whiten(advantages, mask, moments=moments)
    weights = None
    if foreign_engine and rollout.logp is not None:
        weights = algo.importance_weights(logp, _tensor(rollout.logp).to(logp.dtype))
    return Batch(
        rollout,
        mask,
        logp,
        ref_logp,
        values,
        kl,
        shaped,
        rewards,
        returns,
        advantages,
        weights,
        bootstrap,
        kl_coef,
        (float(moments[0]), float(moments[1]), float(moments[2])),
    )


def shape_scores(
    rollout: Rollout, scores: Sequence[Score], cfg: Config, normaliser: ScoreNormaliser | None
) -> FloatArray:
    """``[B]`` scores: the penalty for cut-off trajectories taken off, then normalised, then clipped; 0 where failed."""
    penalty = cfg.ppo.missing_eos_penalty if cfg.ppo.cut_off == "penalise" else 0.0
    valid = [i for i, score in enumerate(scores) if score.value is not None]
    cut_off = rollout.cut_off
    raw = [float(scores[i].value or 0.0) - penalty * bool(cut_off[i]) for i in valid]
    if normaliser is not None and raw:
        raw = [float(x) for x in normaliser.transform(raw) if x is not None]
    out = np.zeros(len(scores), dtype=np.float64)
    out[valid] = raw
    return out if cfg.reward.clip is None else np.clip(out, -cfg.reward.clip, cfg.reward.clip)


def _step_rewards(rollout: Rollout, scores: Sequence[Score], dtype: torch.dtype) -> Tensor | None:
    """Rewards placed on single tokens, by the environment and by token-level rewards."""
    placed = [score.token_rewards for score in scores]
    if rollout.step_rewards is None and not any(placed):
        return None
    out = np.zeros(rollout.tokens.shape) if rollout.step_rewards is None else rollout.step_rewards.copy()
    for row, rewards in enumerate(placed):
        if rewards:
            out[row, : len(rewards)] += rewards
    return _tensor(np.where(rollout.mask, out, 0.0)).to(dtype)


def _tensor(array: FloatArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
