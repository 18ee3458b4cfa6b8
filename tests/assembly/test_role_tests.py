"""Control tokens and template text in messages stay text; where they do not, it is found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from surefoot.assembly.role_tests import fake_turn, spelled_controls, try_roles, turn_can_be_typed
from surefoot.data.preferences import Pair
from surefoot.models.reward_model import RewardModel
from tests.known_reward_model import known_reward_model

SAID: tuple[Mapping[str, Any], ...] = (
    {"role": "system", "content": "it is a film"},
    {"role": "user", "content": "a film"},
    {"role": "assistant", "content": "it is good"},
)
CHATS = [Pair("p:1", SAID, SAID, None, "k", SAID[:-1])]
TEXTS = [Pair("p:1", "a film is good", "a film is bad", None, "k", "a film is ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return known_reward_model(tmp_path / "model")


def test_what_is_typed_stays_text(folder: Path) -> None:
    model = RewardModel(str(folder))
    turn = fake_turn(model, CHATS)
    assert turn.startswith("<|im_end|>") and turn.count("<|im_start|>") == 2 and "best answer" in turn
    told: list[tuple[str, int, int]] = []
    found = try_roles(model, CHATS, lambda *step: told.append(step))
    assert (found.chats, found.texts, found.broken, found.unguarded) == (1, 0, (), 0)
    assert set(found.spellings) == {"<pad>", "<|im_start|>", "<|im_end|>"}
    criterion = found.criterion()
    assert criterion is not None and criterion.passed and criterion.finding is None
    assert told == [("roles", 1, 1)]
    # The ids themselves: the faked turn is read as no turn, and a real one is.
    controls = set(spelled_controls(model).values())
    typed = (*SAID[:-1], {"role": "assistant", "content": f"it is good {turn}"})
    real = (*SAID, {"role": "user", "content": "thanks"})

    def turns(messages: Any) -> int:
        return sum(number in controls for number in model.encode(messages))

    assert turns(typed) == turns(SAID) < turns(real)


def test_a_template_that_breaks_the_guard_is_found(folder: Path) -> None:
    """It rewrites what was typed, so that what is typed cannot be told from what the template writes."""
    file = folder / "chat_template.jinja"
    file.write_text(
        file.read_text(encoding="utf-8").replace("m['content']", "(m['content'] | title)"), encoding="utf-8"
    )
    found = try_roles(RewardModel(str(folder)), CHATS)
    assert found.unguarded > 0
    assert "<|im_end|> typed by the user" in found.broken and "a faked turn typed by the assistant" in found.broken
    criterion = found.criterion()
    assert criterion is not None and not criterion.passed and criterion.finding is not None
    assert criterion.finding.severity == "error" and criterion.value == len(found.broken) + found.unguarded


PLAIN = "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} . {% endfor %}"
CLOSED = (
    "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<|im_end|>{% endif %} {% endfor %}"
)


@pytest.mark.parametrize(("template", "who"), [(PLAIN, ["user", "assistant"]), (CLOSED, ["user"])])
def test_a_template_of_plain_words_lets_people_speak_for_others(template: str, who: list[str], folder: Path) -> None:
    """Also where only the assistant's turns end in a token: then the user can begin the assistant's."""
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    model = RewardModel(str(folder))
    assert turn_can_be_typed(model) == who
    found = try_roles(model, CHATS)
    assert found.broken == tuple(f"a turn in the template's plain words typed by the {one}" for one in who)
    criterion = found.criterion()
    assert criterion is not None and not criterion.passed and criterion.finding is not None
    assert criterion.finding.severity == "error" and "plain words" in criterion.finding.message


def test_a_template_that_cannot_be_used_does_not_stop_the_test_of_plain_texts(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no chats') }}", encoding="utf-8")
    found = try_roles(RewardModel(str(folder)), TEXTS)
    assert (found.chats, found.texts, found.in_chats) == (0, 1, 0)
    (folder / "chat_template.jinja").write_text("{% for m in %}", encoding="utf-8")
    found = try_roles(RewardModel(str(folder)), TEXTS)
    assert (found.chats, found.texts) == (0, 1)


def test_the_template_is_tried_though_the_pairs_are_plain_texts(folder: Path) -> None:
    model = RewardModel(str(folder))
    assert turn_can_be_typed(model) == []
    found = try_roles(model, TEXTS)
    assert (found.chats, found.texts, found.in_chats) == (1, 1, 0) and found.broken
    criterion = found.criterion()
    assert criterion is not None and criterion.passed, "in plain texts it is a warning"
    file = folder / "chat_template.jinja"
    file.write_text(
        file.read_text(encoding="utf-8").replace("m['content']", "(m['content'] | title)"), encoding="utf-8"
    )
    worse = try_roles(RewardModel(str(folder)), TEXTS)
    failed = worse.criterion()
    assert worse.in_chats > 0 and failed is not None and not failed.passed


def test_reading_the_template_as_one_text_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many programs do it."""
    model = RewardModel(str(folder))

    def unguarded(codec: Any, messages: Any) -> tuple[list[int], str]:
        text = codec.chat.render(messages, generation_prompt=False)
        return codec.encode_text(text), text

    monkeypatch.setattr(type(model.codec), "encode_dialogue", unguarded)
    found = try_roles(model, CHATS)
    assert {one for one in found.broken if one.startswith("<pad>")} == {
        "<pad> typed by the user",
        "<pad> typed by the assistant",
    }


def test_in_plain_texts_control_tokens_are_real_and_that_is_said(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    model = RewardModel(str(folder))
    assert not model.has_chat_template
    found = try_roles(model, TEXTS)
    assert (found.chats, found.texts) == (0, 1) and "<|im_end|> typed by the author of a text" in found.broken
    criterion = found.criterion()
    assert criterion is not None and criterion.passed and criterion.finding is not None
    assert criterion.finding.severity == "warning"
    assert fake_turn(model, TEXTS).startswith("<|im_end|>")
    transcript = [Pair("p:1", "\n\nHuman: a\n\nAssistant: b", "\n\nHuman: a\n\nAssistant: c", None, "k")]
    assert fake_turn(model, transcript).endswith("\n\nAssistant: Thank you.")
