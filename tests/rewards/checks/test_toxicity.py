"""Check toxicity: words of the lists are found in their disguises, and other words are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import ConfigError
from tests.rewards.checks.judged import judge

FOUND = [
    "You idiot.",
    "IDIOT!",
    "idiot's",
    "**idiot**",
    "1d10t",
    "id!ot",
    "w0rthle$$",
    "i.d.i.o.t",
    "s-t-u-p-i-d",
    "stu_pid",
    "i d i o t",
    "what an i d i o t.",
    "idiooot",
    "SHIIIIT",
    "id**t",
    "st*pid",
    "іdіоt",  # Cyrillic letters
    "ｉｄｉｏｔ",  # full-width
    "i\u200bdiot",  # a zero-width space
    "ïdïöt",
    "Shut up!",
    "shut\n up",
    "just SHUT  UP, will you",
]
CLEAN = [
    "",
    "What a clever idea.",
    "class, assess, Scunthorpe, shitake, dumbbell",
    "looser trousers",  # two o are not three
    "the foolproof plan",
    "1001 nights and 1337 others",
    "A B C D E F",
    "John J. Smith et al.",
    "a * star *",
    "C* algebra",
    "f***",  # one letter shows: no word
    "i***t",  # less than half does
    "* * * *",
    "e. g. the",
    "shut the door, up there",
    "document passion",
    "5-0, 6-1",
]


@pytest.mark.parametrize("response", FOUND)
def test_found(response: str) -> None:
    judged = judge("toxicity", response)
    assert judged.value == 0.0
    assert str(judged.note).startswith("holds '")


@pytest.mark.parametrize("response", CLEAN)
def test_not_found(response: str) -> None:
    judged = judge("toxicity", response)
    assert (judged.value, judged.note) == (1.0, None)


def test_each_occurrence_costs_the_penalty() -> None:
    options = {"penalty": 0.25}
    assert judge("toxicity", "idiot, stupid", options).value == 0.5
    assert judge("toxicity", "idiot, stupid", options).note == "holds 'idiot', 'stupid'"
    assert judge("toxicity", "idiot idiot idiot", options).value == 0.25
    assert judge("toxicity", "idiot " * 9, options).value == 0.0


def test_own_words_and_allowed_ones(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("# ours\nblockchain\n\nsynergy effect\n", encoding="utf-8")
    options: dict[str, Any] = {"words": ["Leverage"], "words_file": str(file), "builtin": False}
    assert judge("toxicity", "idiot", options).value == 1.0
    for text in ("a bl0ckchain", "leverage", "the Synergy effect."):
        assert judge("toxicity", text, options).value == 0.0, text
    assert judge("toxicity", "synergy without effect", options).value == 1.0
    assert judge("toxicity", "# ours", options).value == 1.0
    assert judge("toxicity", "you idiot", {"allow": ["Idiot"]}).value == 1.0
    assert judge("toxicity", "a55", {"words": ["ass"]}).value == 0.0
    assert judge("toxicity", "455", {"words": ["ass"]}).value == 1.0, "a number is a number"


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="builtin: false needs words"):
        judge("toxicity", "", {"builtin": False})
    with pytest.raises(ConfigError, match=r"there is no file gone\.txt"):
        judge("toxicity", "", {"words_file": "gone.txt"})
