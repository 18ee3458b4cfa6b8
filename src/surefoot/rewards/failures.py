"""What becomes of scores that failed, and the metrics of those that did not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from surefoot.config.sections import RewardSection
from surefoot.errors import RewardError
from surefoot.records import Score

SHOWN = 3


def check_failures(scores: Sequence[Score], section: RewardSection) -> None:
    """Stop when scoring failed more often than the config allows.

    Raises:
        RewardError: every score failed, ``on_failure`` is ``stop`` and one did, or their share exceeds
            ``max_failures``; with the counts and the most frequent reasons.
    """
    failed = [score for score in scores if score.failed]
    if not failed:
        return
    share = len(failed) / len(scores)
    if len(failed) == len(scores):
        limit = "a step needs at least one score"
    elif section.on_failure == "stop":
        limit = "reward.on_failure: stop allows none"
    elif share > section.max_failures:
        limit = f"reward.max_failures: {section.max_failures:g} of them"
    else:
        return
    counts: dict[str, int] = {}
    for score in failed:
        counts[score.reason or "no reason given"] = counts.get(score.reason or "no reason given", 0) + 1
    often = sorted(counts, key=lambda reason: -counts[reason])
    rest = f"; and {len(often) - SHOWN} more reasons" if len(often) > SHOWN else ""
    raise RewardError(
        f"{len(failed)} of {len(scores)} scores failed",
        got="; ".join(f"{counts[reason]} x {reason}" for reason in often[:SHOWN]) + rest,
        allowed=limit,
        hint="try the reward on samples with `surefoot check`; raise reward.max_failures if such rows may be left out",
    )


def total(score: Score) -> float | None:
    """Everything a trajectory was given: the score's value and its rewards per token. None when scoring failed."""
    return None if score.value is None else math.fsum((score.value, *(score.token_rewards or ())))


def score_metrics(scores: Sequence[Score]) -> dict[str, float | None]:
    """Metrics of a step's scores; rows that failed count in ``score/failed_share`` and nowhere else.

    Returns:
        ``score/mean``, ``score/std`` (population), ``score/min``, ``score/max`` of :func:`total`, None when every row
        failed; ``score/failed_share``; and for each term ``score/TERM``, the mean of its raw values.
    """
    sound = [score for score in scores if not score.failed]
    totals = [value for score in sound if (value := total(score)) is not None]
    mean = _mean(totals)
    metrics: dict[str, float | None] = {
        "score/mean": mean,
        "score/std": None if mean is None else math.hypot(*(x - mean for x in totals)) / math.sqrt(len(totals)),
        "score/min": min(totals, default=None),
        "score/max": max(totals, default=None),
        "score/failed_share": (len(scores) - len(sound)) / len(scores) if scores else None,
    }
    for name in dict.fromkeys(name for score in scores for name in score.terms):
        values = [value for score in sound if (value := score.terms.get(name)) is not None]
        metrics[f"score/{name}"] = _mean(values)
    return metrics


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
