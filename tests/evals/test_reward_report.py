"""What is said of a reward model, from scores that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.errors import DataError
from surefoot.evals.reward_report import ProbedPairs, ScoredPairs, describe_order, describe_probe, deviation

N = 200


def pairs(leads: np.ndarray[Any, Any], longer: np.ndarray[Any, Any], segments: list[str] | None = None) -> ScoredPairs:
    count = len(leads)
    return ScoredPairs(
        chosen=leads.tolist(),
        rejected=[0.0] * count,
        chosen_tokens=(20 + 10 * longer).tolist(),
        rejected_tokens=[20] * count,
        prompts=[f"p{i}" for i in range(count)],
        margins=[None] * count,
        segments=list(segments or [None] * count),  # type: ignore[list-item]
    )


def test_the_order_by_length_and_by_segment() -> None:
    generator = np.random.default_rng(0)
    longer = generator.integers(-1, 2, N)
    leads = np.where(longer > 0, 1.0, np.where(longer < 0, -1.0, generator.choice([-0.5, 0.5], N)))
    segments = ["short" if n < 0 else "other" for n in longer]
    found = describe_order(pairs(leads, longer, segments))
    assert found["by_length"]["longer"]["share"] == 1.0 and found["by_length"]["shorter"]["share"] == 0.0
    assert 0.3 < found["by_length"]["about_equal"]["share"] < 0.7
    assert [found["by_length"][k]["count"] for k in ("longer", "shorter", "about_equal")] == [
        int((longer == k).sum()) for k in (1, -1, 0)
    ]
    assert found["by_segment"]["short"] == found["by_length"]["shorter"]
    assert found["length_correlation"] == pytest.approx(np.corrcoef(10 * longer, leads)[0, 1])
    assert found["accuracy"]["share"] == found["calibration"]["accuracy"] == pytest.approx((leads > 0).mean())
    assert found["ties"] == 0


def test_ties_are_counted_and_wrong() -> None:
    found = describe_order(pairs(np.array([0.0, 1.0, 1.0, 0.0]), np.zeros(4, dtype=int)))
    assert (found["ties"], found["accuracy"]["share"]) == (2, 0.5)


def test_a_probe_by_its_numbers() -> None:
    chosen, rejected = np.array([2.0, 1.0, 0.0, -1.0]), np.array([0.0, 0.0, 1.0, 0.0])
    plain = chosen.tolist(), rejected.tolist()
    moved = ProbedPairs(*plain, *plain, (chosen + 1).tolist(), (rejected + 1.5).tolist(), ["a", "b", "c", "d"])
    found = describe_probe(moved, scale=2.0)
    assert found["shift"]["mean"] == pytest.approx((1.0 + 1.5) / 2 / 2.0)
    assert (found["raised"], found["flips"], found["answers"]) == (1.0, 0.5, 8)
    assert found["shift"]["groups"] == 4, "both answers of a prompt are drawn together"
    assert found["flips_low"] < 0.5 < found["flips_high"] and found["raised_low"] < found["raised_high"] == 1.0


def test_a_change_may_be_compared_with_another_one() -> None:
    """As a stated view with the other view: what both do to scores is no shift."""
    plain, before = ([2.0, 1.0], [0.0, 0.0]), ([5.0, 4.0], [3.0, 3.0])
    same = ProbedPairs(*plain, *before, *before, ["a", "b"])
    assert describe_probe(same, scale=1.0)["shift"]["mean"] == 0.0
    assert describe_probe(same, scale=1.0)["flips"] == 0.0
    agreeing = ProbedPairs(*plain, *before, [6.0, 5.0], [4.0, 5.0], ["a", "b"])
    found = describe_probe(agreeing, scale=1.0)
    assert (found["shift"]["mean"], found["flips"]) == (pytest.approx(1.25), 0.5)
    nothing = describe_probe(ProbedPairs([], [], [], [], [], [], []), scale=1.0)
    assert (nothing["answers"], nothing["shift"]["mean"], nothing["raised"], nothing["flips"]) == (0, None, None, None)


def test_scores_that_are_all_the_same_measure_nothing() -> None:
    with pytest.raises(DataError, match="the same score"):
        deviation([1.0, 1.0], [1.0, 1.0])
    assert deviation([1.0], [-1.0]) == 1.0
