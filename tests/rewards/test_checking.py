"""Checks as terms of a reward: notes and reasons, missing columns, processes of their own, and refused options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from surefoot.config.sections import RewardTerm
from surefoot.errors import ConfigError, MissingExtra
from surefoot.protocols import Reward
from surefoot.records import Score
from surefoot.rewards import CheckReward
from surefoot.rewards.checks import Check, Judgement
from tests.rewards.checks.judged import the_gym
from tests.rewards.conftest import Make, rollout_of


def term(target: str, options: dict[str, Any] | None = None, **more: Any) -> RewardTerm:
    return RewardTerm(name="t", kind="check", target=target, options=options or {}, **more)


@pytest.fixture
def isolated() -> Iterator[Any]:
    """Check rewards that are closed in the end."""
    made: list[CheckReward] = []

    def build(*args: Any, **options: Any) -> CheckReward:
        made.append(CheckReward(term(*args), **options))
        return made[-1]

    yield build
    for reward in made:
        reward.close()


def test_right_wrong_and_missing_are_three_things() -> None:
    reward = CheckReward(term("exact"))
    assert isinstance(reward, Reward)
    rollout = rollout_of(["Paris", "Rome", "Paris"], [{"answer": "Paris"}, {"answer": "Paris"}, {}])
    right, wrong, missing = reward.score(rollout)
    assert right == Score(1.0, None, {"t": 1.0})
    assert wrong == Score(0.0, None, {"t": 0.0}, note="'Rome' is not 'Paris'")
    assert missing == Score(None, "the row has nothing in column 'answer'", {"t": None}, missing=True)


def test_tokens_and_prompt_reach_the_check() -> None:
    reward = CheckReward(term("length", {"unit": "tokens", "at_most": 3}))
    assert [score.value for score in reward.score(rollout_of(["ab", "abc"]))] == [1.0, 0.0]  # and the stop token
    reward = CheckReward(term("groundedness", {"sources": "prompt"}))
    assert reward.score(rollout_of(["bridge"], prompt="a bridge"))[0].value == 1.0


def test_columns_are_required_unless_a_row_without_them_is_provided_for() -> None:
    assert CheckReward(term("exact")).required_columns == ("answer",)
    assert CheckReward(term("exact", missing="skip")).required_columns == ()
    assert CheckReward(term("exact", missing="model", stand_in="q")).required_columns == ()
    assert CheckReward(term("toxicity")).required_columns == ()


def test_a_check_that_raises_fails_the_row_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = CheckReward(term("exact"))

    def broken(self: Check[Any], answer: Any) -> Judgement:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(type(reward._check), "judge", broken)
    (score,) = reward.score(rollout_of(["x"], [{"answer": "x"}]))
    assert score.value is None and not score.missing
    assert str(score.reason).startswith("ZeroDivisionError: on purpose (test_checking.py:")


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("exactly", {}, "reward term t: there is no such check; got: exactly; hint: did you mean exact"),
        ("exact", {"colum": "x"}, "reward term t: .*unknown option 'colum', did you mean column"),
        ("regex", {"pattern": "("}, "reward term t: the pattern is no regular expression"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_terms_name(target: str, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CheckReward(term(target, options))


def test_a_missing_package_stays_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
    with pytest.raises(MissingExtra, match=r"reward term t: .*surefoot\[checks\]"):
        CheckReward(term("json_schema", {"schema": {}}))


def test_an_isolated_check_judges_as_the_others_do(isolated: Any) -> None:
    reward = isolated("json_schema", {"after": ">"}, timeout_s=20.0)
    found = reward.score(rollout_of(["> {}", "> {", "{}"]))
    assert [score.value for score in found] == [1.0, 0.0, 0.0]
    assert [score.note is None for score in found] == [True, False, False]
    assert found[0].terms == {"t": 1.0}
    assert "no JSON" in str(found[1].note) and "nothing follows '>'" in str(found[2].note)


def test_an_isolated_check_reads_columns_and_tells_what_is_missing(isolated: Any) -> None:
    pytest.importorskip("jsonschema")
    reward = isolated("json_schema", {"column": "s"}, timeout_s=20.0)
    rows = [{"s": {"type": "object"}}, {"s": {"type": "array"}}, {}, {"s": 3}]
    good, wrong, missing, broken = reward.score(rollout_of(["{}"] * 4, rows))
    assert (good.value, wrong.value) == (1.0, 0.0)
    assert wrong.note == "$: {} is not of type 'array'"
    assert (missing.value, missing.missing, broken.value, broken.missing) == (None, True, None, False)
    assert broken.reason == "the schema is no object but int"


def test_a_schema_that_takes_for_ever_fails_its_row_alone(isolated: Any) -> None:
    pytest.importorskip("jsonschema")
    reward = isolated("json_schema", {"schema": {"type": "string", "pattern": "^(a|aa)+$"}}, timeout_s=1.0)
    reward.score(rollout_of(['"a"']))  # the process has its imports behind it
    good, slow, wrong = reward.score(rollout_of(['"aaa"', f'"{"a" * 60}b"', '"c"']))
    assert (good.value, slow.value, wrong.value) == (1.0, None, 0.0)
    assert slow.reason == "took longer than 1 s" and not slow.missing


def test_reasoning_gym_runs_in_its_process(isolated: Any) -> None:
    gym = the_gym()
    entry = gym.create_dataset("leg_counting", size=1, seed=3)[0]
    reward = isolated("reasoning_gym", {}, timeout_s=60.0)
    right, wrong, missing = reward.score(rollout_of([entry["answer"], "-1", "1"], [{"entry": entry}] * 2 + [{}]))
    assert (right.value, wrong.value, missing.missing) == (1.0, 0.0, True)


def test_a_function_may_say_why_too(make: Make) -> None:
    reward = make(
        """
        def f(completions):
            return [{"short": -float(len(c)), "note": f"{len(c)} characters"} if c else {"short": None, "note": "empty"}
                    for c in completions]
        """
    )
    good, bad = reward.score(rollout_of(["abc", ""]))
    assert good == Score(-3.0, None, {"q": -3.0, "q_short": -3.0}, note="3 characters")
    assert (bad.value, bad.reason) == (None, "term 'short' is None: empty")


def test_a_term_of_a_function_may_be_called_note(make: Make) -> None:
    (score,) = make("def f(completions): return [{'note': 2.0}]").score(rollout_of(["a"]))
    assert (score.value, score.terms, score.note) == (2.0, {"q": 2.0, "q_note": 2.0}, None)
