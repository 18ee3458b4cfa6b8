"""Check readability: the formulas worked by hand, and syllables of words that were not used to make the rules."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.errors import ConfigError
from surefoot.rewards.checks.readability import Formula, readability, syllables
from tests.rewards.checks.judged import judge

CAT = "The cat sat on the mat."  # 6 words, 1 sentence, 6 syllables, 17 letters
TWO = "Dogs bark. Every animal communicates differently."  # 6 words, 2 sentences, 15 syllables, 42 letters


@pytest.mark.parametrize(
    ("text", "formula", "value"),
    [
        (CAT, "flesch", 206.835 - 1.015 * 6 - 84.6 * 1),
        (CAT, "flesch_kincaid", 0.39 * 6 + 11.8 * 1 - 15.59),
        (CAT, "ari", 4.71 * 17 / 6 + 0.5 * 6 - 21.43),
        (TWO, "ari", 4.71 * 42 / 6 + 0.5 * 3 - 21.43),
    ],
)
def test_the_formulas_by_hand(text: str, formula: Formula, value: float) -> None:
    assert readability(text, formula) == pytest.approx(value)


# Counted with a dictionary's hyphenation in mind; the rules were written on other words.
SYLLABLES = {
    "window": 2, "garden": 2, "orange": 2, "elephant": 3, "computer": 3, "telephone": 3, "bridge": 1, "castle": 2,
    "mountain": 2, "river": 2, "yesterday": 3, "tomorrow": 3, "breakfast": 2, "dinner": 2, "evening": 3, "music": 2,
    "dance": 1, "danced": 1, "planted": 2, "painted": 2, "smiled": 1, "wishes": 2, "glasses": 2, "horses": 2,
    "names": 1, "station": 2, "television": 4, "curious": 3, "obvious": 3, "mathematics": 4, "history": 3,
    "geography": 4, "umbrella": 3, "banana": 3, "tomato": 3, "potatoes": 3, "kangaroo": 3, "dinosaur": 3, "friend": 1,
    "school": 1, "teacher": 2, "student": 2, "library": 3, "hospital": 3, "doctor": 2, "nurse": 1, "engine": 2,
    "airplane": 2, "well-known": 2, "don't": 1,
}  # fmt: skip


def test_syllables_are_right_for_nine_words_of_ten() -> None:
    wrong = {word: syllables(word) for word, count in SYLLABLES.items() if syllables(word) != count}
    assert len(wrong) <= len(SYLLABLES) // 10, wrong


TABLE: list[tuple[str, dict[str, Any], float, str]] = [
    (CAT, {"at_most": 0.0}, 1.0, "flesch_kincaid -1.4"),
    (CAT, {"at_least": 0.0}, 0.0, "flesch_kincaid -1.4, at least 0 asked for"),
    (CAT, {"at_least": 0.0, "margin": 2.9}, 0.5, "at least 0"),
    (CAT, {"formula": "flesch", "at_most": 100}, 0.0, "flesch 116.1, at most 100 asked for"),
    (CAT, {"formula": "flesch", "at_least": 90, "at_most": 120}, 1.0, "flesch 116.1"),
]


@pytest.mark.parametrize(("response", "options", "value", "note"), TABLE)
def test_within_bounds(response: str, options: dict[str, Any], value: float, note: str) -> None:
    judged = judge("readability", response, {"min_words": 1, **options})
    assert judged.value == pytest.approx(value)
    assert note in str(judged.note)


@pytest.mark.parametrize("response", ["", "!!!", CAT])
def test_too_short_to_measure(response: str) -> None:
    judged = judge("readability", response, {"at_most": 8})
    assert judged.value == 0.0
    assert "too few to measure" in str(judged.note)


@pytest.mark.parametrize(
    ("options", "message"), [({}, "needs at_least or at_most"), ({"at_least": 3, "at_most": 2}, "more than at_most")]
)
def test_bounds_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        judge("readability", "", options)
