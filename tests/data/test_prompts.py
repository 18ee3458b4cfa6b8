"""One rule for long prompts, applied once, on the rendered prompt; dropped and cut rows counted and named."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from surefoot.config.sections import DataSection
from surefoot.data.prompts import PromptSet, prepare_prompts
from surefoot.data.reading import Row
from surefoot.errors import DataError, ModelError
from surefoot.models.tokenizer import TextCodec
from tests.models.made_tokenizers import byte_level, sentencepiece_like


class Numbers:
    """Prompts are numbers between blanks, and the numbers are the ids: what is cut can be read off."""

    def encode_prompt(self, prompt: str | Sequence[Mapping[str, Any]], /) -> tuple[list[int], str]:
        if not isinstance(prompt, str):
            raise ModelError("no chat template")
        if prompt == "refused":
            raise DataError("the tokenizer cannot read a text")
        return [int(word) for word in prompt.split()], prompt

    def decode(self, tokens: Sequence[int], /) -> str:
        return " ".join(map(str, tokens))


@dataclass
class Beginning(Numbers):
    """The same with a begin token."""

    bos_id: int = 0

    def encode_prompt(self, prompt: str | Sequence[Mapping[str, Any]], /) -> tuple[list[int], str]:
        ids, text = super().encode_prompt(prompt)
        return [self.bos_id, *ids], text


def rows(*prompts: Any) -> list[Row]:
    return [Row(f"p.jsonl:{n + 1}", n, prompt, {"n": n}) for n, prompt in enumerate(prompts)]


def prepared(given: list[Row], encoder: Any = None, context: int | None = None, new: int = 4, **data: Any) -> PromptSet:
    section = DataSection(**data)
    return prepare_prompts(given, encoder or Numbers(), section, context=context, max_new_tokens=new)


# --------------------------------------------------------------------------------------------------- long prompts

LONG, SHORT = "1 2 3 4 5", "6 7 8"


@pytest.mark.parametrize(("rule", "tokens"), [("left", (3, 4, 5)), ("right", (1, 2, 3))])
def test_cutting_keeps_the_named_end_and_the_text_follows_the_tokens(rule: str, tokens: tuple[int, ...]) -> None:
    found = prepared(rows(SHORT, LONG), max_prompt_tokens=3, overlong=rule)
    assert [p.tokens for p in found.prompts] == [(6, 7, 8), tokens]
    assert found.prompts[1].text == Numbers().decode(tokens)
    assert found.cut == ("p.jsonl:2",)
    assert found.counts == {"rows": 2, "kept": 2, "dropped": 0, "cut": 1, "refused": 0, "longest": 3}


def test_dropping_is_counted_and_names_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        found = prepared(rows(LONG, SHORT, LONG), max_prompt_tokens=3, overlong="drop")
    assert [p.id for p in found.prompts] == ["p.jsonl:2"]
    assert found.dropped == ("p.jsonl:1", "p.jsonl:3")
    assert found.counts["dropped"] == 2 and found.counts["rows"] == 3
    assert "2 prompts of more than 3 tokens dropped: p.jsonl:1, p.jsonl:3" in caplog.text


def test_refusing_names_rows_lengths_and_limit() -> None:
    with pytest.raises(DataError) as caught:
        prepared(rows(SHORT, LONG, "1 2 3 4"), max_prompt_tokens=3, overlong="error")
    for part in ("2 prompts are longer", "p.jsonl:2 (5), p.jsonl:3 (4)", "at most 3"):
        assert part in str(caught.value)


@pytest.mark.parametrize("rule", ["drop", "left", "right", "error"])
def test_a_prompt_of_just_the_limit_is_left_alone(rule: str) -> None:
    found = prepared(rows(SHORT), max_prompt_tokens=3, overlong=rule)
    assert (found.prompts[0].tokens, found.dropped, found.cut) == ((6, 7, 8), (), ())


def test_cutting_at_the_left_keeps_the_begin_token() -> None:
    cut = [
        prepared(rows(LONG), Beginning(), max_prompt_tokens=limit, overlong=rule).prompts[0].tokens
        for limit, rule in ((3, "left"), (3, "right"), (1, "left"))
    ]
    assert cut == [(0, 4, 5), (0, 1, 2), (5,)]


def test_the_length_is_that_of_the_rendered_prompt() -> None:
    codec = TextCodec.of(byte_level())
    chat = ({"role": "user", "content": "hi"},)
    bare, rendered = len(codec.encode_text("hi")), len(codec.encode_prompt(chat)[0])
    assert bare < rendered
    found = prepared(rows(chat), codec, max_prompt_tokens=rendered, overlong="drop")
    assert found.prompts[0].messages == chat and found.prompts[0].text == codec.encode_prompt(chat)[1]
    with pytest.raises(DataError, match=f"got: {rendered} tokens"):
        prepared(rows(chat), codec, max_prompt_tokens=rendered - 1, overlong="drop")


def test_cutting_a_chat_warns_and_cutting_a_text_does_not(caplog: pytest.LogCaptureFixture) -> None:
    codec = TextCodec.of(sentencepiece_like())
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        prepared(rows("hello there hello world hello"), codec, max_prompt_tokens=4, overlong="left")
        assert "cut to 4 tokens" in caplog.text and "chat" not in caplog.text
        chat = ({"role": "user", "content": "hello there hello world"},)
        found = prepared(rows(chat), codec, max_prompt_tokens=4, overlong="left")
    assert "1 of them are chats" in caplog.text
    tokens = found.prompts[0].tokens
    assert (len(tokens), tokens[0]) == (4, codec.bos_id)
    assert found.prompts[0].text == codec.decode(tokens)


def test_nothing_left_is_an_error_with_the_shortest_length() -> None:
    with pytest.raises(DataError, match="none is left; got: 4 tokens and more; allowed: at most 3"):
        prepared(rows(LONG, "1 2 3 4"), max_prompt_tokens=3, overlong="drop")
    with pytest.raises(DataError, match="no prompts"):
        prepared([])


# -------------------------------------------------------------------------------------------------------- context


def test_prompt_and_new_tokens_must_fit_the_model() -> None:
    assert len(prepared(rows(SHORT, LONG), context=9, new=4).prompts) == 2
    with pytest.raises(DataError) as caught:
        prepared(rows(SHORT, LONG), context=8, new=4)
    for part in ("1 prompts and 4 new tokens", "context of 8", "p.jsonl:2 (5)", "data.max_prompt_tokens: 4"):
        assert part in str(caught.value)
    assert len(prepared(rows(SHORT, LONG), context=8, new=4, max_prompt_tokens=4).prompts) == 1
    with pytest.raises(DataError, match=r"lower rollout\.max_new_tokens"):
        prepared(rows(SHORT), context=8, new=8)


# --------------------------------------------------------------------------------------- rows that cannot be encoded


def test_rows_that_cannot_be_encoded_are_refused_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    given = rows("1 2", "refused", "3")
    with pytest.raises(DataError, match=r"1 of 3 rows cannot be encoded: p\.jsonl:2: the tokenizer cannot read"):
        prepared(given)
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        found = prepared(given, bad_rows="skip")
    assert [p.id for p in found.prompts] == ["p.jsonl:1", "p.jsonl:3"]
    assert [row for row, _ in found.refused] == ["p.jsonl:2"] and "p.jsonl:2" in caplog.text
    assert found.counts["refused"] == 1
    with pytest.raises(DataError, match="no row can be encoded"):
        prepared(rows("refused"), bad_rows="skip")


def test_a_template_that_refuses_a_chat_names_the_row() -> None:
    codec = TextCodec.of(sentencepiece_like())
    chats = [
        ({"role": "user", "content": "x"},),
        ({"role": "system", "content": "y"}, {"role": "user", "content": "x"}),
    ]
    with pytest.raises(DataError, match=r"p\.jsonl:2: .*only user and assistant"):
        prepared(rows(*chats), codec)


def test_chats_for_a_model_without_template_end_at_once_even_when_bad_rows_are_skipped() -> None:
    codec = TextCodec.of(byte_level(template=None), name="base")
    with pytest.raises(ModelError, match="base has no chat template"):
        prepared(rows("text", ({"role": "user", "content": "x"},)), codec, bad_rows="skip")


def test_ids_and_columns_go_along() -> None:
    prompt = prepared(rows("1", "2")).prompts[1]
    assert (prompt.id, prompt.tokens, prompt.text, dict(prompt.columns), prompt.messages) == (
        "p.jsonl:2",
        (2,),
        "2",
        {"n": 1},
        None,
    )
