"""Instructions as IFEval's data name them, in the words of the constraints here. Torch-free.

The rules behind the names are this package's own. They agree with IFEval's on clear cases and differ at the edges
(sentences, words), so a number that is to be compared with published ones comes from IFEval's own scorer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from surefoot.rewards.checks.options import Unreadable

Made = dict[str, Any]


def _bounds(args: Mapping[str, Any], count: str, relation: str) -> Made:
    number, how = args[count], args.get(relation) or "at least"
    if how not in ("at least", "less than"):
        raise Unreadable(f"{relation} is {how!r}, 'at least' or 'less than' are known")
    return {"at_least": number} if how == "at least" else {"at_most": number - 1}


_ANSWERS: Final = ["My answer is yes.", "My answer is no.", "My answer is maybe."]
_KINDS: Final[dict[str, Callable[[Mapping[str, Any]], list[Made]]]] = {
    "keywords:existence": lambda a: [{"kind": "keywords", "present": a["keywords"]}],
    "keywords:forbidden_words": lambda a: [{"kind": "keywords", "absent": a["forbidden_words"]}],
    "keywords:frequency": lambda a: [
        {"kind": "keyword", "keyword": a["keyword"], **_bounds(a, "frequency", "relation")}
    ],
    "keywords:letter_frequency": lambda a: [
        {"kind": "letter", "letter": a["letter"], **_bounds(a, "let_frequency", "let_relation")}
    ],
    "language:response_language": lambda a: [{"kind": "language", "language": a["language"]}],
    "length_constraints:number_sentences": lambda a: [{"kind": "sentences", **_bounds(a, "num_sentences", "relation")}],
    "length_constraints:number_paragraphs": lambda a: [
        {"kind": "paragraphs", "divider": "stars", "exactly": a["num_paragraphs"]}
    ],
    "length_constraints:number_words": lambda a: [{"kind": "words", **_bounds(a, "num_words", "relation")}],
    "length_constraints:nth_paragraph_first_word": lambda a: [
        {
            "kind": "paragraph_start",
            "paragraph": a["nth_paragraph"],
            "word": a["first_word"],
            "total": a["num_paragraphs"],
        }
    ],
    "detectable_content:number_placeholders": lambda a: [{"kind": "placeholders", "at_least": a["num_placeholders"]}],
    "detectable_content:postscript": lambda a: [{"kind": "postscript", "marker": a["postscript_marker"]}],
    "detectable_format:number_bullet_lists": lambda a: [{"kind": "bullets", "exactly": a["num_bullets"]}],
    "detectable_format:constrained_response": lambda a: [{"kind": "one_of", "choices": _ANSWERS}],
    "detectable_format:number_highlighted_sections": lambda a: [
        {"kind": "highlights", "at_least": a["num_highlights"]}
    ],
    "detectable_format:multiple_sections": lambda a: [
        {"kind": "sections", "marker": a["section_spliter"], "at_least": a["num_sections"]}
    ],
    "detectable_format:json_format": lambda a: [{"kind": "json"}],
    "detectable_format:title": lambda a: [{"kind": "title"}],
    "combination:two_responses": lambda a: [{"kind": "two_responses"}],
    "combination:repeat_prompt": lambda a: [{"kind": "repeats", "text": a["prompt_to_repeat"]}],
    "startend:end_checker": lambda a: [{"kind": "ends_with", "text": a["end_phrase"]}],
    "startend:quotation": lambda a: [{"kind": "quoted"}],
    "change_case:capital_word_frequency": lambda a: [
        {"kind": "capital_words", **_bounds(a, "capital_frequency", "capital_relation")}
    ],
    "change_case:english_capital": lambda a: [
        {"kind": "case", "case": "upper"},
        {"kind": "language", "language": "en"},
    ],
    "change_case:english_lowercase": lambda a: [
        {"kind": "case", "case": "lower"},
        {"kind": "language", "language": "en"},
    ],
    "punctuation:no_comma": lambda a: [{"kind": "no_commas"}],
}
INSTRUCTIONS: Final = tuple(sorted(_KINDS))


def from_ifeval(names: Any, arguments: Any) -> list[Made]:
    """Constraints from the columns ``instruction_id_list`` and ``kwargs``.

    Raises:
        Unreadable: the columns do not fit each other, a name is unknown or an argument is missing.
    """
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        raise Unreadable("instruction_id_list is no list of names")
    given = arguments if isinstance(arguments, Sequence) and not isinstance(arguments, str) else []
    if len(given) != len(names):
        raise Unreadable(f"kwargs has {len(given)} entries for {len(names)} instructions")
    made: list[Made] = []
    for name, args in zip(names, given, strict=True):
        if name not in _KINDS:
            raise Unreadable(f"unknown instruction {name!r}")
        try:
            made += _KINDS[name]({key: value for key, value in dict(args or {}).items() if value is not None})
        except KeyError as error:
            raise Unreadable(f"{name} lacks the argument {error}") from None
    return made
