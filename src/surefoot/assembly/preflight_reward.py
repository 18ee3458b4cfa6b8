"""Checks of the reward on real samples of the starting policy: what it says, how often it fails, how long it takes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Final

from surefoot.assembly.preflight_responses import Samples
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config
from surefoot.records import Rollout, Score
from surefoot.rewards import CompositeReward, total

FOLLOWS: Final = 0.9
"""A correlation of score and length from which the score says little else."""
ENOUGH: Final = 8
"""Scores that a correlation needs before it is worth a warning."""
CHAR_LIMIT: Final = 70


def check_reward(config: Config, reward: CompositeReward, samples: Samples, verdicts: Verdicts) -> list[Score] | None:
    """Call the reward as a step does; None when it cannot be used."""
    start = time.perf_counter()
    scores = verdicts.attempt("reward/values", lambda: reward.score(samples.rollout))
    seconds = time.perf_counter() - start
    if scores is None:
        return None
    _check_failures(config, scores, verdicts)
    _check_time(config, seconds, len(scores), verdicts)
    values = [value for score in scores if (value := total(score)) is not None]
    if not values:
        return scores
    _check_spread(scores, values, samples, verdicts)
    _check_terms(scores, verdicts)
    _check_length(scores, samples.rollout, verdicts)
    _show_extremes(scores, samples.rollout, verdicts)
    return scores


def _check_failures(config: Config, scores: Sequence[Score], verdicts: Verdicts) -> None:
    failed = [score for score in scores if score.failed]
    name, share = "reward/failures", len(failed) / len(scores)
    if not failed:
        verdicts.ok(name, f"none of {len(scores)} scores failed", failed=0)
        return
    reasons = list(dict.fromkeys(score.reason or "no reason given" for score in failed))
    what = f"{len(failed)} of {len(scores)} scores failed: {'; '.join(reasons[:3])}"
    stops = share > config.reward.max_failures or config.reward.on_failure == "stop"
    if stops or len(failed) == len(scores):
        verdicts.problem(
            name, what, "mend the reward; reward.max_failures says how many rows may be left out", failed=len(failed)
        )
    else:
        verdicts.warn(name, what, "such rows are left out of their step", failed=len(failed))


def _check_time(config: Config, seconds: float, rows: int, verdicts: Verdicts) -> None:
    """One call as measured, and a whole step's by proportion."""
    step = seconds / rows * config.rows_per_step
    what = f"{rows} responses in {seconds:.2g} s; a step's {config.rows_per_step} may take {step:.2g} s"
    evidence = {"seconds": seconds, "rows": rows, "step_seconds": step}
    if step > config.reward.timeout_s / 2:
        verdicts.warn(
            "reward/time",
            f"{what}, and reward.timeout_s is {config.reward.timeout_s:g}",
            "raise reward.timeout_s",
            **evidence,
        )
    else:
        verdicts.ok("reward/time", what, **evidence)


def _check_spread(scores: Sequence[Score], values: Sequence[float], samples: Samples, verdicts: Verdicts) -> None:
    mean, spread = statistics.fmean(values), statistics.pstdev(values)
    evidence = {"mean": mean, "std": spread, "min": min(values), "max": max(values), "count": len(values)}
    by_token = any(score.token_rewards is not None for score in scores)
    distinct = len({t.response for t in samples.rollout.trajectories})
    if max(values) - min(values) <= 1e-9 * max(1.0, abs(mean)) and distinct > 1 and len(values) > 1 and not by_token:
        verdicts.problem(
            "reward/values",
            f"the reward is {mean:g} for all of {len(values)} responses ({distinct} of them different):"
            " there is nothing to learn from",
            "reward something that the starting policy does at times, or start from a better one",
            **evidence,
        )
    else:
        verdicts.ok(
            "reward/values",
            f"mean {mean:.3g}, standard deviation {spread:.3g}, from {min(values):.3g} to {max(values):.3g}",
            **evidence,
        )


def _check_terms(scores: Sequence[Score], verdicts: Verdicts) -> None:
    names = list(dict.fromkeys(name for score in scores for name in score.terms))
    if len(names) < 2:
        return
    means = {}
    for name in names:
        known = [value for score in scores if (value := score.terms.get(name)) is not None]
        means[name] = statistics.fmean(known) if known else None
    shown = ", ".join(f"{name} {'none' if mean is None else format(mean, '.3g')}" for name, mean in means.items())
    verdicts.ok("reward/terms", f"means before weights: {shown}", terms=means)


def _check_length(scores: Sequence[Score], rollout: Rollout, verdicts: Verdicts) -> None:
    """Whether the score is, at the start already, mostly a matter of length."""
    pairs = [
        (value, int(n))
        for score, n in zip(scores, rollout.mask.sum(axis=1), strict=True)
        if (value := total(score)) is not None
    ]
    r = correlation([float(n) for _, n in pairs], [value for value, _ in pairs])
    if r is not None and abs(r) >= FOLLOWS and len(pairs) >= ENOUGH:
        direction = "longer" if r > 0 else "shorter"
        verdicts.warn(
            "reward/length",
            f"the score follows the length of the response (correlation {r:.2f}): {direction} pays",
            "if that is not what you want, subtract it in the reward; watch response/tokens_mean",
            correlation=r,
        )
    else:
        known = "unknown: one of the two does not vary" if r is None else f"{r:.2f}"
        verdicts.ok("reward/length", f"correlation of score and response length: {known}", correlation=r)


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's; None where one of the two does not vary."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    r = statistics.correlation(x, y)
    return r if math.isfinite(r) else None


def _show_extremes(scores: Sequence[Score], rollout: Rollout, verdicts: Verdicts) -> None:
    """The best and the worst response, for the user to read: nothing else shows what the reward really likes."""
    rated = [
        (value, t, score.note)
        for score, t in zip(scores, rollout.trajectories, strict=True)
        if (value := total(score)) is not None
    ]
    for name, (value, trajectory, note) in (
        ("reward/highest", max(rated, key=lambda one: one[0])),
        ("reward/lowest", min(rated, key=lambda one: one[0])),
    ):
        text = " ".join(trajectory.response.split())
        short = text if len(text) <= CHAR_LIMIT else f"{text[:CHAR_LIMIT]}..."
        why = f" ({note})" if note else ""
        prompt = trajectory.prompt.text if trajectory.prompt is not None else ""
        evidence = {"score": value, "note": note, "response": trajectory.response, "prompt": prompt}
        verdicts.ok(name, f"{value:.3g} for {short!r}{why}", **evidence)
