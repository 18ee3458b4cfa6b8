"""Means of grouped values: against a slow twin, and against what is known of their spread."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.evals.clustered import clustered_mean


def slow(values: list[float], groups: list[str], draws: int) -> tuple[float, float]:
    """Groups drawn one by one."""
    generator = np.random.default_rng(1)
    names = sorted(set(groups))
    by_group = {name: [v for v, g in zip(values, groups, strict=True) if g == name] for name in names}
    means = []
    for _ in range(draws):
        drawn = [by_group[names[int(i)]] for i in generator.integers(0, len(names), len(names))]
        means.append(np.mean(np.concatenate(drawn)))
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def test_the_interval_is_that_of_groups_drawn_one_by_one() -> None:
    generator = np.random.default_rng(0)
    groups = [f"g{i}" for i in generator.integers(0, 30, 200)]
    offsets = {g: generator.normal() for g in sorted(set(groups))}
    values = [offsets[g] + 0.3 * generator.normal() for g in groups]
    found = clustered_mean(values, groups)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert (found.count, found.groups) == (200, len(set(groups)))
    assert (found.low, found.high) == pytest.approx(slow(values, groups, 4000), abs=0.03)
    alone = clustered_mean(values, range(200))
    assert found.low is not None and found.high is not None and alone.low is not None and alone.high is not None
    assert found.high - found.low > 1.5 * (alone.high - alone.low), "values of a group count as one"


def test_what_cannot_have_an_interval() -> None:
    assert clustered_mean([], []).as_json("share") == {
        "share": None,
        "low": None,
        "high": None,
        "count": 0,
        "groups": 0,
    }
    one = clustered_mean([1.0, 2.0], ["a", "a"])
    assert (one.mean, one.low, one.high, one.above, one.below) == (1.5, None, None, False, False)


def test_above_and_below() -> None:
    assert clustered_mean([1.0, 1.1, 0.9], "abc").above
    assert clustered_mean([-1.0, -1.1, -0.9], "abc").below
    mixed = clustered_mean([-1.0, 1.0] * 20, range(40))
    assert not mixed.above and not mixed.below
