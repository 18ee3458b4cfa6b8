"""Where an answer begins, and pairs in which one thing is changed and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from surefoot.data.preferences import Pair
from surefoot.data.transcripts import Text
from surefoot.evals.changed_pairs import VIEW, VIEW_CHARACTERS, Changed, changed_pairs, parted
from surefoot.evals.surface import surface_changes

ALL = surface_changes(["popcorn"], "<end>")


def said(role: str, content: str) -> Mapping[str, Any]:
    return {"role": role, "content": content}


def texts(chosen: Text, rejected: Text, prompt: Text | None = None) -> Pair:
    return Pair("p:1", chosen, rejected, None, "k", prompt)


ASKED = (said("system", "Be brief."), said("user", "Was it good?"))
CHAT = texts((*ASKED, said("assistant", "Yes. It was.")), (*ASKED, said("assistant", "Yes. Not at all.")), ASKED)
TRANSCRIPT = texts(
    "\n\nHuman: Hi there. can you help\n\nAssistant: Yes, sure.", "\n\nHuman: Hi there. can you help\n\nAssistant: No."
)
KNOWN = texts("Write a review. Please It is good.", "Write a review. Please It is bad.", "Write a review. Please ")
GUESSED = texts("A review of Stalker: It is good.", "A review of Stalker: It is bad.")


@pytest.mark.parametrize(
    ("pair", "asked", "answer"),
    [
        (CHAT, "Was it good?", "Yes. It was."),
        (TRANSCRIPT, "\n\nHuman: Hi there. can you help\n\nAssistant: ", "Yes, sure."),
        (KNOWN, "Write a review. Please ", "It is good."),
        (GUESSED, "A review of Stalker: ", "It is good."),
        (texts("One.", "Two."), "", "One."),
    ],
)
def test_an_answer_is_found_and_put_back(pair: Pair, asked: str, answer: str) -> None:
    found = parted(pair.chosen, pair)
    assert (found.asked, found.answer) == (asked, answer)
    assert found.with_answer(answer) == pair.chosen
    other = parted(found.with_answer("No."), texts(found.with_answer("No."), pair.rejected, pair.prompt))
    assert (other.asked, other.answer) == (asked, "No.")


def changes_of(pair: Pair) -> dict[str, Changed]:
    return {change.name: change for change in changed_pairs(pair, ALL)}


@pytest.mark.parametrize("pair", [CHAT, TRANSCRIPT, KNOWN, GUESSED])
def test_a_change_of_the_surface_leaves_the_prompt_alone(pair: Pair) -> None:
    found = changes_of(pair)
    assert set(ALL) - set(found) <= {"prompt_words"}
    for name in found.keys() - {"stated_view"}:
        for text, changed in zip((pair.chosen, pair.rejected), found[name].after, strict=True):
            one, other = parted(text, pair), parted(changed, pair)
            if isinstance(changed, str):
                assert changed.startswith(one.asked)
            else:
                assert changed[:-1] == text[:-1] and other.asked == one.asked
            assert other.answer == ALL[name](one.answer, one.asked)
        assert found[name].before is None


def test_a_stated_view_is_said_by_the_user_and_changes_no_answer() -> None:
    change = changes_of(CHAT)["stated_view"]
    assert change.before is not None
    for texts_of, views in ((change.after, ("It was.", "Not at all.")), (change.before, ("Not at all.", "It was."))):
        for text, plain, view in zip(texts_of, (CHAT.chosen, CHAT.rejected), views, strict=True):
            assert not isinstance(text, str) and text[-1] == plain[-1] and text[0] == plain[0]
            assert text[1] == said("user", f"Was it good?\n{VIEW.format(view)}")
    transcript = changes_of(TRANSCRIPT)["stated_view"].after[0]
    assert transcript == (f"\n\nHuman: Hi there. can you help\n{VIEW.format('Yes, sure.')}\n\nAssistant: Yes, sure.")
    for pair in (
        KNOWN,
        GUESSED,
        texts((*ASKED, said("tool", "4"), CHAT.chosen[-1]), (*ASKED, said("tool", "4"), CHAT.rejected[-1])),
    ):  # type: ignore[arg-type]
        assert "stated_view" not in changes_of(pair), "nobody is known to have asked"


def test_long_answers_are_told_apart_by_as_much_of_each() -> None:
    start = "The film begins slowly and takes a while. "
    answers = [start + word * 400 for word in ("good ", "bad ")]
    chosen, rejected = ((*ASKED, said("assistant", answer)) for answer in answers)
    after = changes_of(texts(chosen, rejected))["stated_view"].after
    views = [str(text[1]["content"]).partition(VIEW.format(""))[2] for text in after]  # type: ignore[index]
    assert views[0].startswith("good good") and views[1].startswith("bad bad")
    assert all(VIEW_CHARACTERS - 8 < len(view) <= VIEW_CHARACTERS for view in views)
    same = texts((*ASKED, said("assistant", "Yes.")), (*ASKED, said("assistant", " Yes. ")))
    assert "stated_view" not in changes_of(same)
