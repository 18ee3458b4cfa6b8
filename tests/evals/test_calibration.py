"""A reward model's calibration: by hand, against plain twins, and its limits."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from surefoot.errors import DataError
from surefoot.evals.calibration import (
    BINS,
    accuracy,
    best_temperature,
    calibrate,
    expected_calibration_error,
    in_parts,
    log_loss,
    wilson,
)


def test_wilson_by_hand() -> None:
    # 8 of 10: (0.8 + z²/20 ± z sqrt(0.016 + z²/400)) / (1 + z²/10), z = 1.96
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 0) == (None, None)
    assert wilson(0, 3)[0] == 0.0 and wilson(3, 3)[1] == 1.0


def test_a_tie_is_wrong() -> None:
    found = accuracy(np.array([1.0, 0.0, -2.0, 3.0]))
    assert (found["pairs"], found["accuracy"]) == (4, 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_the_calibration_error_equals_a_plain_one(seed: int) -> None:
    rng = random.Random(seed)
    leads = [rng.gauss(0.5, 2) for _ in range(60)]
    temperature = rng.uniform(0.5, 3)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for lead in leads:
        p = 1 / (1 + math.exp(-lead / temperature))
        confidence = max(p, 1 - p)
        bins.setdefault(min(int((confidence - 0.5) * 2 * BINS), BINS - 1), []).append((confidence, lead > 0))
    expected = sum(
        abs(sum(right for _, right in inside) - sum(confidence for confidence, _ in inside)) for inside in bins.values()
    ) / len(leads)
    assert expected_calibration_error(np.array(leads), temperature) == pytest.approx(expected, abs=1e-12)


def drawn(temperature: float, count: int = 4000) -> np.ndarray:
    """Leads of a model whose confidence is off by this factor."""
    rng = np.random.default_rng(0)
    size = np.abs(rng.normal(0, 2, count))
    right = rng.random(count) < 1 / (1 + np.exp(-size / temperature))
    return np.where(right, size, -size)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_was_put_in_is_found(temperature: float) -> None:
    leads = drawn(temperature)
    found = best_temperature(leads)
    assert found == pytest.approx(temperature, rel=0.15)
    assert all(log_loss(leads, found) <= log_loss(leads, found * factor) for factor in (0.8, 0.99, 1.01, 1.25))
    assert expected_calibration_error(leads, found) < 0.03


def test_a_temperature_stays_in_bounds() -> None:
    assert best_temperature(np.full(5, 2.0)) == pytest.approx(0.05, rel=1e-3)
    assert best_temperature(np.full(5, -2.0)) == pytest.approx(20.0, rel=1e-3)
    assert best_temperature(np.zeros(5)) == 1.0


def test_parts_hold_every_pair_once_and_keep_equal_values_together() -> None:
    values, leads = np.array([1.0, 2.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0]), np.array([1, 1, -1, 1, 1, -1, 1, 1.0])
    parts = in_parts(values, leads)
    assert sum(part["pairs"] or 0 for part in parts) == 8
    assert [(part["from"], part["to"]) for part in parts] == [(1.0, 1.0), (2.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    assert [part["accuracy"] for part in parts] == [1.0, pytest.approx(2 / 3), 0.5, 1.0]
    assert len(in_parts(np.ones(4), leads[:4])) == 1


def test_what_is_stored() -> None:
    leads = drawn(1.0, 400)
    found = calibrate((leads + 3).tolist(), np.full(400, 3.0).tolist(), [1.0, None] * 200)
    both = np.concatenate([leads + 3, np.full(400, 3.0)])
    assert (found["mean"], found["scale"]) == (pytest.approx(both.mean()), pytest.approx(both.std()))
    assert found["pairs"] == 400 and found["low"] < found["accuracy"] < found["high"]
    assert sum(part["pairs"] for part in found["by_lead"]) == 400
    assert [part["pairs"] for part in found["by_margin"]] == [200], "pairs without a margin are in no part"
    # A confident model is right more often where it is more confident.
    assert found["by_lead"][-1]["accuracy"] > found["by_lead"][0]["accuracy"]
    assert calibrate([1.0, 2.0], [0.0, 3.0])["by_margin"] == []


@pytest.mark.parametrize(("chosen", "rejected"), [([], []), ([1.0], [math.nan]), ([1.0], [])])
def test_what_cannot_be_calibrated_is_refused(chosen: list[float], rejected: list[float]) -> None:
    with pytest.raises(DataError):
        calibrate(chosen, rejected)
