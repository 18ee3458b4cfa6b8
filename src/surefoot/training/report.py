"""From what a step did to its StepReport: every metric, computed on the mask its loss used."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from surefoot import algo
from surefoot.config import Config
from surefoot.records import Rollout, Score, StepReport
from surefoot.training.clock import StepClock
from surefoot.training.critic_update import Update
from surefoot.training.estimate import Batch, Reading
from surefoot.training.update import Updates

Metrics = dict[str, float | int | None]


@dataclass(frozen=True)
class StepFacts:
    """What a report is made from.

    Attributes:
        step: from 1.
        sampled: the rollout as it came from the engine.
        scores: B scores.
        score_metrics: of the reward's terms.
        reading, batch, updates: of the step.
        kl_coef, surrogate_kl_coef: coefficients that were used.
        warming_up: whether the policy was frozen.
    """

    step: int
    sampled: Rollout
    scores: Sequence[Score]
    score_metrics: Metrics
    reading: Reading
    batch: Batch
    updates: Updates
    kl_coef: float
    surrogate_kl_coef: float
    warming_up: bool


def report(facts: StepFacts, cfg: Config, clock: StepClock) -> StepReport:
    """The step's metrics; what is undefined is None."""
    metrics: Metrics = dict(facts.score_metrics)
    metrics |= _reward_metrics(facts.batch)
    metrics |= _policy_metrics(facts, cfg)
    metrics |= _value_metrics(facts)
    metrics |= _response_metrics(facts.sampled)
    metrics |= _engine_metrics(facts)
    metrics |= clock.metrics(tokens=int(facts.sampled.mask.sum()), rows=facts.sampled.num_rows)
    metrics["memory/peak_gb"] = peak_memory_gb()
    return StepReport(facts.step, {key: _finite(value) for key, value in metrics.items()})


def _finite(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _reward_metrics(batch: Batch) -> Metrics:
    rows = batch.mask.any(dim=1)
    per_row = torch.where(batch.mask, batch.rewards, 0.0).sum(dim=1)[rows]
    returns = batch.returns[batch.mask]
    return {
        "reward/mean": _mean(per_row),
        "reward/std": _std(per_row),
        "reward/return_mean": _mean(returns),
        "reward/return_std": _std(returns),
        "reward/advantage_mean": batch.moments[1] if batch.moments[0] else None,
        "reward/advantage_std": math.sqrt(batch.moments[2]) if batch.moments[0] else None,
    }


def _policy_metrics(facts: StepFacts, cfg: Config) -> Metrics:
    batch, updates = facts.batch, facts.updates.policy
    rows = batch.mask.any(dim=1)
    entropy = torch.from_numpy(np.ascontiguousarray(facts.reading.entropy))[batch.mask]
    taken = [u for u in updates if not u.stopped and not u.skipped]
    last_epoch = [u for u in updates if u.epoch == updates[-1].epoch] if updates else []
    estimator = cfg.ppo.kl.used_estimator
    per_token = algo.kl(batch.old_logp, batch.ref_logp, estimator)
    metrics: Metrics = {
        "kl/reference_k1": _mean(batch.kl.sum(dim=1)[rows]),
        "kl/reference_k1_per_token": _mean(batch.kl[batch.mask]),
        "kl/reference_k3_per_token": _mean(algo.kl(batch.old_logp, batch.ref_logp, "k3")[batch.mask]),
        "kl/coef": facts.kl_coef,
        "kl/update_k3": _weighted(last_epoch, "kl"),
        "policy/loss": _weighted(updates, "policy_loss"),
        "policy/clip_fraction": _weighted(updates, "clip_fraction"),
        "policy/entropy": _mean(entropy),
        "policy/grad_norm": _average([u.grad_norm for u in taken]),
        "policy/lr": next((u.lr for u in reversed(updates) if u.tokens and not u.stopped), None),
        "policy/updates": len(taken) if not facts.warming_up else 0,
        "policy/skipped_updates": sum(u.skipped for u in updates),
        "policy/stopped_early": int(any(u.stopped for u in updates)),
        "policy/frozen": int(facts.warming_up),
    }
    if estimator == "k2":
        metrics["kl/reference_k2_per_token"] = _mean(per_token[batch.mask])
    if cfg.ppo.surrogate == "kl":
        metrics["kl/surrogate_coef"] = facts.surrogate_kl_coef
        metrics["kl/surrogate_k3"] = facts.updates.kl_after
    return metrics


def _value_metrics(facts: StepFacts) -> Metrics:
    batch = facts.batch
    updates = facts.updates.critic or facts.updates.policy
    taken = [u for u in updates if not u.skipped and not u.stopped]
    return {
        "value/loss": _weighted(updates, "value_loss"),
        "value/mean": _mean(batch.values[batch.mask]),
        "value/explained_variance": float(algo.explained_variance(batch.values, batch.returns, batch.mask)),
        "value/grad_norm": _average([u.grad_norm if facts.updates.critic else u.head_grad_norm for u in taken]),
        "value/skipped_updates": sum(u.skipped for u in facts.updates.critic),
    }


def _response_metrics(rollout: Rollout) -> Metrics:
    tokens = rollout.mask.sum(axis=1)
    texts = [t.response for t in rollout.trajectories]
    return {
        "response/tokens_mean": float(tokens.mean()),
        "response/tokens_max": int(tokens.max()),
        "response/cut_off_share": float(rollout.cut_off.mean()),
        "response/empty_share": float(np.mean([not text.strip() for text in texts])),
        "response/distinct_share": len(set(texts)) / len(texts),
        "response/trajectories": rollout.num_rows,
    }


def _engine_metrics(facts: StepFacts) -> Metrics:
    """How far the sampler's log-probabilities are from the trainer's, per action token."""
    rollout, checked = facts.batch.rollout, facts.reading.checked
    rows, own = (list(range(rollout.num_rows)), facts.reading.logp) if checked is None else checked
    mask = rollout.mask[rows]
    if rollout.logp is None or not mask.any():
        return {"engine/logp_gap": None, "engine/logp_gap_max": None}
    gap = np.abs(rollout.logp[rows][mask] - own[mask])
    metrics: Metrics = {"engine/logp_gap": float(gap.mean()), "engine/logp_gap_max": float(gap.max())}
    if facts.batch.weights is not None:
        weights = facts.batch.weights
        metrics["engine/effective_sample_size"] = float(algo.effective_sample_size(weights, facts.batch.mask))
    return metrics


def _mean(x: torch.Tensor) -> float | None:
    return float(x.double().mean()) if x.numel() else None


def _std(x: torch.Tensor) -> float | None:
    return float(x.double().std(unbiased=False)) if x.numel() else None


def _average(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _weighted(updates: Sequence[Update], name: str) -> float | None:
    """Mean over updates, each counted by its action tokens."""
    pairs = [(getattr(u, name), u.tokens) for u in updates if getattr(u, name) is not None]
    total = sum(tokens for _, tokens in pairs)
    return sum(value * tokens for value, tokens in pairs) / total if total else None


def peak_memory_gb() -> float:
    """Largest resident size of this process so far, in GB (of the GPU's memory where there is one)."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9
