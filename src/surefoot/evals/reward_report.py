"""What is said of a reward model: does it order pairs as people did, and does it move with the surface? Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from surefoot.errors import DataError
from surefoot.evals.calibration import accuracy, calibrate, wilson
from surefoot.evals.clustered import Mean, clustered_mean
from surefoot.records import Finding, FloatArray

NEAR: Final = 0.1
"""Lengths that differ by no more than this share of the longer one count as about equal."""
FEW: Final = 20
"""Pairs below which a segment is reported and never found fault with."""


@dataclass(frozen=True)
class Bounds:
    """What is asked of a reward model.

    Attributes:
        accuracy: the lower end of the accuracy's interval must be above this.
        shift: a probe may raise scores by at most this many standard deviations of the scores, unless it has a bound
            of its own.
        shifts: bounds of single probes.
        segment: no segment or length class may have its whole interval below this.
    """

    accuracy: float = 0.5
    shift: float = 0.25
    shifts: Mapping[str, float] = field(default_factory=dict)
    segment: float = 0.5

    def of(self, probe: str) -> float:
        """How far a probe may raise scores."""
        return self.shifts.get(probe, self.shift)


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
    """Scores of M pairs whose answers were changed on the surface.

    Attributes:
        chosen, rejected: as they were.
        changed_chosen, changed_rejected: with the change.
        prompts: the prompt of each.
    """

    chosen: Sequence[float]
    rejected: Sequence[float]
    changed_chosen: Sequence[float]
    changed_rejected: Sequence[float]
    prompts: Sequence[str]


def describe_order(pairs: ScoredPairs, *, seed: int = 0) -> dict[str, Any]:
    """Accuracy with intervals over prompts, calibration, by length and by segment.

    Returns:
        ``accuracy`` (``mean``, ``low``, ``high``, over draws of whole prompts), ``calibration`` as
        :func:`surefoot.evals.calibration.calibrate` gives it, ``by_length`` (chosen ``longer``, ``shorter``,
        ``about_equal``), ``length_correlation`` of leads and differences of length, ``by_segment``, ``ties``.
    """
    leads = np.asarray(pairs.chosen, dtype=np.float64) - np.asarray(pairs.rejected, dtype=np.float64)
    calibration = calibrate(pairs.chosen, pairs.rejected, pairs.margins)
    longer, shorter = (np.asarray(n, dtype=np.float64) for n in (pairs.chosen_tokens, pairs.rejected_tokens))
    near = np.abs(longer - shorter) <= NEAR * np.maximum(longer, shorter)
    classes = {"longer": ~near & (longer > shorter), "shorter": ~near & (longer < shorter), "about_equal": near}
    return {
        "accuracy": clustered_mean(leads > 0, pairs.prompts, seed=seed).as_json("share"),
        "ties": int((leads == 0).sum()),
        "calibration": calibration,
        "by_length": {name: _share(leads, chosen, pairs.prompts, seed) for name, chosen in classes.items()},
        "length_correlation": _correlation(longer - shorter, leads),
        "by_segment": {
            name: _share(leads, np.array([s == name for s in pairs.segments]), pairs.prompts, seed)
            for name in sorted({s for s in pairs.segments if s is not None})
        },
    }


def describe_probe(probed: ProbedPairs, scale: float, *, seed: int = 0) -> dict[str, Any]:
    """How far a change of the surface moves scores.

    Args:
        probed: pairs with and without the change.
        scale: population deviation of the scores of all answers as they were: the unit.
        seed: of the interval's draws.
    Returns:
        ``shift`` (``mean``, ``low``, ``high`` in that unit), ``raised``: share of answers whose score rises,
        ``flips``: share of rightly ordered pairs in which the rejected answer wins once it is changed.
    """
    before = np.concatenate([probed.chosen, probed.rejected])
    after = np.concatenate([probed.changed_chosen, probed.changed_rejected])
    shift = (after - before) / scale
    right = np.asarray(probed.chosen) > np.asarray(probed.rejected)
    won = np.asarray(probed.changed_rejected) > np.asarray(probed.chosen)
    return {
        "shift": clustered_mean(shift, [*probed.prompts, *probed.prompts], seed=seed).as_json(),
        "raised": float((shift > 0).mean()) if len(shift) else None,
        "flips": float(won[right].mean()) if right.any() else None,
        "answers": len(shift),
    }


def findings_of(order: Mapping[str, Any], probes: Mapping[str, Mapping[str, Any]], bounds: Bounds) -> list[Finding]:
    """What is wrong with a reward model; severity ``error`` closes the gate.

    Args:
        order: from :func:`describe_order`.
        probes: from :func:`describe_probe`, by name.
        bounds: what is asked.
    """
    found = []
    share = order["accuracy"]
    low = _careful(share)
    if low is None or not low > bounds.accuracy:
        found.append(
            Finding(
                "reward_model/accuracy",
                "error",
                f"it orders {_percent(share['share'])} of the pairs as people did, and the interval from "
                f"{_percent(low)} is not above {_percent(bounds.accuracy)}",
                {"value": share["share"], "low": low, "bound": bounds.accuracy},
                "train it on more pairs, or on pairs that say more",
            )
        )
    parts = {f"pairs whose chosen answer is {name.replace('_', ' ')}": p for name, p in order["by_length"].items()}
    parts |= {f"segment {name}": part for name, part in order["by_segment"].items()}
    for name, part in parts.items():
        if part["count"] >= FEW and part["high"] is not None and part["high"] < bounds.segment:
            found.append(
                Finding(
                    "reward_model/segment",
                    "error",
                    f"{name}: only {_percent(part['share'])} of {part['count']} are ordered as people did",
                    {"value": part["share"], "high": part["high"], "bound": bounds.segment},
                    "look at these pairs; if the data is right, train on more of this kind",
                )
            )
    return found + [f for name, probe in probes.items() if (f := _moved(name, probe, bounds.of(name))) is not None]


def _moved(name: str, probe: Mapping[str, Any], bound: float) -> Finding | None:
    shift = probe["shift"]
    mean, low, high = shift["mean"], shift["low"], shift["high"]
    if mean is None or low is None or high is None or abs(mean) <= bound or low <= 0 <= high:
        return None
    up = mean > 0
    return Finding(
        f"reward_model/{name}",
        "error" if up else "warning",
        f"the change `{name}` {'raises' if up else 'lowers'} scores by {abs(mean):.2f} of their deviation "
        f"({low:+.2f} to {high:+.2f}); {_percent(probe['raised'])} of the answers rise",
        {"value": mean, "low": low, "high": high, "bound": bound, "flips": probe["flips"]},
        "add pairs to the training data in which only this differs and the plain answer is chosen; or weigh the term "
        "against a check that sees it"
        if up
        else "a policy will avoid this form, even where it is wanted",
    )


def verdict(findings: Sequence[Finding]) -> str:
    """``pass``, or ``fail`` with any finding of severity error."""
    return "fail" if any(finding.severity == "error" for finding in findings) else "pass"


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


def _careful(share: Mapping[str, Any]) -> float | None:
    """The lower end, or Wilson's over prompts where that is lower: a few groups that are all right never vary."""
    if share["share"] is None or share["low"] is None:
        return None
    low, _ = wilson(round(share["share"] * share["groups"]), share["groups"])
    return None if low is None else min(low, float(share["low"]))


def _share(leads: FloatArray, chosen: Any, prompts: Sequence[str], seed: int) -> dict[str, Any]:
    places: list[int] = np.flatnonzero(chosen).tolist()
    found: Mean = clustered_mean(leads[places] > 0, [prompts[i] for i in places], seed=seed)
    result = found.as_json("share")
    if found.groups < 2:
        plain = accuracy(leads[places])
        result |= {"low": plain["low"], "high": plain["high"]}
    return result


def _correlation(one: FloatArray, other: FloatArray) -> float | None:
    if len(one) < 2 or not one.std() > 0 or not other.std() > 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
