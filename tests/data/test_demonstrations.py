"""Demonstrations: every shape of row, bad rows named by file and row, long ones dropped, cut or refused, counted."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from surefoot.config import SFTSection
from surefoot.data.demonstrations import (
    Demonstration,
    DemonstrationSet,
    prepare_demonstrations,
    prompt_key,
    read_demonstrations,
)
from surefoot.data.held_out import shared_prompts, split_by_prompt
from surefoot.errors import DataError
from surefoot.models.answers import AnswerEncoder
from surefoot.models.tokenizer import TextCodec
from tests.models.made_tokenizers import byte_level

USER, ANSWER = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def read(path: Path, *rows: Any, **options: Any) -> tuple[Demonstration, ...]:
    return read_demonstrations(written(path / "d.jsonl", *rows), SFTSection(**options)).rows


# -------------------------------------------------------------------------------------------------------------- rows


def test_every_shape_of_a_demonstration_is_read(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        {"messages": [USER, ANSWER], "extra": 1},
        {"prompt": "hello", "completion": " there"},
        {"prompt": [USER], "completion": "there"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"prompt": "hello", "completion": [ANSWER]},
        {"text": "hello there"},
        {"prompt": "", "completion": "there"},
    )
    chats = [row.messages for row in rows]
    assert chats[0] == chats[2] == chats[3] == chats[4] == (USER, ANSWER)
    assert [(row.prompt, row.text) for row in rows if row.messages is None] == [
        ("hello", " there"),
        (None, "hello there"),
        ("", "there"),
    ]
    assert [row.id for row in rows] == [f"d.jsonl:{i}" for i in range(1, 8)]


def test_columns_can_have_other_names(tmp_path: Path) -> None:
    names = {"messages_column": "dialogue", "prompt_column": "q", "completion_column": "a", "text_column": "body"}
    rows = read(tmp_path, {"dialogue": [USER, ANSWER]}, {"q": "x", "a": "y"}, {"body": "z"}, **names)
    assert [bool(row.messages) for row in rows] == [True, False, False] and rows[1].text == "y"


BAD: tuple[tuple[Any, str], ...] = (
    ('{"messages": ', "not JSON"),
    ([], "an array"),
    ({"question": "x"}, "it needs 'messages', 'prompt' with 'completion', or 'text' (columns: question)"),
    ({"prompt": "x"}, "no demonstration in it"),
    ({"completion": "x", "text": "y"}, "no demonstration in it"),
    ({"messages": [USER]}, "messages: no turn of the assistant's"),
    ({"messages": "x"}, "messages: messages must be a list, not str"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages: message 1: role 'robot'"),
    ({"messages": [USER, {"role": "assistant", "content": 7}]}, "message 2: content must be text, not int"),
    ({"prompt": "x", "completion": " "}, "completion: is empty"),
    ({"prompt": 7, "completion": "x"}, "prompt: messages must be a list, not int"),
    ({"prompt": "x", "completion": 7}, "completion: messages must be a list, not int"),
    ({"prompt": "x", "completion": "a\u0000b"}, "NUL character"),
    ({"prompt": "a\ud83d", "completion": "x"}, "prompt: holds half of a surrogate pair"),
    ({"text": ""}, "text: is empty"),
)


@pytest.mark.parametrize(("row", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_each_bad_row_is_named_with_its_reason(tmp_path: Path, row: Any, reason: str) -> None:
    rows = ({"text": "fine"}, row, {"text": "fine too"})
    with pytest.raises(DataError) as caught:
        read(tmp_path, *rows)
    assert "1 of 3 rows" in str(caught.value) and "d.jsonl line 2: " in str(caught.value)
    assert reason in str(caught.value)
    assert "sft.bad_rows: skip" in str(caught.value)
    assert len(read(tmp_path, *rows, bad_rows="skip")) == 2


def test_wrong_columns_everywhere_get_the_right_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 of 2 rows .* hint: correct them$"):
        read(tmp_path, {"question": "x"}, {"question": "y"}, bad_rows="skip")
    with pytest.raises(DataError, match="the data is empty"):
        read(tmp_path)
    with pytest.raises(DataError, match="the data file does not exist"):
        read_demonstrations(str(tmp_path / "gone.jsonl"), SFTSection())


# --------------------------------------------------------------------------------------------------------- to tokens


def prepared(rows: list[Demonstration], limit: int | None, **options: Any) -> DemonstrationSet:
    encoder = AnswerEncoder(TextCodec.of(byte_level()))
    return prepare_demonstrations(rows, encoder, SFTSection(**options), limit=limit)


LONG = [Demonstration("d:1", text="ab"), Demonstration("d:2", text="x" * 30), Demonstration("d:3", (USER, ANSWER))]


def test_long_rows_are_dropped_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "surefoot"):
        found = prepared(LONG, 20)
    assert [row.id for row in found.rows] == ["d:1", "d:3"] and found.dropped == ("d:2 (31)",)
    assert "1 demonstrations of more than 20 tokens dropped: d:2 (31)" in caplog.text
    assert found.counts == {
        "kept": 2,
        "dropped": 1,
        "cut": 0,
        "refused": 0,
        "tokens": sum(len(row.tokens) for row in found.rows),
        "trained_tokens": sum(int(row.mask.sum()) for row in found.rows),
        "longest": max(len(row.tokens) for row in found.rows),
    }


def test_long_rows_are_cut_at_the_right_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "surefoot"):
        found = prepared(LONG, 20, overlong="cut")
    whole = prepared(LONG, None)
    assert found.cut == ("d:2",) and "cut to 20 tokens, the ends of their answers with it: d:2" in caplog.text
    assert found.rows[1].tokens.tolist() == whole.rows[1].tokens[:20].tolist() and found.rows[1].mask.sum() == 19
    # A prompt that fills the limit leaves nothing to train.
    assert prepared(LONG, 8, overlong="cut").dropped == ("d:3 (15)",)


def test_long_rows_are_refused() -> None:
    with pytest.raises(DataError, match=r"1 of 3 demonstrations are longer than 20 tokens; got: d:2 \(31\)"):
        prepared(LONG, 20, overlong="error")
    with pytest.raises(DataError, match="3 of 3 demonstrations are longer"):
        prepared(LONG, 2)


def test_rows_that_cannot_be_encoded_are_named() -> None:
    empty = Demonstration("d:9", ({"role": "user", "content": "x"}, {"role": "assistant", "content": " "}))
    with pytest.raises(DataError, match=r"1 of 4 demonstrations cannot be encoded: d:9: .*answer .* is empty"):
        prepared([*LONG, empty], None)
    found = prepared([*LONG, empty], None, bad_rows="skip")
    assert len(found.rows) == 3 and found.refused[0][0] == "d:9"


# ---------------------------------------------------------------------------------------------------------- held out


def test_rows_with_one_prompt_stay_together() -> None:
    rows = [Demonstration(f"d:{i}", prompt=f"prompt {i % 20}", text=str(i)) for i in range(100)]
    train, held = split_by_prompt(rows, 0.2, seed=0, section="sft")
    assert len(held) == 20 and len(train) == 80 and shared_prompts(train, held) == 0
    assert sorted((*train, *held), key=lambda r: int(r.id[2:])) == rows
    assert split_by_prompt(rows[::-1], 0.2, seed=0, section="sft")[1] == held[::-1], "the order of rows does not matter"
    assert split_by_prompt(rows, 0.2, seed=1, section="sft")[1] != held
    assert split_by_prompt(rows, 0.0, seed=0, section="sft") == (tuple(rows), ())
    # As nearly as whole prompts allow, and at least one on each side.
    assert len(split_by_prompt(rows, 0.001, seed=0, section="sft")[1]) == 5
    assert len(split_by_prompt(rows, 0.999, seed=0, section="sft")[0]) == 5
    with pytest.raises(DataError, match=r"only one prompt.*sft\.held_out_share: 0"):
        split_by_prompt([rows[0], rows[20]], 0.5, seed=0, section="sft")


def test_a_prompt_is_what_comes_before_the_last_answer() -> None:
    longer = (USER, ANSWER, {"role": "user", "content": "and"}, ANSWER)
    keys = [
        Demonstration("a", (USER, ANSWER)).prompt_key,
        Demonstration("b", (USER, {"role": "assistant", "content": "other"})).prompt_key,
        Demonstration("c", longer).prompt_key,
        Demonstration("d", prompt="hello", text="x").prompt_key,
        Demonstration("e", text="hello").prompt_key,
    ]
    assert keys[0] == keys[1] == prompt_key([USER]) and keys[3] == keys[4] == prompt_key("hello")
    assert Counter(keys).most_common(1)[0][1] == 2 and len(set(keys)) == 3
