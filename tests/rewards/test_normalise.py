"""Normalised scores: statistics are estimated, stored and reported, never assumed."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest

from surefoot.errors import CheckpointError, RewardError
from surefoot.rewards import RunningMoments, ScoreNormaliser

REFERENCE = [2.0, 4.0, 6.0, 8.0]


def test_alg_30_scores_are_scaled_by_the_reference_scores_and_the_numbers_reported() -> None:
    normaliser = ScoreNormaliser("reference")
    normaliser.update(REFERENCE)
    assert normaliser.apply([7.0])[0] == pytest.approx(0.89442719, abs=1e-8)
    gain = 1 / normaliser.metrics()["normaliser/std"]
    assert gain == pytest.approx(0.4472136, abs=1e-7)
    assert -normaliser.metrics()["normaliser/mean"] * gain == pytest.approx(-2.23606798, abs=1e-8)


def test_alg_30_without_statistics_nothing_is_normalised_by_0_and_1() -> None:
    normaliser = ScoreNormaliser("reference")
    assert not normaliser.ready
    assert normaliser.metrics() == {"normaliser/mean": None, "normaliser/std": None}
    with pytest.raises(RewardError, match="without statistics"):
        normaliser.apply([7.0])
    normaliser.update([None, None])
    with pytest.raises(RewardError, match="without statistics"):
        normaliser.apply([7.0])


def test_reference_statistics_are_those_of_the_first_scores_and_stay() -> None:
    normaliser = ScoreNormaliser("reference")
    assert normaliser.transform([None]) == [None]
    first = normaliser.transform([*REFERENCE, None])
    assert first[-1] is None and sum(x for x in first if x is not None) == pytest.approx(0.0, abs=1e-12)
    normaliser.update([100.0, 200.0])
    assert normaliser.transform([7.0])[0] == pytest.approx(2 / math.sqrt(5))


def test_running_statistics_take_in_every_step_and_leave_out_failures() -> None:
    normaliser = ScoreNormaliser("running")
    seen: list[float] = []
    for batch in ([1.0, 2.0, None], [5.0], [-3.0, 0.5, 8.0]):
        seen += [x for x in batch if x is not None]
        out = normaliser.transform(batch)
        mean, std = np.mean(seen), np.std(seen)
        expected = [None if x is None else pytest.approx((x - mean) / std if std else 0.0) for x in batch]
        assert out == expected
    before = normaliser.state()
    normaliser.apply([50.0])
    assert normaliser.state() == before


def test_moments_do_not_cancel_and_do_not_depend_on_the_batches() -> None:
    draw = random.Random(1)
    values = [1e9 + draw.random() for _ in range(3000)]
    whole, parts = RunningMoments(), RunningMoments()
    whole.update(values)
    while values:
        size = draw.randint(1, 50)
        parts.update(values[:size])
        values = values[size:]
        parts.update([])
    assert whole.std == pytest.approx(1 / math.sqrt(12), rel=0.05)
    assert parts.std == pytest.approx(whole.std, rel=1e-6)
    assert (parts.count, parts.mean) == (3000, pytest.approx(whole.mean, rel=1e-15))


@pytest.mark.parametrize("values", [[3.0], [0.1] * 7, [0.0, 0.0], [1e9 / 3] * 3])
def test_without_spread_scores_are_only_centred(values: list[float]) -> None:
    normaliser = ScoreNormaliser("running")
    assert normaliser.transform(values[:1]) + normaliser.transform(values[1:]) == pytest.approx([0.0] * len(values))
    assert normaliser.moments.std == 0.0
    assert normaliser.apply([values[0] + 2.0]) == pytest.approx([2.0], rel=1e-6)


@pytest.mark.parametrize("mode", ["running", "reference"])
def test_a_resumed_run_normalises_as_the_uninterrupted_one(mode: str) -> None:
    first = ScoreNormaliser(mode)  # type: ignore[arg-type]
    first.update(REFERENCE)
    resumed = ScoreNormaliser(mode)  # type: ignore[arg-type]
    resumed.load(json.loads(json.dumps(first.state())))
    assert first.transform([9.0, 1.0]) == resumed.transform([9.0, 1.0])
    assert first.state() == resumed.state()


def test_statistics_of_another_kind_or_without_numbers_are_refused() -> None:
    with pytest.raises(CheckpointError, match="of another kind; got: running; allowed: reference"):
        ScoreNormaliser("reference").load(ScoreNormaliser("running").state())
    with pytest.raises(CheckpointError, match="cannot be read"):
        ScoreNormaliser("running").load({"mode": "running", "count": 3})
