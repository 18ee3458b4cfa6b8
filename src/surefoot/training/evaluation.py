"""Held-out prompts, sampled with their own settings and scored, with a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from surefoot.config import Config
from surefoot.evals.student import student_t_975
from surefoot.models.policy import CausalPolicy
from surefoot.protocols import Environment, Reference, Reward
from surefoot.records import FloatArray, Prompt, Rollout, Score
from surefoot.rewards import score_metrics, total
from surefoot.rollout import NativeEngine, Sampling
from surefoot.rollout.engine_native import Text


@dataclass(frozen=True)
class HeldOut:
    """One evaluation.

    Attributes:
        step: after which it was made; 0: before the first.
        mean, low, high: score and 95 % interval; None when no score is valid.
        prompts: prompts with at least one valid score.
        metrics: ``evaluate/...``.
        settings: everything needed to repeat it.
        rollout, scores: what was sampled.
    """

    step: int
    mean: float | None
    low: float | None
    high: float | None
    prompts: int
    metrics: dict[str, float | int | None]
    settings: dict[str, Any]
    rollout: Rollout
    scores: Sequence[Score]

    def as_json(self) -> dict[str, Any]:
        """The line of ``evaluations.jsonl``."""
        return {"step": self.step, **self.metrics, "settings": self.settings}

    def responses(self) -> list[dict[str, Any]]:
        """What was sampled and how it scored, a record a response."""
        return [
            {
                "prompt_id": t.prompt.id if t.prompt else None,
                "prompt": t.prompt.text if t.prompt else "",
                "response": t.response,
                "stop_reason": str(t.stop_reason),
                "score": total(score),
                "score_terms": dict(score.terms),
                "score_note": score.note,
            }
            for t, score in zip(self.rollout.trajectories, self.scores, strict=True)
        ]


def evaluation_sampling(cfg: Config, stop_ids: frozenset[int]) -> Sampling:
    """Sampling settings of the config's ``evaluate`` section."""
    section = cfg.evaluate
    return Sampling(
        max_new_tokens=section.max_new_tokens or cfg.rollout.max_new_tokens,
        temperature=section.temperature or None,
        greedy=section.temperature == 0,
        top_k=section.top_k,
        top_p=section.top_p,
        stop_ids=stop_ids,
        stop_strings=tuple(cfg.rollout.stop),
        max_rows=cfg.rollout.max_rows,
        laid_out=cfg.rollout.decode_weights == "laid_out",
    )


@dataclass(frozen=True)
class Evaluator:
    """Scores held-out prompts; leaves the training state untouched.

    Attributes:
        prompts: held-out.
        reward, environment, text: as in training.
        stop_ids: ids that end a response.
        cfg: sections ``evaluate`` and ``rollout``.
    """

    prompts: tuple[Prompt, ...]
    reward: Reward
    reference: Reference
    environment: Environment
    text: Text
    stop_ids: frozenset[int]
    cfg: Config

    def __call__(self, policy: CausalPolicy, step: int) -> HeldOut:
        """Evaluate the policy as it is now; the same draws every time."""
        section = self.cfg.evaluate
        sampling = evaluation_sampling(self.cfg, self.stop_ids)
        engine = NativeEngine(
            policy, sampling, self.text, samples_per_prompt=section.samples_per_prompt, purpose="evaluate"
        )
        rollout = engine.rollout(self.prompts, self.environment, seed=(section.seed, 0))
        scores = self.reward.score(rollout)
        settings = {
            **rollout.info,
            "trained_temperature": policy.temperature,
            "seed": section.seed,
            "samples_per_prompt": section.samples_per_prompt,
        }
        settings.pop("version", None)
        return summarise(step, rollout, scores, settings, self.reference.logp(rollout))


def summarise(
    step: int, rollout: Rollout, scores: Sequence[Score], settings: dict[str, Any], ref_logp: FloatArray
) -> HeldOut:
    """Mean over prompts of the mean over a prompt's valid samples, each prompt counting once.

    The perplexity under the reference says whether the text is still language: exp of the mean negative
    log-probability that the reference gives the sampled tokens.
    """
    groups: dict[int, list[float]] = {}
    for trajectory, score in zip(rollout.trajectories, scores, strict=True):
        value = total(score)
        if value is not None:
            groups.setdefault(trajectory.group, []).append(value)
    means = [fmean(values) for values in groups.values()]
    low, high = confidence_interval(means)
    mean = fmean(means) if means else None
    metrics: dict[str, float | int | None] = {
        "evaluate/score_mean": mean,
        "evaluate/score_low": low,
        "evaluate/score_high": high,
        "evaluate/prompts": len(means),
        "evaluate/failed_share": score_metrics(scores)["score/failed_share"],
        "evaluate/tokens_mean": float(rollout.mask.sum(axis=1).mean()),
        "evaluate/cut_off_share": float(rollout.cut_off.mean()),
        "evaluate/distinct_share": len({t.response for t in rollout.trajectories}) / rollout.num_rows,
        "evaluate/reference_perplexity": float(np.exp(-ref_logp[rollout.mask].mean())),
    }
    plain = settings.get("top_k", 0) == 0 and settings.get("top_p", 1.0) == 1.0
    if rollout.logp is not None and plain and settings.get("temperature") == settings.get("trained_temperature"):
        gap = np.where(rollout.mask, rollout.logp - ref_logp, 0.0)
        metrics["evaluate/reference_k1"] = float(gap.sum(axis=1).mean())
    return HeldOut(step, mean, low, high, len(means), metrics, settings, rollout, scores)


def confidence_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of a mean from Student's t; (None, None) for fewer than two values."""
    if len(values) < 2:
        return None, None
    half = student_t_975(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half
