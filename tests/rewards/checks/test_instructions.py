"""Check instructions: every kind of constraint, held and broken, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.errors import ConfigError
from surefoot.rewards.checks.instructions import KINDS
from tests.rewards.checks.judged import judge

THREE = "One thing. Another thing! A third?"
LIST = "* one\n* two\n- three\n"
DE = "Ich weiß nicht, was das ist und wie es zu uns kam."

TABLE: list[tuple[dict[str, Any], str, str | None]] = [  # constraint, response, and None or why it is broken
    # counting
    ({"kind": "words", "at_least": 3}, "one two three", None),
    ({"kind": "words", "at_least": 4}, "one two three", "3 words, at least 4 asked for"),
    ({"kind": "words", "at_most": 2}, "one two three", "3 words, at most 2 asked for"),
    ({"kind": "words", "exactly": 3}, "don't over-count these", None),
    ({"kind": "words", "exactly": 3}, "a b c d", "4 words, exactly 3 asked for"),
    ({"kind": "words", "at_least": 2, "at_most": 4}, "one two three", None),
    ({"kind": "words", "exactly": 2}, "... one -- two !!", None),
    ({"kind": "words", "at_least": 1}, "!!!", "0 words"),
    ({"kind": "words", "exactly": 2}, "हिन्दी भाषा", None),  # vowel signs belong to their word
    ({"kind": "sentences", "exactly": 3}, THREE, None),
    ({"kind": "sentences", "at_most": 2}, THREE, "3 sentences"),
    ({"kind": "sentences", "exactly": 1}, "Dr. Smith paid 3.50 for it, e.g. in St. Ives.", None),
    ({"kind": "sentences", "exactly": 3}, "Wait... what?! No", None),
    ({"kind": "sentences", "exactly": 2}, "你好。再见！", None),
    ({"kind": "paragraphs", "exactly": 2}, "one\ntwo\n\n  \nthree", None),
    ({"kind": "paragraphs", "exactly": 2}, "one\ntwo", "1 paragraphs"),
    ({"kind": "paragraphs", "exactly": 3, "divider": "stars"}, "one\n***\ntwo\n\nmore\n* * *\nthree", None),
    ({"kind": "keyword", "keyword": "tea"}, "Tea!", None),
    ({"kind": "keyword", "keyword": "tea"}, "steam and teas", "'tea' does not occur"),
    ({"kind": "keyword", "keyword": "green tea", "exactly": 2}, "green tea, Green\n  Tea", None),
    ({"kind": "keyword", "keyword": "tea", "at_most": 1}, "tea tea", "2 times 'tea', at most 1"),
    ({"kind": "keyword", "keyword": "C++"}, "in C++, say", None),
    ({"kind": "keywords", "present": ["tea", "milk"]}, "Milk and tea", None),
    ({"kind": "keywords", "present": ["tea", "milk"]}, "tea", "'milk' does not occur"),
    ({"kind": "keywords", "absent": ["tea"]}, "steam", None),
    ({"kind": "keywords", "absent": ["tea"]}, "TEA", "'tea' occurs"),
    ({"kind": "letter", "letter": "e", "exactly": 3}, "Eleven E", "4 times the letter 'e'"),
    ({"kind": "letter", "letter": "e", "at_least": 3}, "Eleven", None),
    ({"kind": "letter", "letter": "!", "at_most": 1}, "a! b!", "2 times"),
    ({"kind": "capital_words", "exactly": 2}, "NASA and I went", None),
    ({"kind": "capital_words", "at_most": 1}, "A BIG Deal", "2 capital words"),
    ({"kind": "bullets", "exactly": 3}, LIST, None),
    ({"kind": "bullets", "exactly": 2}, LIST, "3 bullets"),
    ({"kind": "bullets", "at_most": 0}, "*bold* and - dashes - inside", None),
    ({"kind": "numbered_items", "exactly": 3}, "1. one\n2) two\n 3. three", None),
    ({"kind": "numbered_items", "exactly": 2}, "1. one\n1. two", "item 2 is numbered 1"),
    ({"kind": "numbered_items", "exactly": 2}, "In 1. place", "0 numbered items"),
    ({"kind": "sections", "exactly": 2}, "Section 1\nx\n**Section 2**\ny", None),
    ({"kind": "sections", "at_least": 2}, "Section 1 and Section 2", "1 sections"),
    ({"kind": "sections", "marker": "#", "exactly": 2}, "# One\ntext\n## Two", None),
    ({"kind": "placeholders", "at_least": 2}, "Dear [name], see [place].", None),
    ({"kind": "placeholders", "at_least": 1}, "Dear [], see", "0 placeholders"),
    ({"kind": "highlights", "at_least": 2}, "*this* and **that**", None),
    ({"kind": "highlights", "at_least": 1}, "2 * 3 * 4", "0 highlights"),
    ({"kind": "highlights", "at_most": 0}, LIST, None),
    # wording
    ({"kind": "case", "case": "lower"}, "all small, 2 words", None),
    ({"kind": "case", "case": "lower"}, "all Small", "'Small' is not in lower case"),
    ({"kind": "case", "case": "upper"}, "ALL LARGE É", None),
    ({"kind": "case", "case": "upper"}, "ALL LARGe", "not in upper case"),
    ({"kind": "case", "case": "upper"}, "123", "no letters"),
    ({"kind": "no_commas"}, "none; here", None),
    ({"kind": "no_commas"}, "one, two， three", "2 commas"),
    ({"kind": "starts_with", "text": "Dear"}, " dear Ann", None),
    ({"kind": "starts_with", "text": "Dear"}, "My dear", "does not begin with"),
    ({"kind": "ends_with", "text": "The end."}, "It was so. the END.\n", None),
    ({"kind": "ends_with", "text": "The end."}, '"It was. The end."', None),
    ({"kind": "ends_with", "text": "The end."}, "The end. Or not", "does not end with"),
    ({"kind": "quoted"}, ' "all of it" ', None),
    ({"kind": "quoted"}, "“all of it”", None),
    ({"kind": "quoted"}, '"some" of it', "not wrapped"),
    ({"kind": "quoted"}, '""', "not wrapped"),
    ({"kind": "title"}, "<<A title>>\ntext", None),
    ({"kind": "title"}, "<< >> text", "no title"),
    ({"kind": "title"}, "<<a\nb>>", "no title"),
    ({"kind": "postscript"}, "Text.\nP.S. more", None),
    ({"kind": "postscript"}, "Text.\np. s.: more", None),
    ({"kind": "postscript"}, "Text. P.S. in the line", "no postscript"),
    ({"kind": "postscript"}, "Psychology is fun", "no postscript"),
    ({"kind": "postscript"}, "P.S.", "no postscript"),
    ({"kind": "postscript", "marker": "P.P.S"}, "P.P.S more", None),
    ({"kind": "json"}, '```json\n{"a": 1}\n```', None),
    ({"kind": "json"}, "{a: 1}", "no JSON"),
    ({"kind": "two_responses"}, "one\n******\ntwo", None),
    ({"kind": "two_responses"}, "one\n******\nONE", "the same"),
    ({"kind": "two_responses"}, "one", "1 responses"),
    ({"kind": "two_responses"}, "a\n******\nb\n******\nc", "3 responses"),
    ({"kind": "language", "language": "de"}, DE, None),
    ({"kind": "language", "language": "en"}, DE, "language de, not en"),
    ({"kind": "language", "language": "en"}, "Rrr", "language unknown"),
    ({"kind": "one_of", "choices": ["yes", "no"]}, "My answer is yes.", None),
    ({"kind": "one_of", "choices": ["yes", "no"]}, "yes and no", "holds 2 of the 2"),
    ({"kind": "one_of", "choices": ["maybe", "maybe not"]}, "Maybe not.", None),
    ({"kind": "one_of", "choices": ["yes", "no"]}, "perhaps", "holds 0 of the 2"),
    ({"kind": "paragraph_start", "paragraph": 2, "word": "Then"}, "First.\n\nthen more.", None),
    ({"kind": "paragraph_start", "paragraph": 2, "word": "Then"}, "First.\n\nLater.", "begins with 'Later'"),
    ({"kind": "paragraph_start", "paragraph": 2, "word": "Then"}, "First.", "1 paragraphs"),
    ({"kind": "paragraph_start", "paragraph": 1, "word": "a", "total": 2}, "a", "exactly 2 asked for"),
    ({"kind": "repeats", "text": "Why is it so?"}, "why is it so? Because.", None),
    ({"kind": "repeats", "text": "Why is it so?"}, "Why is it so?", "says nothing after"),
    ({"kind": "repeats", "text": "Why is it so?"}, "Because.", "does not begin by repeating"),
]


@pytest.mark.parametrize(("constraint", "response", "fault"), TABLE)
def test_each_kind_by_hand(constraint: dict[str, Any], response: str, fault: str | None) -> None:
    judged = judge("instructions", response, {"constraints": [constraint]})
    assert judged.value == (0.0 if fault else 1.0), judged.note
    assert (fault in str(judged.note)) if fault else judged.note is None


def test_every_kind_is_in_the_table_held_and_broken() -> None:
    held = {constraint["kind"] for constraint, _, fault in TABLE if fault is None}
    broken = {constraint["kind"] for constraint, _, fault in TABLE if fault is not None}
    assert held == broken == set(KINDS)


@pytest.mark.parametrize("constraint", [row[0] for row in TABLE if row[2] is None][::2])
def test_an_empty_response_does_nothing_that_was_asked(constraint: dict[str, Any]) -> None:
    judged = judge("instructions", " \n", {"constraints": [constraint]})
    assert (judged.value, judged.note) == (0.0, "the response is empty")


def test_all_or_a_share() -> None:
    asked = [{"kind": "no_commas"}, {"kind": "words", "at_most": 2}, {"kind": "title"}, {"kind": "quoted"}]
    options = {"constraints": asked, "score": "share"}
    judged = judge("instructions", "one two", options)
    assert judged.value == 0.5
    assert judged.note == "title: no title in << >>; quoted: is not wrapped in double quotes"
    assert judge("instructions", "one two", {"constraints": asked}).value == 0.0


def test_constraints_of_the_row_come_on_top() -> None:
    options = {"constraints": [{"kind": "no_commas"}], "column": "asked", "score": "share"}
    assert judge("instructions", "a b", options, asked=[{"kind": "words", "exactly": 3, "at_least": None}]).value == 0.5


@pytest.mark.parametrize(
    ("asked", "reason", "missing"),
    [
        (None, "nothing in column 'asked'", True),
        ([], "at least one", False),
        ("words", "a list of constraints", False),
        ([{"at_least": 1}], "constraint 1 is no object with a kind", False),
        ([{"kind": "title"}, {"kind": "word"}], "constraint 2: unknown kind 'word', did you mean words?", False),
        ([{"kind": "words", "atleast": 1}], "unknown option 'atleast', did you mean at_least?", False),
        ([{"kind": "words"}], "needs at_least, at_most or exactly", False),
        ([{"kind": "words", "exactly": 1, "at_most": 2}], "exactly stands alone", False),
        ([{"kind": "words", "at_least": 3, "at_most": 2}], "at_least is more than at_most", False),
        ([{"kind": "language", "language": "tlh"}], "cannot be told here", False),
        ([{"kind": "case"}], "case is missing", False),
    ],
)
def test_constraints_that_cannot_be_read_are_no_zero(asked: Any, reason: str, missing: bool) -> None:
    judged = judge("instructions", "one two", {"column": "asked"}, asked=asked)
    assert (judged.value, judged.missing) == (None, missing)
    assert reason in str(judged.note)
    if asked and isinstance(asked, list) and isinstance(asked[0], dict):
        with pytest.raises(ConfigError):
            judge("instructions", "", {"constraints": asked})


def test_nothing_to_check_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs constraints, a column"):
        judge("instructions", "")
