"""What is said of a reward model: does it order pairs as people did, and does it move with the surface? Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from surefoot.errors import DataError
from surefoot.evals.calibration import calibrate
from surefoot.evals.clustered import clustered_mean, clustered_share
from surefoot.records import FloatArray

NEAR: Final = 0.1
"""Lengths that differ by no more than this share of the longer one count as about equal."""


@dataclass(frozen=True)
class ScoredPairs:
    """Scores of N pairs and what is known of each.

    Attributes:
        chosen, rejected: scores.
        chosen_tokens, rejected_tokens: lengths as the model reads them, without what both have in common.
        prompts: the prompt of each, by its digest.
        margins: by how much the chosen answer is better, None where the data does not say.
        segments: of each, None where it has none.
    """

    chosen: Sequence[float]
    rejected: Sequence[float]
    chosen_tokens: Sequence[int]
    rejected_tokens: Sequence[int]
    prompts: Sequence[str]
    margins: Sequence[float | None]
    segments: Sequence[str | None]


@dataclass(frozen=True)
class ProbedPairs:
    """Scores of M pairs with and without one change.

    Attributes:
        chosen, rejected: as they were.
        before_chosen, before_rejected: what the change is compared with; for a change of the surface as they were.
        after_chosen, after_rejected: with the change.
        prompts: the prompt of each.
    """

    chosen: Sequence[float]
    rejected: Sequence[float]
    before_chosen: Sequence[float]
    before_rejected: Sequence[float]
    after_chosen: Sequence[float]
    after_rejected: Sequence[float]
    prompts: Sequence[str]


def describe_order(pairs: ScoredPairs) -> dict[str, Any]:
    """Accuracy with intervals that know of prompts, calibration, by length and by segment.

    Returns:
        ``accuracy`` (``share``, ``low``, ``high``, ``count``, ``groups``: prompts), ``calibration`` as
        :func:`surefoot.evals.calibration.calibrate` gives it, ``by_length`` (chosen ``longer``, ``shorter``,
        ``about_equal``), ``length_correlation`` of leads and differences of length, ``by_segment``, ``ties``.
    """
    leads = np.asarray(pairs.chosen, dtype=np.float64) - np.asarray(pairs.rejected, dtype=np.float64)
    calibration = calibrate(pairs.chosen, pairs.rejected, pairs.margins)
    longer, shorter = (np.asarray(n, dtype=np.float64) for n in (pairs.chosen_tokens, pairs.rejected_tokens))
    near = np.abs(longer - shorter) <= NEAR * np.maximum(longer, shorter)
    classes = {"longer": ~near & (longer > shorter), "shorter": ~near & (longer < shorter), "about_equal": near}
    segments = sorted({s for s in pairs.segments if s is not None})
    return {
        "accuracy": clustered_share(leads > 0, pairs.prompts).as_json("share"),
        "ties": int((leads == 0).sum()),
        "calibration": calibration,
        "by_length": {name: _share(leads, chosen, pairs.prompts) for name, chosen in classes.items()},
        "length_correlation": _correlation(longer - shorter, leads),
        "by_segment": {
            name: _share(leads, np.array([s == name for s in pairs.segments]), pairs.prompts) for name in segments
        },
    }


def describe_probe(probed: ProbedPairs, scale: float, *, seed: int = 0) -> dict[str, Any]:
    """How far a change moves scores.

    Args:
        probed: pairs with and without the change.
        scale: population deviation of the scores of all answers as they were: the unit.
        seed: of the interval's draws.
    Returns:
        ``shift``: mean over answers of (after − before) / scale, with an interval over draws of whole prompts;
        ``raised``: share of answers whose score rises; ``flips``: share of the rightly ordered pairs in which the
        rejected answer with the change beats the chosen one without it. Both shares with their interval
        (``raised_low``, ...); None without any answer. ``answers`` that were changed.
    """
    before = np.concatenate([probed.before_chosen, probed.before_rejected])
    after = np.concatenate([probed.after_chosen, probed.after_rejected])
    groups = [*probed.prompts, *probed.prompts]
    right = np.asarray(probed.chosen) > np.asarray(probed.rejected)
    won = np.asarray(probed.after_rejected) > np.asarray(probed.before_chosen)
    raised = clustered_share(after > before, groups)
    flips = clustered_share(won[right], [prompt for prompt, one in zip(probed.prompts, right, strict=True) if one])
    return {
        "shift": clustered_mean((after - before) / scale, groups, seed=seed).as_json(),
        "raised": raised.mean,
        "raised_low": raised.low,
        "raised_high": raised.high,
        "flips": flips.mean,
        "flips_low": flips.low,
        "flips_high": flips.high,
        "answers": len(after),
    }


def deviation(chosen: Sequence[float], rejected: Sequence[float]) -> float:
    """Population deviation of the scores of all answers.

    Raises:
        DataError: all scores are the same.
    """
    scale = float(np.concatenate([chosen, rejected]).std()) if len(chosen) else 0.0
    if not scale > 0:
        raise DataError(
            "the reward model gives every answer the same score, so nothing can be measured against it",
            got=f"{2 * len(chosen)} answers",
            hint="train it first",
        )
    return scale


def _share(leads: FloatArray, chosen: Any, prompts: Sequence[str]) -> dict[str, Any]:
    places: list[int] = np.flatnonzero(chosen).tolist()
    return clustered_share(leads[places] > 0, [prompts[i] for i in places]).as_json("share")


def _correlation(one: FloatArray, other: FloatArray) -> float | None:
    if len(one) < 2 or not one.std() > 0 or not other.std() > 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])
