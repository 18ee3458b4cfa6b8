"""How well a reward model's scores order held-out pairs, and how far its confidence can be believed. Torch-free.

A pair's lead d is the score of its chosen answer minus that of the other; σ(d) is the probability that the model gives
to the order people gave. A tie counts as wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from surefoot.errors import DataError
from surefoot.records import FloatArray

BINS: Final = 10
PARTS: Final = 4
TEMPERATURES: Final = (0.05, 20.0)
Z: Final = 1.959963984540054
_TRIES: Final = 60


def wilson(right: float, count: float) -> tuple[float | None, float | None]:
    """95 % interval of a share (Wilson 1927); (None, None) without any count.

    Args:
        right, count: whole numbers, or what values that are not independent amount to.
    """
    if count == 0:
        return None, None
    share, z2 = right / count, Z * Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    # Rounding must not move what is exact.
    return 0.0 if right == 0 else centre - half, 1.0 if right == count else centre + half


def accuracy(leads: FloatArray) -> dict[str, float | int | None]:
    """Pairs, the share that is ordered rightly, and its interval."""
    right, count = int((leads > 0).sum()), len(leads)
    low, high = wilson(right, count)
    return {"pairs": count, "accuracy": right / count if count else None, "low": low, "high": high}


def log_loss(leads: FloatArray, temperature: float = 1.0) -> float:
    """Mean of −log σ(d / T)."""
    return float(np.logaddexp(0.0, -leads / temperature).mean())


def expected_calibration_error(leads: FloatArray, temperature: float = 1.0) -> float:
    """Mean over pairs of the gap between confidence and accuracy in ten equal bins of confidence (Guo et al. 2017).

    Confidence is max(σ(d / T), 1 − σ(d / T)), between one half and 1.
    """
    confidence = 1.0 / (1.0 + np.exp(-np.abs(leads) / temperature))
    bins = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
    right = leads > 0
    gaps = [
        (bins == b).sum() * abs(right[bins == b].mean() - confidence[bins == b].mean())
        for b in range(BINS)
        if (bins == b).any()
    ]
    return float(sum(gaps) / len(leads))


def best_temperature(leads: FloatArray) -> float:
    """The T between 0.05 and 20 with the lowest log loss; 1 when the leads are all 0.

    The log loss is convex in 1/T, so a golden-section search on a logarithmic scale finds it.
    """
    if not np.any(leads):
        return 1.0
    low, high = (math.log(t) for t in TEMPERATURES)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_TRIES):
        a, b = high - golden * (high - low), low + golden * (high - low)
        if log_loss(leads, math.exp(a)) <= log_loss(leads, math.exp(b)):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)


def calibrate(
    chosen: Sequence[float], rejected: Sequence[float], margins: Sequence[float | None] | None = None
) -> dict[str, Any]:
    """What is stored with a reward model.

    Args:
        chosen, rejected: scores of N pairs.
        margins: by how much the chosen answers are better, where the data says it.
    Returns:
        ``mean`` and ``scale`` (population deviation) of all scores; ``accuracy`` with its interval, overall, in
        quarters of the model's own lead (``by_lead``) and of the data's margin (``by_margin``); ``log_loss`` and
        ``expected_calibration_error``, also after dividing leads by ``temperature``.
    Raises:
        DataError: there is no pair, or a score that is not finite.
    """
    good, bad = np.asarray(chosen, dtype=np.float64), np.asarray(rejected, dtype=np.float64)
    both = np.concatenate([good, bad])
    if len(good) == 0 or len(good) != len(bad) or not np.isfinite(both).all():
        raise DataError("a reward model is calibrated on pairs with finite scores", got=f"{len(good)} pairs")
    leads = good - bad
    temperature = best_temperature(leads)
    known = [i for i, margin in enumerate(margins or ()) if margin is not None]
    by_margin = np.array([(margins or ())[i] for i in known], dtype=np.float64)
    return {
        **accuracy(leads),
        "mean": float(both.mean()),
        "scale": float(both.std()),
        "lead_mean": float(leads.mean()),
        "log_loss": log_loss(leads),
        "expected_calibration_error": expected_calibration_error(leads),
        "temperature": temperature,
        "log_loss_at_temperature": log_loss(leads, temperature),
        "expected_calibration_error_at_temperature": expected_calibration_error(leads, temperature),
        "by_lead": in_parts(np.abs(leads), leads),
        "by_margin": in_parts(by_margin, leads[known]) if known else [],
    }


def in_parts(values: FloatArray, leads: FloatArray) -> list[dict[str, float | int | None]]:
    """Accuracy in up to four parts of about equal size, by rising value; equal values stay together."""
    order = np.argsort(values, kind="stable")
    edges = sorted({*(values[order[len(values) * part // PARTS]] for part in range(PARTS)), values.max() + 1.0})
    parts = []
    for low, high in pairwise(edges):
        chosen = (values >= low) & (values < high)
        found = accuracy(leads[chosen])
        parts.append({"from": float(values[chosen].min()), "to": float(values[chosen].max()), **found})
    return parts
