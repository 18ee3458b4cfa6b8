"""Check citations: marks, sentences in need of one, and quotations, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rewards.checks.judged import judge

SOURCES = ["Water boils at 100 degrees at sea level.", "Tea was first drunk in China, long ago."]
BOIL = "Water boils at 100 degrees [1]."
TEA = "People drank tea in China first [2]."

TABLE: list[tuple[str, dict[str, Any], float, str | None]] = [
    (f"{BOIL} {TEA}", {}, 1.0, None),
    ("Water boils at 100 degrees. [1] People drank tea in China. [2]", {}, 1.0, None),  # marks behind the full stop
    ("Water boils at 100 degrees [1, 2].", {}, 1.0, None),
    ("Water boils at 100 degrees [1-2].", {}, 1.0, None),
    ("Water boils at 100 degrees [1][2].", {}, 1.0, None),
    ("Water boils at 100 degrees [^1].", {}, 1.0, None),
    ("- Water boils at 100 degrees [1]\n- People drank tea in China [2]", {}, 1.0, None),
    ("Why does water boil like that? So: " + BOIL, {}, 1.0, None),  # a question needs none
    ("I see. " + BOIL, {}, 1.0, None),  # too short to need one
    ("Water boils at 100 degrees [3].", {}, 0.0, "[3] is no source (there are 1, 2)"),
    ("Water boils at 100 degrees [1-3].", {}, 0.0, "[3] is no source"),
    (f"{BOIL} People drank tea in China.", {}, 0.0, "no citation in 'People drank tea in China.'"),
    ("Water boils [sic] at 100 degrees.", {}, 0.0, "no citation"),  # other brackets are no mark
    ("Water boils at [1](http://x) degrees.", {}, 0.0, "no citation"),  # a link is no mark
    ("", {}, 0.0, "the response is empty"),
    (" ", {}, 0.0, "the response is empty"),
    ("Yes.", {}, 0.0, "no sentence that could be cited for"),
    ("When does water boil, and where was tea first drunk?", {}, 0.0, "no sentence"),  # the prompt again
    ("People drank tea. Water boils at 100 degrees [1].", {"need": "numbers"}, 1.0, None),
    ("Water boils at 100 degrees.", {"need": "numbers"}, 0.0, "no citation"),
    ("Water boils at 100 degrees.", {"need": "none"}, 1.0, None),
    ("Water boils at 100 degrees [4].", {"need": "none"}, 0.0, "[4] is no source"),
    ('It says "Water boils at 100 degrees" there [1].', {}, 1.0, None),
    ('It says "water boils, at 100 DEGREES" there [1].', {}, 1.0, None),  # case and punctuation aside
    ('It says "water boils at 90 degrees" there [1].', {}, 0.0, "in no source: 'water boils at 90 degrees'"),
    ("It says “tea was first drunk in Japan” there [2].", {}, 0.0, "in no source"),
    ('They call it "liquid gold" there [1].', {}, 1.0, None),  # too short to be looked up
    ('They call it "liquid gold" there [1].', {"min_quote_words": 2}, 0.0, "in no source"),
    ('It says "er boils at 100 degre" there [1].', {}, 0.0, "in no source"),  # whole words
    (f"{BOIL} People drank tea in China.", {"score": "share"}, 2 / 3, "no citation"),  # mark, sentence; sentence
    ("Water boils at 100 degrees [3].", {"score": "share"}, 0.5, "[3] is no source"),
]


@pytest.mark.parametrize(("response", "options", "value", "note"), TABLE)
def test_by_hand(response: str, options: dict[str, Any], value: float, note: str | None) -> None:
    judged = judge("citations", response, options, sources=SOURCES)
    assert judged.value == pytest.approx(value), judged.note
    assert (note in str(judged.note)) if note else judged.note is None


@pytest.mark.parametrize(
    ("sources", "mark"),
    [
        ("Water boils.", "1"),
        ([{"text": "Water boils."}], "1"),
        ([{"id": "who-1", "content": "Water boils."}], "WHO-1"),
        ([{"id": 7, "title": "Water", "passage": "It boils."}], "7"),
        ({"doc a": "Water boils."}, "doc a"),
    ],
)
def test_sources_as_data_hold_them(sources: Any, mark: str) -> None:
    assert judge("citations", f"Water boils when it is hot [{mark}].", sources=sources).value == 1.0
    assert judge("citations", "Water boils when it is hot [9].", sources=sources).value == 0.0


def test_a_title_can_be_quoted() -> None:
    sources = [{"id": 1, "title": "On the boiling of water", "text": "It boils."}]
    assert judge("citations", 'See "On the boiling of water" for more [1].', sources=sources).value == 1.0


@pytest.mark.parametrize(
    ("sources", "reason", "missing"),
    [
        (None, "nothing in column 'sources'", True),
        ([], "holds no sources", False),
        ([{"url": "x"}], "source 1", False),
        (["a", 3], "source 2", False),
    ],
)
def test_sources_that_cannot_be_read_are_no_zero(sources: Any, reason: str, missing: bool) -> None:
    judged = judge("citations", BOIL, sources=sources)
    assert (judged.value, judged.missing) == (None, missing)
    assert reason in str(judged.note)


def test_the_prompt_as_the_source() -> None:
    prompt = "Water boils at 100 degrees. When does it?"
    judged = judge("citations", 'As you said, "water boils at 100 degrees" [1].', {"sources": "prompt"}, prompt=prompt)
    assert judged.value == 1.0
