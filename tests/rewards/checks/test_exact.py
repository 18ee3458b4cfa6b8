"""Check exact: right and wrong answers by hand, and rows that cannot be judged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rewards.checks.judged import judge

LINE = {"where": "last_line"}
BOXED = {"where": "boxed"}
STRICT = {"ignore_case": False}
LOOSE = {"ignore_punctuation": True}

RIGHT: list[tuple[str, dict[str, Any], Any]] = [
    ("Paris", {}, "Paris"),
    ("  paris\n", {}, "Paris"),
    ("PARIS", {}, "paris"),
    ("Straße", {}, "STRASSE"),
    ("new   york\tcity", {}, "New York City"),
    ("Ｐａｒｉｓ", {}, "Paris"),  # full-width
    ("４２", {}, "42"),
    ("ﬁne", {}, "fine"),  # a ligature
    ("café", {}, "cafe\u0301"),  # the accent as a character of its own
    ("it’s", {}, "it's"),
    ("“yes”", {}, '"yes"'),
    ("42", {}, 42),
    ("true", {}, True),
    ("b", {}, ["a", "b"]),
    ("B", STRICT, "B"),
    ("I think.\nSo it is\nParis\n\n", LINE, "Paris"),
    (r"so \boxed{1} or rather \boxed{x_{2}}", BOXED, "x_{2}"),
    (r"\boxed{\frac{1}{2}}", BOXED, r"\frac{1}{2}"),
    (r"\boxed{[0, 1\}} and more}", BOXED, r"[0, 1\}"),
    ("The Nile.", LOOSE, "nile"),
    ("Yes, it is!", LOOSE, "yes it is"),
    ("Reasoning... Answer: Paris", {"after": "Answer:"}, "Paris"),
    ("Answer: Rome. No. Answer: Paris", {"after": "Answer:"}, "Paris"),
]
WRONG: list[tuple[str, dict[str, Any], Any, str]] = [
    ("London", {}, "Paris", "'London' is not 'Paris'"),
    ("Paris is the capital", {}, "Paris", "is not"),
    ("Pari", {}, "Paris", "is not"),
    ("", {}, "Paris", "the response is empty"),
    (" \n\t", {}, "Paris", "the response is empty"),
    ("What is the capital of France?", {}, "Paris", "is not"),  # the prompt again
    ("paris", STRICT, "Paris", "is not"),
    ("Paris.", {}, "Paris", "is not"),
    ("Paris\nLondon", LINE, "Paris", "'London' is not"),
    ("Paris", BOXED, "Paris", "no \\boxed{}"),
    (r"\boxed{Paris", BOXED, "Paris", "no \\boxed{}"),
    (r"\boxed{}", BOXED, "Paris", "empty"),
    ("1.0", {}, 1, "is not"),
    ("c", {}, ["a", "b"], "is not 'a' or 'b'"),
    ("Paris", {"after": "Answer:"}, "Paris", "nothing follows 'Answer:'"),
    ("Answer: Paris. Answer:", {"after": "Answer:"}, "Paris", "empty"),
    ("9" * 5000, {}, "9" * 4999, "..."),
]
UNJUDGED: list[tuple[dict[str, Any], str, bool]] = [
    ({}, "nothing in column 'answer'", True),
    ({"answer": None}, "nothing in column 'answer'", True),
    ({"answer": ""}, "is empty", False),
    ({"answer": "  "}, "is empty", False),
    ({"answer": []}, "holds no text but list", False),
    ({"answer": {"a": 1}}, "holds no text but dict", False),
    ({"answer": ["a", None]}, "holds no text but list", False),
]


@pytest.mark.parametrize(("response", "options", "answer"), RIGHT)
def test_right(response: str, options: dict[str, Any], answer: Any) -> None:
    judged = judge("exact", response, options, answer=answer)
    assert (judged.value, judged.note) == (1.0, None)


@pytest.mark.parametrize(("response", "options", "answer", "note"), WRONG)
def test_wrong_says_why(response: str, options: dict[str, Any], answer: Any, note: str) -> None:
    judged = judge("exact", response, options, answer=answer)
    assert judged.value == 0.0
    assert note in str(judged.note)


@pytest.mark.parametrize(("columns", "reason", "missing"), UNJUDGED)
def test_a_row_without_an_answer_is_no_zero(columns: dict[str, Any], reason: str, missing: bool) -> None:
    judged = judge("exact", "Paris", {}, **columns)
    assert (judged.value, judged.missing) == (None, missing)
    assert reason in str(judged.note)


def test_another_column() -> None:
    assert judge("exact", "x", {"column": "gold"}, gold="x", answer="y").value == 1.0
