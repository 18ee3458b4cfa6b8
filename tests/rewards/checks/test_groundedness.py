"""Check groundedness: which words, numbers and names the sources hold, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.errors import ConfigError
from tests.rewards.checks.judged import judge

SOURCES = ["The bridge was built in 1931 by Anna Berg and cost 1,250,000 crowns.", "It carries 40% of all traffic."]

TABLE: list[tuple[str, dict[str, Any], float, str | None]] = [
    ("Anna Berg built the bridge in 1931.", {}, 1.0, None),
    ("The bridges cost 1250000 crowns.", {}, 1.0, None),  # another form of the word, the same number
    ("It carries 0.4 of the traffic.", {}, 1.0, None),
    ("Built in 1931. [1]", {}, 1.0, None),  # a mark is no number
    ("1. bridge\n2. traffic", {}, 1.0, None),  # nor are those of a list
    ("It was built in 1932.", {}, 0.0, "number in no source: '1932'"),
    ("It was built in 1932.", {"numbers": "count"}, 0.5, "not: '1932'"),  # built; 1932
    ("It was built in 1932.", {"numbers": "ignore"}, 1.0, None),
    ("The bridge collapsed.", {}, 0.5, "50% in the sources, not: 'collapsed'"),
    ("The bridge collapsed.", {"at_least": 0.5}, 1.0, None),
    ("The bridge collapsed.", {"at_least": 0.6}, 0.0, "collapsed"),
    ("bridge bridge bridge bridge collapsed", {}, 0.5, "collapsed"),  # each word counts once
    ("The bridge of Carl Holm.", {}, 1 / 3, "'Carl', 'Holm'"),
    ("The bridge of Carl Holm.", {"names": "must"}, 0.0, "name in no source: 'Carl', 'Holm'"),
    ("The bridge of Anna Berg.", {"names": "must"}, 1.0, None),
    ("Fallen is the bridge.", {"names": "must"}, 0.5, "not: 'Fallen'"),  # at the start of a sentence it is no name
    ("Dragons!", {}, 0.0, "not: 'Dragons'"),
    ("", {}, 0.0, "0 different content words"),
    ("It was to be of the.", {}, 0.0, "0 different content words"),
    ("bridge", {"min_words": 2}, 0.0, "1 different content words, at least 2 asked for"),
    ("built \u0661\u0669\u0663\u0661", {}, 1.0, None),  # digits of another script
    ("built " + "9" * 90, {}, 0.0, "number in no source"),
    (" ".join(SOURCES), {}, 1.0, None),  # a copy of the sources: see the page's limits
]


@pytest.mark.parametrize(("response", "options", "value", "note"), TABLE)
def test_by_hand(response: str, options: dict[str, Any], value: float, note: str | None) -> None:
    judged = judge("groundedness", response, options, sources=SOURCES)
    assert judged.value == pytest.approx(value), judged.note
    if note:
        assert note in str(judged.note)
    elif value == 1.0 and "at_least" not in options:
        assert judged.note is None


def test_the_prompt_as_the_source() -> None:
    options = {"sources": "prompt"}
    assert judge("groundedness", "A tall bridge", options, prompt="How tall is the bridge?").value == 1.0


def test_another_language_keeps_its_endings() -> None:
    options = {"language": "de"}
    assert judge("groundedness", "die Brücke ist alt", options, sources=["Die Brücke ist alt."]).value == 1.0
    assert judge("groundedness", "die Brücken", options, sources=["Die Brücke ist alt."]).value == 0.0


def test_what_cannot_be_judged_is_no_zero() -> None:
    judged = judge("groundedness", "a bridge")
    assert (judged.value, judged.missing) == (None, True)
    with pytest.raises(ConfigError, match="no small words are known of 'xx'"):
        judge("groundedness", "", {"language": "xx"})
