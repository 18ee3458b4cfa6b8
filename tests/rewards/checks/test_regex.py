"""Check regex: found, absent, counted, and never for long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from surefoot.errors import ConfigError
from tests.rewards.checks.judged import judge

TABLE: list[tuple[str, dict[str, Any], float, str | None]] = [
    ("order 1234", {"pattern": r"\d{4}"}, 1.0, None),
    ("order 123", {"pattern": r"\d{4}"}, 0.0, "no match"),
    ("", {"pattern": r"\d"}, 0.0, "no match"),
    ("1234", {"pattern": r"\d{4}", "match": "whole"}, 1.0, None),
    (" 1234\n", {"pattern": r"\d{4}", "match": "whole"}, 1.0, None),
    ("1234 5", {"pattern": r"\d{4}", "match": "whole"}, 0.0, "no match"),
    ("Secret", {"pattern": "secret", "score": "absent"}, 1.0, None),
    ("Secret", {"pattern": "secret", "score": "absent", "flags": ["ignore_case"]}, 0.0, "holds 'Secret'"),
    ("", {"pattern": "secret", "score": "absent"}, 1.0, None),
    ("a\nb", {"pattern": "^b$"}, 0.0, "no match"),
    ("a\nb", {"pattern": "^b$", "flags": ["multiline"]}, 1.0, None),
    ("a\nb", {"pattern": "a.b"}, 0.0, "no match"),
    ("a\nb", {"pattern": "a.b", "flags": ["dotall"]}, 1.0, None),
    ("x y x", {"pattern": "x", "score": "count"}, 2.0, "2 matches, 0 free"),
    ("x y x", {"pattern": "x", "score": "count", "free": 1}, 1.0, "2 matches, 1 free"),
    ("x y x", {"pattern": "x", "score": "count", "free": 5}, 0.0, None),
    ("y", {"pattern": "x", "score": "count"}, 0.0, None),
    ("\u0663", {"pattern": r"\d"}, 1.0, None),  # an Arabic digit is one
    ("x" * 2000, {"pattern": "x", "score": "count"}, 1000.0, "1000 matches"),
]


@pytest.mark.parametrize(("response", "options", "value", "note"), TABLE)
def test_by_hand(response: str, options: dict[str, Any], value: float, note: str | None) -> None:
    judged = judge("regex", response, options)
    assert judged.value == value
    assert (note in str(judged.note)) if note else judged.note is None


def test_pattern_and_free_matches_of_the_row() -> None:
    options = {"column": "want", "score": "count", "free": "allowed"}
    assert judge("regex", "xx", options, want="x", allowed=1).value == 1.0
    assert judge("regex", "xx", options, want="y", allowed=1).value == 0.0


@pytest.mark.parametrize(
    ("columns", "reason", "missing"),
    [
        ({"allowed": 0}, "nothing in column 'want'", True),
        ({"want": "x"}, "nothing in column 'allowed'", True),
        ({"want": "(", "allowed": 0}, "no regular expression", False),
        ({"want": 3, "allowed": 0}, "no pattern", False),
        ({"want": "x", "allowed": -1}, "no count", False),
        ({"want": "x", "allowed": "1"}, "no count", False),
    ],
)
def test_a_row_that_cannot_be_judged_is_no_zero(columns: dict[str, Any], reason: str, missing: bool) -> None:
    judged = judge("regex", "x", {"column": "want", "score": "count", "free": "allowed"}, **columns)
    assert (judged.value, judged.missing) == (None, missing)
    assert reason in str(judged.note)


@pytest.mark.parametrize("match", ["search", "whole"])
@pytest.mark.parametrize("score", ["present", "count"])
@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"(a{1,100}){1,100}b"])
def test_a_catastrophic_pattern_fails_within_its_limit(pattern: str, score: str, match: str) -> None:
    begin = time.process_time()
    judged = judge("regex", "a" * 5000 + "c", {"pattern": pattern, "score": score, "match": match, "timeout_s": 0.1})
    assert judged.value is None
    assert judged.note == "the pattern took longer than 0.1 s"
    assert time.process_time() - begin < 2.0


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(" * 5000 + ")" * 5000])
def test_a_pattern_that_is_none_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        judge("regex", "", {"pattern": pattern})


@pytest.mark.parametrize("options", [{}, {"pattern": "x", "column": "y"}])
def test_one_source_of_patterns(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs a pattern or a column with patterns, and not both"):
        judge("regex", "", options)
