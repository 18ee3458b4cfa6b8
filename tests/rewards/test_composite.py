"""Weighted sums of rewards: every term counts as configured, is logged raw, and fails loudly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from surefoot.errors import ConfigError, RewardError
from surefoot.protocols import Reward
from surefoot.records import Rollout, Score
from surefoot.rewards import CompositeReward
from tests.rewards.conftest import Make, rollout_of


class Fixed:
    """A term that gives the scores it was made with."""

    def __init__(self, name: str, scores: Sequence[float | Score | None]) -> None:
        self.name, self.closed = name, 0
        self.scores = [
            s if isinstance(s, Score) else Score(s, None if s is not None else "a reason", {name: s}) for s in scores
        ]

    def score(self, rollout: Rollout) -> list[Score]:
        return self.scores

    def close(self) -> None:
        self.closed += 1


def by_token(name: str, *tokens: float) -> Score:
    return Score(0.0, None, {name: math.fsum(tokens)}, tokens)


def test_terms_are_clipped_then_weighted_then_summed_and_logged_raw() -> None:
    reward = CompositeReward(
        [Fixed("a", [5.0, -1.0]), Fixed("b", [0.5, -9.0]), Fixed("c", [7.0, 0.0])],
        weights=[2.0, -1.0, 0.0],
        clips=[3.0, (-2.0, 0.25), None],
    )
    first, second = reward.score(rollout_of(["x", "y"]))
    assert isinstance(reward, Reward)
    assert (first.value, second.value) == (2 * 3.0 - 0.25, 2 * -1.0 + 2.0)
    assert first.terms == {"a": 5.0, "b": 0.5, "c": 7.0}
    assert second.terms == {"a": -1.0, "b": -9.0, "c": 0.0}
    assert first.token_rewards is None


def test_a_failed_term_fails_the_row_with_its_name_and_keeps_the_other_terms_in_the_log() -> None:
    bad = Score(None, "timed out", {"b": None, "b_part": 2.0})
    reward = CompositeReward([Fixed("a", [1.0, None]), Fixed("b", [bad, None]), Fixed("c", [3.0, 3.0])])
    first, second = reward.score(rollout_of(["x", "y"]))
    assert (first.value, first.reason) == (None, "b: timed out")
    assert first.terms == {"a": 1.0, "b": None, "b_part": 2.0, "c": 3.0}
    assert (second.value, second.reason) == (None, "a: a reason; b: a reason")


def test_a_term_of_weight_zero_that_fails_is_not_hidden() -> None:
    reward = CompositeReward([Fixed("a", [1.0]), Fixed("b", [None])], weights=[1.0, 0.0])
    assert reward.score(rollout_of(["x"]))[0].reason == "b: a reason"


def test_rewards_per_token_are_weighted_and_added_by_position() -> None:
    tokens = [by_token("t", 0.0, 0.0, 1.0, -4.0)]
    more = [by_token("u", 0.0, 0.0, 0.5, 0.5)]
    reward = CompositeReward(
        [Fixed("s", [3.0]), Fixed("t", tokens), Fixed("u", more)], weights=[1.0, 0.5, 2.0], clips=[None, 2.0, None]
    )
    score = reward.score(rollout_of(["x"]))[0]
    assert score.value == 3.0
    assert score.token_rewards == (0.0, 0.0, 0.5 + 1.0, -1.0 + 1.0)
    assert score.terms == {"s": 3.0, "t": -3.0, "u": 1.0}


def test_clipping_does_not_invent_rewards_for_tokens_that_got_none() -> None:
    with pytest.raises(RewardError, match="leaves out 0"):
        CompositeReward([Fixed("t", [by_token("t", 0.0, 0.0, 1.0, 0.0)])], clips=[(0.5, 1.0)]).score(rollout_of(["x"]))


def test_a_sum_that_overflows_has_failed() -> None:
    reward = CompositeReward([Fixed("a", [1e308])], weights=[10.0])
    assert reward.score(rollout_of(["x"]))[0].reason == "the weighted sum is too large for a number"
    reward = CompositeReward([Fixed("a", [by_token("a", 0.0, 0.0, 1e308, 0.0)])], weights=[-10.0])
    assert reward.score(rollout_of(["x"]))[0].failed


@pytest.mark.parametrize("returned", [[1.0], [1.0, 2.0, 3.0]])
def test_a_term_with_the_wrong_number_of_scores_is_an_error(returned: list[float]) -> None:
    with pytest.raises(RewardError, match=f"term a returned the wrong number.*{len(returned)} for 2"):
        CompositeReward([Fixed("a", returned)]).score(rollout_of(["x", "y"]))


def test_two_terms_may_not_be_logged_under_one_name() -> None:
    named = Score(1.0, None, {"a": 1.0, "a_b": 1.0})
    with pytest.raises(RewardError, match="under one name; got: a_b"):
        CompositeReward([Fixed("a", [named]), Fixed("a_b", [2.0])]).score(rollout_of(["x"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"terms": []}, "at least one term"),
        ({"terms": [Fixed("a", []), Fixed("a", [])]}, "the same name"),
        ({"terms": [Fixed("a", [])], "weights": [1.0, 2.0]}, "one weight and one clip"),
        ({"terms": [Fixed("a", [])], "clips": []}, "one weight and one clip"),
        ({"terms": [Fixed("a", [])], "clips": [(1.0, 0.0)]}, "clip of reward term a is no interval"),
        ({"terms": [Fixed("a", [])], "clips": [-1.0]}, "clip of reward term a is no interval"),
    ],
)
def test_what_makes_no_sum_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CompositeReward(**options)  # type: ignore[arg-type]


def test_every_term_is_closed_even_if_one_cannot_be() -> None:
    class Broken(Fixed):
        def close(self) -> None:
            raise OSError("stuck")

    last = Fixed("b", [])
    with pytest.raises(OSError, match="stuck"):
        CompositeReward([Broken("a", []), last]).close()
    assert last.closed == 1


def test_functions_of_all_kinds_in_one_sum(make: Make) -> None:
    terms = [
        make("def f(prompts, completions): return [{'one': 1.0, 'two': 2.0}] * len(completions)", name="named"),
        make("def f(completions, completion_ids): return [[1.0] * len(i) for i in completion_ids]", name="tokens"),
        make("def f(prompts, completions): return [None if c == 'x' else 4.0 for c in completions]", name="plain"),
    ]
    good, bad = CompositeReward(terms, weights=[1.0, 0.5, 2.0]).score(rollout_of(["ab", "x"]))
    assert good.value == 3.0 + 8.0
    assert good.token_rewards == (0.0, 0.0, 0.5, 0.5, 0.5)
    assert good.terms == {"named": 3.0, "named_one": 1.0, "named_two": 2.0, "tokens": 3.0, "plain": 4.0}
    assert (bad.value, bad.reason) == (None, "plain: returned None")
