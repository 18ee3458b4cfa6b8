"""One PPO step: sample, score, estimate, update, publish. No device, rank, logger or Ray in sight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefoot import algo
from surefoot.config import Config
from surefoot.errors import RolloutError
from surefoot.models.critic import SharedCritic
from surefoot.models.scoring import TokenScores
from surefoot.protocols import Engine, Environment, Reference, Reward
from surefoot.records import BoolArray, FloatArray, Prompt, Rollout, Score, StepReport, Trajectory
from surefoot.rewards import ScoreNormaliser, check_failures, score_metrics
from surefoot.training.clock import StepClock
from surefoot.training.critic_update import ServedCritic
from surefoot.training.estimate import Batch, Reading, clear_failed, estimate
from surefoot.training.losses import Coefficients
from surefoot.training.report import Metrics, StepFacts, report
from surefoot.training.update import Learner, optimise

# One of this many rows is read again to check the sampler's numbers, and how far they may be from the trainer's.
CHECK_EVERY = 16
AGREEMENT = 1e-4


@dataclass
class Parts:
    """What a step works with.

    Attributes:
        learner: policy, critic and their optimizers.
        reference, engine, environment, reward: the seams of :mod:`surefoot.protocols`.
        kl: controller of the KL to the reference.
        penalty: controller of ``surrogate: kl``.
        normaliser: of scores, or None.
        warmed_up: whether the critic's warm-up has ended.
    """

    learner: Learner
    reference: Reference
    engine: Engine
    environment: Environment
    reward: Reward
    kl: algo.AdaptiveKL | algo.FixedKL
    penalty: algo.AdaptivePenalty
    normaliser: ScoreNormaliser | None = None
    warmed_up: bool = False


@dataclass(frozen=True)
class StepResult:
    """A step's report, and what its rollout record is written from."""

    report: StepReport
    sampled: Rollout
    scores: Sequence[Score]
    reading: Reading
    batch: Batch


def ppo_step(step: int, prompts: Sequence[Prompt], parts: Parts, cfg: Config, clock: StepClock) -> StepResult:
    """One step.

    Args:
        step: from 1; together with the run's seed it seeds every draw.
        prompts: of this step.
        parts: what to work with; controllers and optimizers move on.
        cfg: the run.
        clock: times the phases.
    Raises:
        RolloutError: an engine that is not the trainer's code gives no log-probabilities.
        RewardError: too many scores failed.
        TrainingError: losses or gradients stayed non-finite for too long.
    """
    with clock("rollout"):
        sampled = sample(step, prompts, parts, cfg)
    with clock("score"):
        scores = parts.reward.score(sampled)
        check_failures(scores, cfg.reward)
        rollout = clear_failed(sampled, scores)
        reading = read(rollout, parts, cfg)
    kl_coef, warming_up = float(parts.kl.coef), _warming_up(parts, cfg, step)
    foreign = not getattr(parts.engine, "is_trainer_code", False)
    if foreign and sampled.logp is None:
        raise RolloutError(
            f"{type(parts.engine).__name__} gives no log-probabilities, so its distribution cannot be corrected for",
            hint="let the engine fill in Trajectory.logp, or set is_trainer_code = True if it samples with this code",
        )
    batch = estimate(
        rollout, scores, reading, cfg, kl_coef=kl_coef, normaliser=parts.normaliser, foreign_engine=foreign
    )
    coef = Coefficients(kl=kl_coef, surrogate_kl=float(parts.penalty.coef))
    with clock("update"):
        updates = optimise(parts.learner, batch, cfg, coef, step=step, warming_up=warming_up)
    clock.seconds.update(updates.seconds)
    with clock("publish"):
        parts.engine.publish(parts.learner.policy, version=step + 1)
    metrics: Metrics = {**score_metrics(scores), **(parts.normaliser.metrics() if parts.normaliser else {})}
    facts = StepFacts(
        step, sampled, scores, metrics, reading, batch, updates, kl_coef, float(parts.penalty.coef), warming_up
    )
    result = report(facts, cfg, clock)
    _advance_controllers(parts, result, cfg, batch)
    return StepResult(result, sampled, scores, reading, batch)


def sample(step: int, prompts: Sequence[Prompt], parts: Parts, cfg: Config) -> Rollout:
    """The step's rollout; who scores it elsewhere hears of each trajectory as soon as it has ended."""
    seed, critic = (cfg.run.seed, step), parts.learner.critic
    served = critic.listeners() if isinstance(critic, ServedCritic) else ()
    listeners = (*served, *getattr(parts.reward, "listeners", tuple)())
    if not listeners or not getattr(parts.engine, "tells_finished", False):
        return parts.engine.rollout(prompts, parts.environment, seed=seed)

    def finished(row: int, trajectory: Trajectory) -> None:
        for listener in listeners:
            listener(row, trajectory)

    engine: Any = parts.engine
    rollout: Rollout = engine.rollout(prompts, parts.environment, seed=seed, finished=finished)
    return rollout


def read(rollout: Rollout, parts: Parts, cfg: Config) -> Reading:
    """What policy, critic and reference say about a rollout; a shared critic is read in the policy's own pass."""
    critic = parts.learner.critic
    own, checked = _policy_scores(rollout, parts, cfg)
    values, after = own.values, own.after
    if not isinstance(critic, SharedCritic):
        found = critic.values(rollout)
        values, after = found.values, found.after
    assert own.logp is not None and own.entropy is not None and values is not None and after is not None
    return Reading(own.logp, own.entropy, values, after, parts.reference.logp(rollout), checked)


def _policy_scores(
    rollout: Rollout, parts: Parts, cfg: Config
) -> tuple[TokenScores, tuple[list[int], FloatArray] | None]:
    """The policy's numbers: the sampler's own, after a look at some rows, or those of a reading."""
    policy, critic = parts.learner.policy, parts.learner.critic
    head = critic.head if isinstance(critic, SharedCritic) else None
    rows = [int(r) for r in np.nonzero(rollout.mask.any(axis=1))[0]][::CHECK_EVERY]
    sampled = (rollout.logp, rollout.entropy, *(() if head is None else (rollout.values,)))
    trusted = cfg.ppo.old_logp == "sampled" and getattr(parts.engine, "is_trainer_code", False)
    # Nobody has seen the state after the last token yet, which bootstrapping needs.
    complete = all(array is not None for array in sampled) and not (head and cfg.ppo.cut_off == "bootstrap")
    if not (trusted and complete and rows):
        return policy.read(rollout, head), None
    some = policy.read(rollout, head, rows)
    mask = rollout.mask[rows]
    pairs = zip((some.logp, some.entropy, some.values), sampled, strict=False)
    if any(_gap(own, theirs, rows, mask) > AGREEMENT for own, theirs in pairs):
        return policy.read(rollout, head), None
    assert some.logp is not None
    logp, entropy, values = (_like(array, some.logp) for array in (rollout.logp, rollout.entropy, rollout.values))
    after = np.zeros(rollout.num_rows, dtype=some.logp.dtype)
    return TokenScores(logp, entropy, values, after), (rows, some.logp[rows])


def _gap(own: FloatArray | None, theirs: FloatArray | None, rows: list[int], mask: BoolArray) -> float:
    assert own is not None and theirs is not None
    return float(np.abs(own[rows] - theirs[rows])[mask].max())


def _like(array: FloatArray | None, other: FloatArray) -> FloatArray | None:
    return None if array is None else array.astype(other.dtype)


def _warming_up(parts: Parts, cfg: Config, step: int) -> bool:
    return not parts.warmed_up and step <= cfg.critic.warmup_steps


def _advance_controllers(parts: Parts, result: StepReport, cfg: Config, batch: Batch) -> None:
    """Move what adapts from step to step, once, from the numbers that are logged."""
    rows = len(batch.trained_rows)
    kl = result.metrics["kl/reference_k1"]
    if kl is not None and rows:
        parts.kl.update(kl, rows)
    led_to = result.metrics.get("kl/surrogate_k3")
    if led_to is not None:
        parts.penalty.update(led_to)
    threshold, explained = cfg.critic.warmup_explained_variance, result.metrics["value/explained_variance"]
    if threshold is not None and explained is not None and explained >= threshold:
        parts.warmed_up = True
