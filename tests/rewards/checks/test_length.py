"""Checks length and repetition, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.errors import ConfigError
from tests.rewards.checks.judged import judge

LENGTH: list[tuple[str, dict[str, Any], float, str | None]] = [
    ("one two three", {"at_most": 3}, 1.0, None),
    ("one two three", {"at_most": 2}, 0.0, "3 words, at most 2 asked for"),
    ("one two three", {"at_most": 2, "margin": 4}, 0.75, "at most 2"),
    ("one two three", {"at_least": 5, "margin": 2}, 0.0, "at least 5"),
    ("one two three", {"at_least": 4, "at_most": 9, "margin": 2}, 0.5, "at least 4"),
    ("", {"at_most": 3}, 1.0, None),  # an empty response is short
    ("", {"at_least": 1}, 0.0, "0 words"),
    (" abc ", {"unit": "characters", "at_most": 3}, 1.0, None),
    ("One. Two.", {"unit": "sentences", "at_most": 1}, 0.0, "2 sentences"),
    ("one\n\ntwo", {"unit": "paragraphs", "at_least": 2}, 1.0, None),
    ("x", {"unit": "tokens", "at_most": 6}, 0.0, "7 tokens"),
    ("think </t> one two", {"after": "</t>", "at_most": 2}, 1.0, None),
]
REPETITION: list[tuple[str, dict[str, Any], float, str | None]] = [
    ("a b c d e", {}, 1.0, None),
    ("a b a b a b", {"n": 2}, 0.4, "60% of its 2-grams are repetitions, 'a b' 3 times"),  # ab ba ab ba ab
    ("A a a", {"n": 1}, 1 / 3, "'a' 3 times"),
    ("a b c", {}, 1.0, None),  # a single trigram
    ("a b", {}, 1.0, None),
    ("", {}, 0.0, "empty"),
    ("...", {}, 0.0, "empty"),
    ("a b a b a b", {"n": 2, "at_most": 0.6}, 1.0, "60%"),
    ("a b a b a b", {"n": 2, "at_most": 0.5}, 0.0, "60%"),
    ("哈哈哈哈哈", {"unit": "characters", "n": 2}, 0.25, "4 times"),
    ("哈哈哈哈哈", {"n": 2}, 1.0, None),  # without spaces it is one word
]


@pytest.mark.parametrize(("response", "options", "value", "note"), LENGTH)
def test_length(response: str, options: dict[str, Any], value: float, note: str | None) -> None:
    judged = judge("length", response, options, tokens=7)
    assert judged.value == pytest.approx(value)
    assert (note in str(judged.note)) if note else judged.note is None


@pytest.mark.parametrize(("response", "options", "value", "note"), REPETITION)
def test_repetition(response: str, options: dict[str, Any], value: float, note: str | None) -> None:
    judged = judge("repetition", response, options)
    assert judged.value == pytest.approx(value)
    assert (note in str(judged.note)) if note else judged.note is None


def test_bounds_that_make_no_sense_are_refused() -> None:
    for options, message in (({}, "needs at_least or at_most"), ({"at_least": 3, "at_most": 2}, "more than at_most")):
        with pytest.raises(ConfigError, match=message):
            judge("length", "", options)
