"""Means and shares of grouped values: against slow twins, and against what is known of their spread."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.evals.calibration import wilson
from surefoot.evals.clustered import clustered_mean, clustered_share
from surefoot.evals.student import student_t_975


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


def slow_share(hits: list[bool], groups: list[str]) -> tuple[float | None, float | None]:
    """Wilson's interval at the effective number, group by group."""
    share, total, names = sum(hits) / len(hits), len(hits), sorted(set(groups))
    squares = 0.0
    for name in names:
        inside = [hit for hit, group in zip(hits, groups, strict=True) if group == name]
        squares += (sum(inside) - share * len(inside)) ** 2
    k = len(names)
    variance = k / (k - 1) * squares / total**2
    independent = min(total, share * (1 - share) / variance)
    effective = independent * (1.959963984540054 / student_t_975(k - 1)) ** 2
    return wilson(share * effective, effective)


def test_a_share_of_grouped_values_equals_a_plain_one() -> None:
    generator = np.random.default_rng(2)
    groups = [f"g{i}" for i in generator.integers(0, 25, 150)]
    tends = {g: generator.random() for g in sorted(set(groups))}
    hits = [bool(generator.random() < tends[g]) for g in groups]
    found = clustered_share(hits, groups)
    assert found.mean == pytest.approx(np.mean(hits)) and (found.count, found.groups) == (150, len(set(groups)))
    assert (found.low, found.high) == pytest.approx(slow_share(hits, groups), abs=1e-12)
    alone = wilson(sum(hits), 150)
    assert found.low is not None and found.high is not None and alone[0] is not None and alone[1] is not None
    assert found.high - found.low > 1.5 * (alone[1] - alone[0])


def test_values_of_their_own_have_wilsons_interval() -> None:
    hits = [True] * 8 + [False] * 2
    found = clustered_share(hits, range(10))
    assert (found.low, found.high) == wilson(8, 10)


def test_a_share_without_any_miss_is_not_certain() -> None:
    """Draws of groups would say 1 to 1; three prompts that are right are no proof."""
    found = clustered_share([True] * 30, [i // 10 for i in range(30)])
    assert (found.low, found.high) == wilson(3, 3)
    assert found.low is not None and found.low < 0.5
    assert clustered_share([True] * 30, ["a"] * 30).low is None
    assert clustered_share([], []).as_json("share")["share"] is None
    two = clustered_share([True] * 40 + [False] * 10 + [True] * 40 + [False] * 10, [i // 50 for i in range(100)])
    assert two.low is not None and two.low < 0.35, "two groups that agree are two values"


def test_the_interval_of_a_share_holds_the_truth() -> None:
    """Groups of four that are all right or all wrong, 75 % of them right: 95 % of the intervals hold it, about."""
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        hits = np.repeat(generator.random(40) < 0.75, 4)
        found = clustered_share(hits, np.repeat(np.arange(40), 4).tolist())
        assert found.low is not None and found.high is not None
        held += found.low <= 0.75 <= found.high
    assert 0.92 < held / 400 < 0.985
