"""Checks that must hold before the first update, made with the code that trains: with unchanged weights the ratio is 1,
KL is 0 and nothing is clipped; a row says the same alone, padded and packed; two readings are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config
from surefoot.models.critic import SeparateCritic, SharedCritic
from surefoot.models.policy import CausalPolicy
from surefoot.models.scoring import BatchPlan
from surefoot.records import FloatArray, Rollout, Score, StopReason, Trajectory
from surefoot.training.critic_update import ServedCritic, cut
from surefoot.training.estimate import Batch, Reading, clear_failed, estimate
from surefoot.training.losses import Coefficients, Counts, PolicyLoss, PolicyOutput, gather, policy_terms
from surefoot.training.step import Parts, read

ROWS: Final = 4
"""Responses that are read again and again, and trained on once: a check has seconds."""
TOLERANCE: Final = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 0.2, "float16": 0.05}
"""Largest difference of two log-probabilities that rounding explains."""


@dataclass(frozen=True)
class Start:
    """The starting policy on its samples.

    Attributes:
        rollout: a few of the samples, failed ones cleared.
        scores: one per trajectory.
        reading: of policy, critic and reference.
        batch: the estimates that an update would use.
        coef: coefficients at the start.
    """

    rollout: Rollout
    scores: Sequence[Score]
    reading: Reading
    batch: Batch
    coef: Coefficients


def start_of(config: Config, parts: Parts, rollout: Rollout, scores: Sequence[Score] | None) -> Start:
    """Read and estimate as a step does; without usable scores every other response gets 1, so that something moves."""
    if scores is None or all(score.failed for score in scores):
        scores = [Score(float(row % 2)) for row in range(rollout.num_rows)]
    chosen = spread_of_lengths(rollout)
    scores = [scores[row] for row in chosen]
    rollout = Rollout.of([rollout.trajectories[row] for row in chosen], info=rollout.info)
    cleared = clear_failed(rollout, scores)
    reading = read(cleared, parts, read_anew(config))
    coef = Coefficients(kl=float(parts.kl.coef), surrogate_kl=float(parts.penalty.coef))
    batch = estimate(cleared, scores, reading, config, kl_coef=coef.kl, normaliser=parts.normaliser)
    return Start(cleared, scores, reading, batch, coef)


def read_anew(config: Config) -> Config:
    """The config with nothing taken over from the sampler: identities are the trainer's own."""
    return config.model_copy(update={"ppo": config.ppo.model_copy(update={"old_logp": "read"})})


def spread_of_lengths(rollout: Rollout) -> list[int]:
    """A few rows, the shortest and the longest among them: identities hold for every row or for none."""
    order = sorted(range(rollout.num_rows), key=lambda row: (int(rollout.lengths[row]), row))
    last = len(order) - 1
    return sorted({order[round(i * last / max(ROWS - 1, 1))] for i in range(ROWS)})


def check_identities(config: Config, parts: Parts, start: Start, verdicts: Verdicts) -> None:
    """Every identity of the starting policy."""
    tolerance = TOLERANCE[config.model.dtype]
    policy = parts.learner.policy
    _check_repeat(config, parts, start, verdicts)
    _check_ratio(config, policy, start, tolerance, verdicts)
    _check_reference(config, start, tolerance, verdicts)
    _check_layouts(parts, start, tolerance, verdicts)
    _check_engine(parts, start, tolerance, verdicts)
    _check_critic(parts, start, verdicts)


def _check_repeat(config: Config, parts: Parts, start: Start, verdicts: Verdicts) -> None:
    again = read(start.rollout, parts, read_anew(config))
    pairs = (
        (start.reading.logp, again.logp),
        (start.reading.values, again.values),
        (start.reading.ref_logp, again.ref_logp),
    )
    gap = max(largest_gap(a, b) for a, b in pairs)
    if gap == 0:
        verdicts.ok("identities/repeat", "two readings of the same rollout are equal to the last bit")
    else:
        verdicts.problem(
            "identities/repeat",
            f"two readings of the same rollout differ by up to {gap:.2g}",
            "something in the model is random (dropout?): every ratio would be noise; report this as a bug",
            gap=gap,
        )


def _check_ratio(config: Config, policy: CausalPolicy, start: Start, tolerance: float, verdicts: Verdicts) -> None:
    """The ratio, KL(old, new) and the clip fraction as the update computes them."""
    batch, rows = start.batch, start.batch.trained_rows
    counts, device = Counts.of(batch, rows), policy.lm.device
    gap, clipped, kl = 0.0, 0.0, 0.0
    for micro in cut(batch, rows, policy.plan, device):
        with torch.no_grad():
            logp, entropy, _ = policy.forward(micro, entropy=config.ppo.entropy_coef > 0)
            loss = PolicyLoss.of(micro, batch, counts, config.ppo, start.coef, device)
            terms = policy_terms(PolicyOutput(logp, entropy), loss)
        gap = max(gap, float((logp - gather(batch.old_logp, micro, device)).abs().max()))
        clipped, kl = clipped + terms.clipped, kl + terms.kl
    tokens = max(counts.tokens, 1)
    evidence = {"ratio_gap": gap, "clip_fraction": clipped / tokens, "kl": kl / tokens, "tokens": counts.tokens}
    if gap <= tolerance and clipped == 0:
        verdicts.ok(
            "identities/ratio",
            f"before any update the ratio is 1 (within {gap:.1g}), KL(old, new) {kl / tokens:.1g}, clip fraction 0",
            **evidence,
        )
    else:
        verdicts.problem(
            "identities/ratio",
            f"before any update log-probabilities differ by {gap:.2g} and {clipped / tokens:.1%} of ratios are clipped",
            _doubt(config),
            **evidence,
        )


def _check_reference(config: Config, start: Start, tolerance: float, verdicts: Verdicts) -> None:
    mask, name = start.rollout.mask, "identities/reference"
    gap = largest_gap(start.reading.logp, start.reading.ref_logp)
    kl = float(((start.reading.logp - start.reading.ref_logp) * mask).sum() / max(int(mask.any(axis=1).sum()), 1))
    evidence = {"gap": gap, "kl_per_response": kl}
    if config.model.reference is not None and config.model.reference != config.model.policy:
        verdicts.note(
            name,
            f"the reference is another model: KL to it is {kl:.3g} nats per response at the start",
            "right if the policy is to stay near that model; leave model.reference out to stay near the start",
            **evidence,
        )
    elif gap <= tolerance:
        verdicts.ok(name, f"KL to the reference is 0 (log-probabilities agree within {gap:.1g})", **evidence)
    else:
        verdicts.problem(
            name,
            f"policy and reference differ by {gap:.2g} at the start, and should be one model",
            _doubt(config),
            **evidence,
        )


def _check_layouts(parts: Parts, start: Start, tolerance: float, verdicts: Verdicts) -> None:
    """A row alone, padded with others, and packed with others."""
    plans = {"alone": BatchPlan(1, "on"), "padded": BatchPlan(2**20, "off"), "packed": BatchPlan(2**20, "on")}
    rollout = uneven(start.rollout)
    read_as = {how: _read_under(parts, plan, rollout) for how, plan in plans.items()}
    alone = read_as["alone"][1]
    gap, value_gap = (
        max(largest_gap(read_as["alone"][i], read_as[how][i]) for how in ("padded", "packed")) for i in (0, 1)
    )
    limit = tolerance * max(1.0, float(np.abs(alone).max(initial=0.0)))
    evidence = {"logp_gap": gap, "value_gap": value_gap, "tolerance": tolerance}
    if gap <= tolerance and value_gap <= limit:
        verdicts.ok(
            "identities/layout",
            f"a row alone, padded and packed says the same (within {max(gap, value_gap):.1g})",
            **evidence,
        )
    else:
        verdicts.problem(
            "identities/layout",
            f"a row alone, padded and packed differs by {gap:.2g} in log-probabilities and {value_gap:.2g} in values",
            "the model's attention does not keep rows apart: it cannot be trained with this version",
            **evidence,
        )


def uneven(rollout: Rollout) -> Rollout:
    """The same trajectories, each cut a little shorter than the one before: rows of one length need no padding."""
    cut_rows = []
    for number, trajectory in enumerate(rollout.trajectories):
        first = next((i for i, action in enumerate(trajectory.mask) if action), len(trajectory.mask) - 1)
        end = max(first + 1, len(trajectory.tokens) - number)
        cut_rows.append(Trajectory(trajectory.tokens[:end], trajectory.mask[:end], StopReason.LENGTH))
    return Rollout.of(cut_rows)


def _read_under(parts: Parts, plan: BatchPlan, rollout: Rollout) -> tuple[FloatArray, FloatArray]:
    """Log-probabilities and values, the rollout cut in another way."""
    policy, critic = parts.learner.policy, parts.learner.critic
    assert not isinstance(critic, ServedCritic), "checks are made with the critic in this process"
    if isinstance(critic, SharedCritic):
        scores = CausalPolicy(policy.lm, plan).read(rollout, critic.head)
        assert scores.logp is not None and scores.values is not None
        return scores.logp, scores.values
    other = SeparateCritic(critic.trunk, critic.head, plan)
    return CausalPolicy(policy.lm, plan).evaluate(rollout).logp, other.values(rollout).values


def _check_engine(parts: Parts, start: Start, tolerance: float, verdicts: Verdicts) -> None:
    if start.rollout.logp is None:
        return
    gaps = np.abs(start.rollout.logp - start.reading.logp)[start.rollout.mask]
    mean, largest = float(gaps.mean()), float(gaps.max())
    evidence = {"mean": mean, "max": largest}
    own = getattr(parts.engine, "is_trainer_code", False)
    if largest <= tolerance:
        verdicts.ok(
            "identities/engine",
            f"sampler and trainer agree on every log-probability (within {largest:.1g})",
            **evidence,
        )
    elif own:
        verdicts.problem(
            "identities/engine",
            f"sampler and trainer differ by up to {largest:.2g}: the policy is not sampled from as it is trained",
            "report this as a bug, with the model's name",
            **evidence,
        )
    else:
        verdicts.warn(
            "identities/engine",
            f"sampler and trainer differ by up to {largest:.2g} (mean {mean:.2g}), which importance weights correct",
            "watch engine/logp_gap and engine/effective_sample_size",
            **evidence,
        )


def _check_critic(parts: Parts, start: Start, verdicts: Verdicts) -> None:
    values = start.reading.values[start.rollout.mask]
    if np.isfinite(values).all() and np.isfinite(start.reading.after).all():
        verdicts.ok(
            "identities/critic",
            f"values are finite, {float(values.min()):.3g} to {float(values.max()):.3g}",
            min=float(values.min()),
            max=float(values.max()),
        )
    else:
        verdicts.problem(
            "identities/critic", "the critic gives values that are not finite", "check critic.init and model.dtype"
        )


def _doubt(config: Config) -> str:
    if config.model.dtype in ("bfloat16", "float16"):
        return "model.dtype: float32 has the precision that ratios need"
    return "report this as a bug, with the model's name"


def largest_gap(a: FloatArray, b: FloatArray) -> float:
    """Largest difference; infinity where something is not finite."""
    difference = float(np.abs(a - b).max(initial=0.0))
    return difference if np.isfinite(difference) else float("inf")
