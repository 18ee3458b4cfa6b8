"""All checks: their names, options that are refused, and what no response can do to them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from typing import Any, Final

import pytest

from surefoot.errors import ConfigError
from surefoot.rewards.checks import CHECKS, Answer, Check, make_check
from surefoot.rewards.checks.instructions import KINDS
from surefoot.rewards.checks.options import option_names
from tests.rewards.checks.judged import the_gym
from tests.rewards.checks.test_instructions import TABLE

# The least that each check takes.
LEAST: Final[dict[str, dict[str, Any]]] = {
    "exact": {},
    "numeric": {},
    "regex": {"pattern": r"\d+ (?:apples|pears)"},
    "json_schema": {"where": "embedded"},
    "instructions": {"constraints": [{"kind": "words", "at_least": 1}]},
    "citations": {},
    "groundedness": {},
    "language": {"language": "en"},
    "readability": {"at_most": 8},
    "toxicity": {"penalty": 0.01},
    "length": {"at_most": 10},
    "repetition": {},
    "reasoning_gym": {},
}
COLUMNS: Final = {"answer": "42", "sources": ["The answer is 42, said the old book."], "entry": {}}
MB: Final = 1_000_000
LONG: Final = {
    "prose": "The old book said that the answer was 42, and nobody asked. " * (MB // 60),
    "one letter": "a" * MB,
    "full stops": "." * MB,
    "foreign digits": "\u0663" * MB,
    "fences": "```\n" * (MB // 4),
    "quotes": '"' * MB,
    "Chinese": "\u732b" * MB,
    "one very long number": "1," * (MB // 2),
}
BRACKETS: Final = {"boxes": "\\boxed{" * (MB // 7), "square": "[" * MB, "angles": "<<" * (MB // 2), "stars": "*" * MB}
LIMIT_S: Final = 0.5


def made(name: str) -> Check[Any]:
    if name == "reasoning_gym":
        the_gym()
    return make_check(name, LEAST[name])


def test_each_check_has_its_least_options_here() -> None:
    assert set(LEAST) == set(CHECKS)
    assert all(name == kind.name for name, kind in CHECKS.items())


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "reasoning_gym"])
def test_an_unknown_option_is_refused_with_the_nearest(name: str) -> None:
    known = option_names(CHECKS[name].options_type)[-1]
    with pytest.raises(
        ConfigError, match=f"check {name} cannot be used.*unknown option '{known}s', did you mean {known}"
    ):
        make_check(name, {**LEAST[name], f"{known}s": 1})


def test_an_unknown_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no such check; got: json_shema; hint: did you mean json_schema"):
        make_check("json_shema")


def test_a_value_of_the_wrong_type_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"tolerance: must be a valid number.*got 'small'"):
        make_check("numeric", {"tolerance": "small"})


@pytest.mark.parametrize("name", CHECKS)
def test_what_follows_a_marker_alone_is_judged(name: str) -> None:
    check = made(name)
    marked = type(check)(check.options.model_copy(update={"after": "</think>"}))
    thought = "You idiot, 17 apples, said 9 [4] 猫. " * 3
    for response in ("42", "The answer is 42 [1].", ""):
        columns = dict(COLUMNS)
        assert marked(Answer(f"{thought}</think>{response}", "", columns, 3)) == check(Answer(response, "", columns, 3))
    missing = marked(Answer("42", "", dict(COLUMNS)))
    assert missing.value == 0.0
    assert "nothing follows '</think>'" in str(missing.note)


@pytest.mark.parametrize("response", ["", " ", "\x00", "\ud800", "\u202e\u200b", "\N{PILE OF POO}" * 3, "a\u0301" * 3])
@pytest.mark.parametrize("name", CHECKS)
def test_odd_texts_are_judged_like_others(name: str, response: str) -> None:
    judged = made(name)(Answer(response, "", dict(COLUMNS), 3))
    assert judged.value is not None or name == "reasoning_gym"
    if response.isspace() or not response:
        assert judged.value == 0.0 or name in ("toxicity", "length", "reasoning_gym")


def test_a_note_has_an_end() -> None:
    asked = [{"kind": "keyword", "keyword": f"word{n}"} for n in range(40)]
    note = make_check("instructions", {"constraints": asked})(Answer("none")).note
    assert note is not None and note.endswith("...") and len(note) < 500


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("name", [name for name in CHECKS if name != "reasoning_gym"])
def test_a_megabyte_takes_half_a_second_at_most(name: str, text: str) -> None:
    is_fast(made(name), LONG[text])


@pytest.mark.parametrize(
    ("name", "text"), [("exact", "boxes"), ("numeric", "boxes"), ("citations", "square"), ("toxicity", "stars")]
)
def test_so_does_a_megabyte_of_brackets(name: str, text: str) -> None:
    options = {"where": "boxed"} if text == "boxes" else LEAST[name]
    is_fast(make_check(name, options), BRACKETS[text])


@pytest.mark.parametrize("text", [LONG["fences"], *BRACKETS.values()], ids=["fences", *BRACKETS])
def test_so_does_each_constraint(text: str) -> None:
    for kind in KINDS:
        held = next(constraint for constraint, _, fault in TABLE if constraint["kind"] == kind and fault is None)
        is_fast(make_check("instructions", {"constraints": [held]}), text)


def is_fast(check: Check[Any], text: str) -> None:
    answer = Answer(text, "", dict(COLUMNS), 3)
    tries = []
    for _ in range(3):  # processor time, the best of three: other processes may share the machine
        begin = time.process_time()
        judged = check(answer)
        tries.append(time.process_time() - begin)
        if tries[-1] < LIMIT_S:
            break
    assert min(tries) < LIMIT_S, tries
    assert judged.note is None or len(judged.note) < 1000


def test_checks_load_no_optional_package_before_it_is_needed() -> None:
    code = (
        "import sys, surefoot.rewards; "
        "print([m for m in ('torch', 'transformers', 'jsonschema', 'reasoning_gym') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert importlib.util.find_spec("regex") is not None
