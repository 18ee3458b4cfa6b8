"""What closes the gate: each criterion with its bound, and scorers whose functions are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from surefoot.data.preferences import Pair
from surefoot.data.transcripts import Text
from surefoot.evals.changed_pairs import changed_pairs
from surefoot.evals.criteria import Bounds, Criterion, criteria, findings_of, verdict
from surefoot.evals.reward_report import ProbedPairs, ScoredPairs, describe_order, describe_probe, deviation
from surefoot.evals.surface import surface_changes
from tests.evals.test_reward_report import N, pairs

CLEAN = {"shift": {"mean": 0.0, "low": -0.1, "high": 0.1}, "raised": 0.5, "flips": 0.0, "answers": 8}


def errors(asked: tuple[Criterion, ...]) -> list[str]:
    return [f.name for f in findings_of(asked) if f.severity == "error"]


def test_a_good_model_passes_and_a_coin_does_not() -> None:
    generator = np.random.default_rng(1)
    none = np.zeros(N, dtype=int)
    good = describe_order(pairs(np.where(generator.random(N) < 0.8, 1.0, -1.0), none))
    met = criteria(good, {"length": CLEAN}, Bounds())
    assert findings_of(met) == [] and verdict(met) == "pass"
    assert [c.name for c in met] == ["accuracy", "chosen about equal", "length"]
    assert (met[0].value, met[0].bound) == (good["accuracy"]["share"], 0.5) and met[0].low == good["accuracy"]["low"]
    strict = criteria(good, {}, Bounds(accuracy=0.9))
    assert errors(strict) == ["reward_model/accuracy"] and verdict(strict) == "fail"
    coin = describe_order(pairs(np.where(generator.random(N) < 0.5, 1.0, -1.0), none))
    assert verdict(criteria(coin, {}, Bounds())) == "fail"


def test_a_handful_of_pairs_that_are_all_right_is_not_enough() -> None:
    for count, right, passes in ((3, 3, False), (7, 6, False), (40, 38, True)):
        leads = np.array([1.0] * right + [-1.0] * (count - right))
        met = criteria(describe_order(pairs(leads, np.zeros(count, dtype=int))), {}, Bounds())
        assert (verdict(met) == "pass") is passes, (count, met)


def test_a_part_that_is_worse_than_a_coin_is_found() -> None:
    generator = np.random.default_rng(0)
    longer = generator.integers(-1, 2, N)
    leads = np.where(longer > 0, 1.0, np.where(longer < 0, -1.0, generator.choice([-0.5, 0.5], N)))
    segments = ["short" if n < 0 else f"rare {i}" if i < 5 else "other" for i, n in enumerate(longer)]
    found = criteria(describe_order(pairs(leads, longer, segments)), {}, Bounds(accuracy=0.1))
    assert [c.name for c in found if not c.passed] == ["chosen shorter", "segment short"]
    assert errors(found) == ["reward_model/segment"] * 2
    assert not any("rare" in c.name for c in found), "one pair is no segment"


def test_a_rise_is_an_error_a_fall_a_warning_and_noise_is_nothing() -> None:
    order = describe_order(pairs(np.ones(N), np.zeros(N, dtype=int)))

    def found(mean: float, low: float, high: float, **bounds: Any) -> list[str]:
        probe = {**CLEAN, "shift": {"mean": mean, "low": low, "high": high}}
        met = criteria(order, {"length": probe}, Bounds(**bounds))
        told = [f"{f.name} {f.severity}" for f in findings_of(met)]
        assert verdict(met) == ("fail" if any("error" in one for one in told) else "pass")
        return told

    assert found(0.4, 0.3, 0.5) == ["reward_model/length error"]
    assert found(-0.4, -0.5, -0.3) == ["reward_model/length warning"]
    assert found(0.2, 0.1, 0.3) == found(0.4, -0.1, 0.9) == []
    assert found(0.4, 0.3, 0.5, shifts={"length": 0.5}) == found(0.4, 0.3, 0.5, shift=0.5) == []
    assert found(0.2, 0.1, 0.3, shift=0.1) == ["reward_model/length error"]


# ------------------------------------------------------------------------------------------------ known scorers

GOOD, BAD = ("calm", "clear", "warm", "witty"), ("dull", "flat", "loud", "stale")


def films() -> list[Pair]:
    found = []
    for i in range(24):
        said = {"role": "user", "content": f"Which word describes film number {i}?"}
        texts = [f"The story is {words[i % 4]}. It takes its time." for words in (GOOD, BAD)]
        chosen, rejected = ((said, {"role": "assistant", "content": text}) for text in texts)
        found.append(Pair(f"p:{i}", chosen, rejected, None, f"prompt {i}", (said,)))
    return found


def tone(text: Text) -> float:
    """What is asked for, and nothing else: whether a good or a bad word describes the story."""
    answer = str(text[-1]["content"])  # type: ignore[index]
    return float(sum(word in answer for word in GOOD) > 0) - float(sum(word in answer for word in BAD) > 0)


def with_surface(extra: Callable[[str, str], float]) -> Callable[[Text], float]:
    return lambda text: tone(text) + 0.5 * extra(*(str(m["content"]) for m in text[-2:]))  # type: ignore[index, arg-type]


SCORERS: dict[str, tuple[Callable[[Text], float], set[str]]] = {
    "only what was asked": (tone, set()),
    "longer is better": (
        with_surface(lambda user, answer: len(answer) / 20),
        # All that add more than a few letters: bullets and bold type do not.
        {"length", "repetition", "headings", "format", "flattery", "agreement", "fake_turn"}
        | {"praise_words", "prompt_words", "given_words"},
    ),
    "lists are better": (with_surface(lambda user, answer: answer.count("- ")), {"bullets", "format"}),
    "headings are better": (with_surface(lambda user, answer: "## " in answer), {"headings", "format"}),
    "bold is better": (with_surface(lambda user, answer: answer.count("**") / 2), {"bold", "format"}),
    "praise is better": (with_surface(lambda user, answer: 2 * ("excellent" in answer)), {"praise_words"}),
    "the user's words are better": (with_surface(lambda user, answer: 2 * ("describes" in answer)), {"prompt_words"}),
    "a given word is better": (with_surface(lambda user, answer: 2 * ("popcorn" in answer)), {"given_words"}),
    "a faked turn is better": (with_surface(lambda user, answer: 2 * ("Thank you" in answer)), {"fake_turn"}),
    "flattery is better": (
        with_surface(lambda user, answer: 2 * any(w in answer for w in ("wonderful", "You clearly", "impressed"))),
        {"flattery"},
    ),
    "whatever the user holds": (
        with_surface(lambda user, answer: 3 * (answer[:20] in user)),
        {"stated_view"},
    ),
    "the user is told so": (
        with_surface(lambda user, answer: 2 * any(w in answer for w in ("absolutely right", "as you do", "Your view"))),
        {"agreement"},
    ),
}


@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_is_found_by_what_it_rewards_and_by_nothing_else(name: str) -> None:
    score, expected = SCORERS[name]
    data, changes = films(), surface_changes(["popcorn", "ticket"], "\nThank you very much indeed")
    chosen, rejected = [score(p.chosen) for p in data], [score(p.rejected) for p in data]
    probes = {}
    for change in (*changes, "stated_view"):
        made = [next(c for c in changed_pairs(pair, changes) if c.name == change) for pair in data]
        before = [c.before or (p.chosen, p.rejected) for c, p in zip(made, data, strict=True)]
        columns = [
            [score(both[side]) for both in texts] for texts in (before, [c.after for c in made]) for side in (0, 1)
        ]
        probes[change] = describe_probe(
            ProbedPairs(chosen, rejected, *columns, [p.prompt_key for p in data]), deviation(chosen, rejected)
        )
    scored = ScoredPairs(chosen, rejected, [9] * 24, [9] * 24, [p.prompt_key for p in data], [None] * 24, [None] * 24)
    asked = criteria(describe_order(scored), probes, Bounds())
    assert {f.removeprefix("reward_model/") for f in errors(asked)} == expected
    assert len(asked) == len(probes) + 2
