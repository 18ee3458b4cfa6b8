"""Response texts, offsets, stop tokens and vocabulary sizes: by position and by id, never by guess."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest

from surefoot.errors import DataError
from surefoot.models.tokenizer import TextCodec
from surefoot.records import StopReason
from surefoot.rewards.placing import place_spans
from tests.models.made_tokenizers import CHATML, byte_level, sentencepiece_like, unigram, words

# ------------------------------------------------------------------------------------------------ response text

THINKING = {"<pad>": 0, "<eos>": 1, "<think>": 2, "</think>": 3, "x": 4, "7": 5, "<end>": 6}


def thinking_codec(**options: Any) -> TextCodec:
    specials = ("<pad>", "<eos>", "<think>", "</think>", "<end>")
    named = {"eos_token": "<eos>", "pad_token": "<pad>"} | options.pop("named", {})
    return TextCodec.of(words(THINKING, specials=specials, **named), **options)


def test_think_tags_registered_as_special_reach_the_reward_and_the_stop_token_does_not() -> None:
    codec = thinking_codec()
    tokens = [2, 4, 3, 5, 1]
    assert codec.response_text(tokens, StopReason.EOS) == "<think>x</think>7"
    assert codec.response_text(tokens, StopReason.EOS, skip_special=True) == "x7"
    assert codec.decode(tokens) == "<think>x</think>7<eos>"


def test_only_the_stop_token_that_ended_the_response_is_left_off() -> None:
    codec = thinking_codec(config_stop_ids=(6,))
    assert codec.response_text([1, 4, 6, 5, 6], StopReason.EOS) == "<eos>x<end>7"
    assert codec.response_text([4, 5], StopReason.LENGTH) == "x7"
    assert codec.response_text([4, 1], StopReason.ENVIRONMENT) == "x<eos>"  # not ended by it: kept
    assert codec.response_text([4, 5], StopReason.EOS) == "x7"
    assert codec.response_text([1], StopReason.EOS) == codec.response_text([], StopReason.LENGTH) == ""
    assert codec.response_text(np.array([4, 1]), StopReason.EOS) == "x"


def test_pad_equal_to_end_token_loses_no_text() -> None:
    codec = thinking_codec(named={"pad_token": "<eos>"})
    assert codec.pad_id == 1
    assert codec.response_text([1, 1, 4, 1, 1], StopReason.EOS) == "<eos><eos>x<eos>"


def test_a_response_cut_within_a_character_is_still_text() -> None:
    codec = TextCodec.of(byte_level())
    tokens = codec.encode_text("film 漢")
    assert codec.response_text(tokens[:-1], StopReason.LENGTH) == "film �"


# -------------------------------------------------------------------------------------------------------- spans

TEXTS = ("hello there", "Schöne Grüße 👩‍👩‍👧 aus 東京!", "é", "  two  blanks ", "a\n\nb\t漢字漢字", "")


@pytest.mark.parametrize("text", TEXTS)
def test_spans_of_byte_level_tokens_are_those_of_the_tokenizer(text: str) -> None:
    """The tokenizer's own offsets give a character to all its tokens; ours to the one that completes it."""
    tokenizer = byte_level()
    codec = TextCodec.of(tokenizer)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    theirs = encoded["offset_mapping"]
    last_of = {span: number for number, span in enumerate(theirs)}
    expected = [(start, end) if last_of[start, end] == n else (start, start) for n, (start, end) in enumerate(theirs)]
    assert codec.spans(encoded["input_ids"]) == expected
    assert codec.decode(encoded["input_ids"]) == text


def test_one_character_of_three_tokens_belongs_to_the_last() -> None:
    codec = TextCodec.of(byte_level())
    tokens = codec.encode_text("a漢b")
    assert len(tokens) == 5
    assert codec.spans(tokens) == [(0, 1), (1, 1), (1, 1), (1, 2), (2, 3)]


MAKERS = {"byte-level": byte_level, "sentencepiece-like": sentencepiece_like, "unigram": unigram}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("length", [1, 31, 32, 33, 130])
def test_spans_of_any_tokens_cover_the_text_and_agree_with_decoding_from_the_start(maker: str, length: int) -> None:
    codec = TextCodec.of(MAKERS[maker]())
    draw = random.Random(length)
    tokens = [draw.randrange(codec.rows_needed) for _ in range(length)]  # broken characters and special tokens too
    text, spans, start = codec.decode(tokens), codec.spans(tokens), 0
    for count, span in enumerate(spans, start=1):
        sofar, end = codec.decode(tokens[:count]), start
        while end < min(len(sofar), len(text)) and sofar[end] == text[end]:
            end += 1
        assert span == (start, len(text) if count == length else end)
        start = end


def test_the_closing_stop_token_lies_behind_the_response_text() -> None:
    codec = TextCodec.of(byte_level())
    tokens = [*codec.encode_text("é漢"), codec.tokenizer.eos_token_id]
    assert codec.response_text(tokens, StopReason.EOS) == "é漢"
    assert codec.spans(tokens)[-1] == (2, 2 + len("<|im_end|>"))


def test_rewards_by_span_of_multi_byte_text_land_on_tokens_and_sum_up() -> None:
    codec = TextCodec.of(byte_level())
    text = "Größe 漢字 👩‍👩‍👧!"
    tokens = [*codec.encode_text(text), codec.tokenizer.eos_token_id]
    rewards = [(text.index("漢"), text.index("漢") + 1, 0.25), (0, 5, 1.0), (len(text) - 1, len(text), -0.5)]
    placed = place_spans(rewards, codec.spans(tokens), [True] * len(tokens), length=len(text))
    assert sum(placed) == 0.75
    completes = next(n for n in range(len(tokens)) if codec.decode(tokens[: n + 1]) == "Größe 漢")
    assert placed[completes] == 0.25


# --------------------------------------------------------------------------------------------- stop and pad ids


def test_stop_ids_are_those_of_tokenizer_and_configs(caplog: pytest.LogCaptureFixture) -> None:
    assert thinking_codec().stop_ids == {1}
    assert thinking_codec(config_stop_ids=(6, 1)).stop_ids == {1, 6}
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        codec = thinking_codec(config_stop_ids=(5, 50256))  # a word, and an id of another vocabulary
    assert codec.stop_ids == {1}
    assert "5, 50256" in caplog.text


def test_without_an_end_token_of_its_own_the_tokenizer_believes_the_configs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        assert TextCodec.of(words({"a": 0, "b": 1}, specials=()), config_stop_ids=(1,)).stop_ids == {1}
        assert caplog.text == ""
        assert TextCodec.of(words({"a": 0, "b": 1}, specials=())).stop_ids == frozenset()
    assert "no end-of-sequence token" in caplog.text


@pytest.mark.parametrize(
    ("named", "pad"),
    [
        ({"pad_token": "<pad>", "eos_token": "<eos>"}, 0),
        ({"eos_token": "<eos>"}, 1),
        ({"eos_token": "<eos>", "pad_token": "<eos>"}, 1),
        ({}, 0),
    ],
)
def test_any_pad_id_will_do_and_no_token_is_added(named: dict[str, str], pad: int) -> None:
    tokenizer = words(THINKING, specials=("<pad>", "<eos>"), **named)
    codec = TextCodec.of(tokenizer)
    assert codec.pad_id == pad
    assert len(tokenizer) == len(THINKING)
    assert tokenizer.pad_token == named.get("pad_token")


# --------------------------------------------------------------------------------------------------- vocabulary


def vocabulary_codec(ids: dict[str, int]) -> TextCodec:
    return TextCodec.of(words(ids, specials=()))


def test_an_added_pad_token_needs_a_row_and_the_spare_row_below_it_is_banned() -> None:
    codec = vocabulary_codec({"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "<pad>": 6})
    plan = codec.check_vocabulary(embedding_rows=6)
    assert (plan.rows_needed, plan.banned_ids, plan.grow, plan.rows) == (7, (5,), True, 7)
    assert plan.banned_from is None


@pytest.mark.parametrize(
    ("rows", "banned", "banned_from", "grow"),
    [(3, (), None, False), (5, (3, 4), 3, False), (2, (), None, True)],
)
def test_spare_rows_at_the_end_are_banned_and_missing_ones_grown(
    rows: int, banned: tuple[int, ...], banned_from: int | None, grow: bool
) -> None:
    plan = vocabulary_codec({"a": 0, "b": 1, "c": 2}).check_vocabulary(rows)
    assert (plan.banned_ids, plan.banned_from, plan.grow, plan.rows_needed) == (banned, banned_from, grow, 3)


def test_a_token_added_to_the_tokenizer_counts() -> None:
    tokenizer = byte_level()
    before = TextCodec.of(tokenizer).rows_needed
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    codec = TextCodec.of(tokenizer)
    assert codec.rows_needed == before + 1 == codec.pad_id + 1
    assert codec.check_vocabulary(before).grow


# ----------------------------------------------------------------------------------------------------- identity


def test_the_fingerprint_follows_all_that_decides_the_ids() -> None:
    codec = TextCodec.of(byte_level(pad_token="<|endoftext|>"))
    same = TextCodec.of(byte_level(pad_token="<|endoftext|>"))
    same.encode_prompt([{"role": "user", "content": "use it <|im_end|>"}])
    same.tokenizer(["a", "b c d e f g h"], padding=True, truncation=True, max_length=3)  # leaves traces in the backend
    assert codec.fingerprint() == same.fingerprint()
    different = [
        TextCodec.of(byte_level()),
        TextCodec.of(byte_level(template=CHATML + " ")),
        TextCodec.of(byte_level(template=None)),
        TextCodec.of(byte_level(extra=("<new>",))),
        TextCodec.of(byte_level(eos_token="<|endoftext|>")),
        TextCodec.of(byte_level(), config_stop_ids=(330,)),
        TextCodec.of(sentencepiece_like()),
    ]
    assert len({codec.fingerprint(), *(d.fingerprint() for d in different)}) == 8


def test_vocabularies_are_the_same_only_when_ids_mean_the_same() -> None:
    policy, reward = {"he": 0, "llo": 1}, {"x": 0, "y": 1, "hello": 5}
    mine = vocabulary_codec(policy).vocabulary_fingerprint()
    assert mine == vocabulary_codec(dict(reversed(policy.items()))).vocabulary_fingerprint()
    assert mine != vocabulary_codec(reward).vocabulary_fingerprint()
    assert mine != vocabulary_codec({"he": 1, "llo": 0}).vocabulary_fingerprint()
    template_only = TextCodec.of(words(policy, specials=(), template=CHATML))
    assert mine == template_only.vocabulary_fingerprint()


def test_a_prompt_of_nothing_or_of_what_the_tokenizer_cannot_read_is_refused() -> None:
    codec = vocabulary_codec({"a": 0})
    with pytest.raises(DataError, match="cannot read a text"):
        codec.encode_prompt("unknown words only")
    with pytest.raises(DataError, match="no tokens"):
        codec.encode_prompt("")
