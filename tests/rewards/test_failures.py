"""A failure stays a failure: it is counted, stops the run past its limit, and never enters a mean."""

from __future__ import annotations

import pytest

from surefoot.config.sections import RewardSection
from surefoot.errors import RewardError
from surefoot.records import Score
from surefoot.rewards import check_failures, score_metrics, total


def scores(*values: float | None) -> list[Score]:
    return [Score(v, None if v is not None else "no answer", {"q": v}) for v in values]


def test_srv_02_the_mean_is_over_the_rows_that_have_a_score() -> None:
    metrics = score_metrics(scores(1.0, None, 0.0))
    assert metrics["score/mean"] == 0.5
    assert metrics["score/failed_share"] == pytest.approx(1 / 3)
    assert (metrics["score/std"], metrics["score/min"], metrics["score/max"]) == (0.5, 0.0, 1.0)
    assert metrics["score/q"] == 0.5


def test_a_terms_mean_leaves_out_rows_that_failed_by_another_term() -> None:
    rows = [
        Score(3.0, None, {"a": 1.0, "b": 2.0, "b_x": 4.0}),
        Score(None, "b: no answer", {"a": 9.0, "b": None}),
        Score(5.0, None, {"a": 2.0, "b": 3.0}),
    ]
    metrics = score_metrics(rows)
    assert (metrics["score/a"], metrics["score/b"], metrics["score/b_x"]) == (1.5, 2.5, 4.0)
    assert metrics["score/mean"] == 4.0


def test_rewards_per_token_are_part_of_the_score() -> None:
    row = Score(1.0, None, {"a": 1.0, "t": 0.5}, (0.0, 0.25, 0.25))
    assert total(row) == 1.5 and total(Score(None, "x")) is None
    metrics = score_metrics([row, Score(0.5, None, {"a": 0.5, "t": 0.0}, (0.0, 0.0, 0.0))])
    assert (metrics["score/mean"], metrics["score/max"], metrics["score/t"]) == (1.0, 1.5, 0.25)


def test_without_any_score_metrics_are_undefined_and_not_zero() -> None:
    expected = {"score/mean", "score/std", "score/min", "score/max", "score/q"}
    metrics = score_metrics(scores(None, None))
    assert {k for k, v in metrics.items() if v is None} == expected
    assert metrics["score/failed_share"] == 1.0
    assert set(score_metrics([]).values()) == {None}


@pytest.mark.parametrize(
    ("section", "failed", "of", "stops"),
    [
        ({"max_failures": 0.25}, 1, 4, False),
        ({"max_failures": 0.25}, 2, 4, True),
        ({"max_failures": 0.0}, 1, 100, True),
        ({"max_failures": 1.0}, 3, 4, False),
        ({"max_failures": 1.0}, 4, 4, True),
        ({"max_failures": 1.0, "on_failure": "stop"}, 1, 100, True),
        ({"on_failure": "stop"}, 0, 3, False),
        ({}, 1, 20, False),
        ({}, 2, 20, True),
    ],
)
def test_failures_past_the_limit_stop_the_run(section: dict[str, object], failed: int, of: int, stops: bool) -> None:
    rows = scores(*[None] * failed, *[1.0] * (of - failed))
    if not stops:
        check_failures(rows, RewardSection(**section))
        return
    with pytest.raises(RewardError, match=rf"^{failed} of {of} scores failed; got: {failed} x no answer; allowed: "):
        check_failures(rows, RewardSection(**section))


def test_the_most_frequent_reasons_are_named() -> None:
    reasons = ["rare", "often", "often", "b", "c", "often"]
    with pytest.raises(RewardError, match="3 x often; 1 x rare; 1 x b; and 1 more reasons; allowed: a step needs"):
        check_failures([Score(None, r) for r in reasons], RewardSection(max_failures=1.0))
