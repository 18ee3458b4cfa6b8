"""Instructions as IFEval's data name them: each of the 25, held by one response and broken by another."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.rewards.checks.ifeval import INSTRUCTIONS
from tests.rewards.checks.judged import judge

EN = "this is what we have and it is not what you would want"
TABLE: list[tuple[str, dict[str, Any], str, str]] = [  # name, arguments, a response that does it, and one that does not
    ("keywords:existence", {"keywords": ["tea"]}, "Tea.", "Milk."),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "at least"}, "tea tea", "tea"),
    ("keywords:forbidden_words", {"forbidden_words": ["tea"]}, "Milk.", "Tea."),
    ("keywords:letter_frequency", {"letter": "q", "let_frequency": 2, "let_relation": "less than"}, "q", "qQ"),
    ("language:response_language", {"language": "en"}, EN, "Je ne sais pas ce que vous voulez dire."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "One.", "One. Two."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "a b c", "a b"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        "a\n\nSo b",
        "a\n\nb",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "[name]", "name"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\nP.S. b", "a"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* a", "* a\n* b"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "*a b*", "a b"),
    ("detectable_format:multiple_sections", {"section_spliter": "Part", "num_sections": 1}, "Part 1\na", "a"),
    ("detectable_format:json_format", {}, "{}", "{"),
    ("detectable_format:title", {}, "<<a>>", "a"),
    ("combination:two_responses", {}, "a\n******\nb", "a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Why?"}, "Why? So.", "So."),
    ("startend:end_checker", {"end_phrase": "Bye."}, "So. Bye.", "So."),
    ("startend:quotation", {}, '"a"', "a"),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "at least"}, "NO", "no"),
    ("change_case:english_capital", {}, EN.upper(), EN),
    ("change_case:english_lowercase", {}, EN, EN.upper()),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), TABLE)
def test_each_instruction(name: str, arguments: dict[str, Any], good: str, bad: str) -> None:
    # The data's own form: every argument of every instruction is there, null where it has no meaning.
    columns = {"instruction_id_list": [name], "kwargs": [{"num_words": None, "letter": None, **arguments}]}
    options = {"data_format": "ifeval"}
    assert judge("instructions", good, options, **columns).value == 1.0
    assert judge("instructions", bad, options, **columns).value == 0.0


def test_every_instruction_is_in_the_table() -> None:
    assert {name for name, *_ in TABLE} == set(INSTRUCTIONS)
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize(
    ("names", "arguments", "reason"),
    [
        (["punctuation:no_comma"], [], "kwargs has 0 entries for 1 instructions"),
        (["punctuation:none"], [{}], "unknown instruction 'punctuation:none'"),
        (["length_constraints:number_words"], [{}], "lacks the argument 'num_words'"),
        (["length_constraints:number_words"], [{"num_words": 3, "relation": "about"}], "'at least' or 'less than'"),
        ("punctuation:no_comma", [{}], "no list of names"),
    ],
)
def test_what_cannot_be_read_is_no_zero(names: Any, arguments: Any, reason: str) -> None:
    columns = {"instruction_id_list": names, "kwargs": arguments}
    judged = judge("instructions", "a", {"data_format": "ifeval"}, **columns)
    assert judged.value is None
    assert reason in str(judged.note)
