"""Weighted sums of rewards: every term counts as configured, is logged raw, and fails loudly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from surefoot.errors import ConfigError, RewardError
from surefoot.protocols import Reward
from surefoot.records import Rollout, Score
from surefoot.rewards import CompositeReward, Standing
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
        ({"terms": [Fixed("a", [])], "weights": [1.0, 2.0]}, "one weight, one clip and one standing"),
        ({"terms": [Fixed("a", [])], "clips": []}, "one weight, one clip and one standing"),
        ({"terms": [Fixed("a", [])], "standings": []}, "one weight, one clip and one standing"),
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


def missing(name: str) -> Score:
    return Score(None, "nobody has rated it", {name: None, f"{name}_count": 0.0}, missing=True)


def test_a_term_is_centred_scaled_clipped_and_weighted_in_this_order() -> None:
    reward = CompositeReward(
        [Fixed("a", [5.0, 1.0]), Fixed("b", [8.0, 8.0])],
        weights=[2.0, 0.5],
        clips=[1.0, None],
        standings=[Standing(center=3.0, scale=4.0), Standing(scale=2.0)],
    )
    first, second = reward.score(rollout_of(["x", "y"]))
    assert first.value == 2.0 * ((5.0 - 3.0) / 4.0) + 0.5 * (8.0 / 2.0)
    assert second.value == 2.0 * ((1.0 - 3.0) / 4.0) + 0.5 * (8.0 / 2.0)
    assert first.terms == {"a": 5.0, "b": 8.0}, "logged as the term said it"
    clipped = CompositeReward([Fixed("a", [9.0])], clips=[1.0], standings=[Standing(center=3.0, scale=4.0)])
    assert clipped.score(rollout_of(["x"]))[0].value == 1.0


def test_rewards_per_token_are_scaled_and_cannot_be_centred() -> None:
    tokens = [by_token("t", 0.0, 0.0, 1.0, -4.0)]
    reward = CompositeReward([Fixed("t", tokens)], clips=[1.0], standings=[Standing(scale=2.0)])
    assert reward.score(rollout_of(["x"]))[0].token_rewards == (0.0, 0.0, 0.5, -1.0)
    with pytest.raises(RewardError, match="its center is not 0, which most tokens get; got: 1"):
        CompositeReward([Fixed("t", tokens)], standings=[Standing(center=1.0)]).score(rollout_of(["x"]))


def test_notes_are_put_together_by_term() -> None:
    scores = [Score(0.0, None, {n: 0.0}, note=f"why {n}") for n in "ab"] + [Score(1.0, None, {"c": 1.0})]
    terms = [Fixed(n, [score]) for n, score in zip("abc", scores, strict=True)]
    assert CompositeReward(terms).score(rollout_of(["x"]))[0].note == "a: why a; b: why b"
    assert CompositeReward([*terms, Fixed("d", [None])]).score(rollout_of(["x"]))[0].note == "a: why a; b: why b"
    assert CompositeReward(terms[2:]).score(rollout_of(["x"]))[0].note is None


def test_a_missing_term_fails_the_row_unless_something_else_is_said() -> None:
    reward = CompositeReward([Fixed("h", [missing("h")]), Fixed("q", [2.0])])
    (score,) = reward.score(rollout_of(["x"]))
    assert (score.value, score.reason) == (None, "h: nobody has rated it")


def test_a_skipped_term_counts_like_one_at_its_center_and_leaves_the_other_weights_alone() -> None:
    def reward(*scores: float | Score) -> Score:
        terms = [Fixed("h", [scores[0]]), Fixed("q", [2.0])]
        standings = [Standing(center=3.0, missing="skip"), Standing()]
        return CompositeReward(terms, weights=[4.0, 0.5], standings=standings).score(rollout_of(["x"]))[0]

    assert reward(missing("h")).value == reward(3.0).value == 0.5 * 2.0
    assert reward(missing("h")).terms == {"h": None, "h_count": 0.0, "q": 2.0}
    assert reward(5.0).value == 4.0 * 2.0 + 1.0
    assert reward(Score(None, "broken", {"h": None})).reason == "h: broken", "a fault is not a missing rating"


def test_a_stand_in_counts_by_its_own_center_scale_and_clip_with_the_weight_of_the_missing_term() -> None:
    terms = [Fixed("h", [missing("h"), 5.0]), Fixed("q", [9.0, 9.0])]
    standings = [Standing(center=3.0, missing="model", stand_in="q"), Standing(center=1.0, scale=2.0)]
    reward = CompositeReward(terms, weights=[10.0, 1.0], clips=[None, 3.0], standings=standings)
    first, second = reward.score(rollout_of(["x", "y"]))
    assert first.value == (10.0 + 1.0) * 3.0
    assert second.value == 10.0 * 2.0 + 1.0 * 3.0
    failed = CompositeReward([terms[0], Fixed("q", [None, None])], standings=standings).score(rollout_of(["x", "y"]))
    assert failed[0].reason == "q: a reason"


def test_a_row_of_which_every_term_is_skipped_has_failed() -> None:
    reward = CompositeReward([Fixed("h", [missing("h")])], standings=[Standing(missing="skip")])
    assert reward.score(rollout_of(["x"]))[0].reason == "no term has anything to say: all were left out"


def test_a_stand_in_must_be_another_term() -> None:
    for name in ("h", "gone", None):
        with pytest.raises(ConfigError, match="the stand-in of reward term h is no other term"):
            CompositeReward([Fixed("h", [1.0])], standings=[Standing(missing="model", stand_in=name)])


def test_a_weight_of_zero_takes_a_term_out_of_the_sum_and_leaves_it_in_the_log() -> None:
    terms = [Fixed("a", [1.0]), Fixed("b", [7.0])]
    with_b = CompositeReward(terms, weights=[1.0, 0.5]).score(rollout_of(["x"]))[0]
    without = CompositeReward(terms, weights=[1.0, 0.0]).score(rollout_of(["x"]))[0]
    assert (with_b.value, without.value) == (4.5, 1.0)
    assert with_b.terms == without.terms
