"""What is said of a reward model, from scores that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefoot.errors import ConfigError, DataError
from surefoot.evals.gate import check_report
from surefoot.evals.reward_report import (
    Bounds,
    ProbedPairs,
    ScoredPairs,
    describe_order,
    describe_probe,
    deviation,
    findings_of,
    verdict,
)

N = 200
CLEAN = {"shift": {"mean": 0.0, "low": -0.1, "high": 0.1}, "raised": 0.5, "flips": 0.0}


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
    names = [f.name for f in findings_of(found, {}, Bounds())]
    assert names.count("reward_model/segment") == 2, "the shorter ones, and their segment"


def test_a_good_model_passes_and_a_coin_does_not() -> None:
    generator = np.random.default_rng(1)
    none = np.zeros(N, dtype=int)
    good = describe_order(pairs(np.where(generator.random(N) < 0.8, 1.0, -1.0), none))
    assert findings_of(good, {"length": CLEAN}, Bounds()) == []
    assert [f.name for f in findings_of(good, {}, Bounds(accuracy=0.9))] == ["reward_model/accuracy"]
    coin = describe_order(pairs(np.where(generator.random(N) < 0.5, 1.0, -1.0), none))
    assert verdict(findings_of(coin, {}, Bounds())) == "fail"


def test_a_handful_of_pairs_that_are_all_right_is_not_enough() -> None:
    for count, right, passes in ((3, 3, False), (7, 6, False), (40, 38, True)):
        leads = np.array([1.0] * right + [-1.0] * (count - right))
        found = findings_of(describe_order(pairs(leads, np.zeros(count, dtype=int))), {}, Bounds())
        assert (verdict(found) == "pass") is passes, (count, found)


def test_a_probe_by_its_numbers() -> None:
    chosen, rejected = np.array([2.0, 1.0, 0.0, -1.0]), np.array([0.0, 0.0, 1.0, 0.0])
    moved = ProbedPairs(
        chosen.tolist(), rejected.tolist(), (chosen + 1).tolist(), (rejected + 1.5).tolist(), ["a", "b", "c", "d"]
    )
    found = describe_probe(moved, scale=2.0)
    assert found["shift"]["mean"] == pytest.approx((1.0 + 1.5) / 2 / 2.0)
    assert (found["raised"], found["flips"], found["answers"]) == (1.0, 0.5, 8)
    assert found["shift"]["groups"] == 4, "both answers of a prompt are drawn together"


def test_a_rise_is_an_error_a_fall_a_warning_and_noise_is_nothing() -> None:
    order = describe_order(pairs(np.ones(N), np.zeros(N, dtype=int)))

    def found(mean: float, low: float, high: float, **bounds: Any) -> list[str]:
        probe = {"shift": {"mean": mean, "low": low, "high": high}, "raised": 0.9, "flips": 0.1}
        return [f"{f.name} {f.severity}" for f in findings_of(order, {"length": probe}, Bounds(**bounds))]

    assert found(0.4, 0.3, 0.5) == ["reward_model/length error"]
    assert found(-0.4, -0.5, -0.3) == ["reward_model/length warning"]
    assert found(0.2, 0.1, 0.3) == found(0.4, -0.1, 0.9) == []
    assert found(0.4, 0.3, 0.5, shifts={"length": 0.5}) == found(0.4, 0.3, 0.5, shift=0.5) == []
    assert found(0.2, 0.1, 0.3, shift=0.1) == ["reward_model/length error"]


def test_scores_that_are_all_the_same_measure_nothing() -> None:
    with pytest.raises(DataError, match="the same score"):
        deviation([1.0, 1.0], [1.0, 1.0])
    assert deviation([1.0], [-1.0]) == 1.0


def test_the_gate(tmp_path: Path) -> None:
    file = tmp_path / "report.json"

    def refused(**changes: Any) -> str:
        report = {"verdict": "pass", "model": {"sha256": "a" * 64}, "findings": []} | changes
        file.write_text(json.dumps(report), encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            check_report(tmp_path, model="rm", digest="a" * 64)
        return str(caught.value)

    with pytest.raises(ConfigError, match="there is no report"):
        check_report(file, model="rm", digest="a")
    finding = {"severity": "error", "message": "it counts words"}
    assert "it counts words" in refused(verdict="fail", findings=[finding])
    assert "another reward model" in refused(model={"sha256": "b" * 64})
    assert "cannot be read" in refused(model=[])
    file.write_text('{"verdict": "pass", "model": {"sha256": "aa"}, "findings": []}', encoding="utf-8")
    assert check_report(file, model="rm", digest="aa")["verdict"] == "pass"
