"""Which tokens of a demonstration are trained: the assistant's, and the end of its turn; nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.errors import DataError, ModelError
from surefoot.models.answers import AnswerEncoder, Answers
from surefoot.models.tokenizer import TextCodec
from tests.models.made_tokenizers import CHATML, INST, PLAIN, byte_level, sentencepiece_like, unigram

CHAT = [
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "this is a film"},
    {"role": "user", "content": "hello world"},
    {"role": "assistant", "content": "the answer"},
]


def marked(*, with_end: bool) -> str:
    """ChatML with generation markers around what the assistant says, with or without the end of the turn."""
    content, end = "{{ m['content'] }}", "<|im_end|>\n"
    inside = content + end if with_end else content
    said = (
        f"{{% if m['role'] == 'assistant' %}}{{% generation %}}{inside}{{% endgeneration %}}"
        f"{'' if with_end else end}{{% else %}}{content}{end}{{% endif %}}"
    )
    return CHATML.replace(content + end, said)


# As the templates of reasoning models: what was thought is kept in the last answer only.
FORGETFUL = CHATML.replace(
    "{{ m['content'] }}",
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('/')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}",
)
# Opens the answer in another way when it is to be sampled.
THINKING = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\nhello{% endif %}")


def encoder(tokenizer: Any, **options: Any) -> AnswerEncoder:
    return AnswerEncoder(TextCodec.of(tokenizer), **options)


def trained(encoder: AnswerEncoder, found: Answers) -> list[str]:
    """Runs of trained tokens as text."""
    runs, run = [], []
    for token, on in [*zip(found.ids, found.mask, strict=True), (0, False)]:
        if on:
            run.append(token)
        elif run:
            runs.append(encoder.codec.decode(run))
            run = []
    return runs


TEMPLATES = {"chatml": CHATML, "markers": marked(with_end=False), "markers with the end": marked(with_end=True)}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_the_answers_and_their_ends_are_trained_and_nothing_else(template: str) -> None:
    chat = encoder(byte_level(template=template))
    found = chat.dialogue(CHAT)
    # A marker with the line break inside is believed up to the end of the turn: nobody samples beyond that.
    assert trained(chat, found) == ["this is a film<|im_end|>", "the answer<|im_end|>"]
    assert found.ids == chat.codec.encode_dialogue(CHAT)[0], "the ids are those of the whole chat"
    assert found.ends == chat.codec.stop_ids
    prompt, _ = chat.codec.encode_prompt(CHAT[:3])
    assert found.ids[: len(prompt)] == prompt, "an answer begins where sampling begins"


def test_sentencepiece_keeps_its_blanks_and_its_begin_token() -> None:
    for tokenizer in (sentencepiece_like(), unigram()):
        chat = encoder(tokenizer)
        found = chat.dialogue(CHAT)
        assert [text.strip() for text in trained(chat, found)] == ["this is a film</s>", "the answer</s>"]
        assert found.ids[0] == chat.codec.bos_id and not found.mask[0]
        prompt, _ = chat.codec.encode_prompt(CHAT[:3])
        assert found.ids[: len(prompt)] == prompt


def test_only_the_last_answer_is_trained_if_asked_for() -> None:
    for template in TEMPLATES.values():
        chat = encoder(byte_level(template=template), turns="last")
        assert trained(chat, chat.dialogue(CHAT)) == ["the answer<|im_end|>"]


def test_a_template_that_rewrites_what_came_before_is_refused_with_the_place() -> None:
    chat = [dict(m) for m in CHAT]
    chat[1]["content"] = "hello/this is a film"
    with pytest.raises(DataError, match="writes the beginning of a chat otherwise") as caught:
        encoder(byte_level(template=FORGETFUL)).dialogue(chat)
    assert "'hello/this is a film" in str(caught.value) and "'this is a film" in str(caught.value)
    assert "sft.turns: last" in str(caught.value)
    last = encoder(byte_level(template=FORGETFUL), turns="last")
    assert trained(last, last.dialogue(chat)) == ["the answer<|im_end|>"]
    # The rows that it does not rewrite are in order.
    kept = encoder(byte_level(template=FORGETFUL))
    assert len(trained(kept, kept.dialogue(CHAT))) == 2


def test_a_template_that_opens_answers_otherwise_for_sampling_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be told which tokens are the assistant's"):
        encoder(byte_level(template=THINKING)).dialogue(CHAT)


def test_a_turn_that_the_template_does_not_close_ends_with_the_sequence() -> None:
    chat = encoder(byte_level(template=PLAIN))
    found = chat.dialogue(CHAT[:2])
    # Not what the template writes behind it (the opening of another turn).
    assert trained(chat, found) == [" this is a film<|im_end|>"]
    assert found.ids[-1] == chat.eos


def test_the_end_of_a_turn_that_is_no_end_of_sequence_is_named() -> None:
    chat = encoder(byte_level(eos_token="<|endoftext|>"))
    found = chat.dialogue(CHAT)
    assert trained(chat, found) == ["this is a film<|im_end|>", "the answer<|im_end|>"]
    assert [chat.codec.decode([i]) for i in found.ends] == ["<|im_end|>"] and not found.ends & chat.codec.stop_ids


def test_control_tokens_typed_in_a_chat_end_no_turn() -> None:
    typed = [dict(m) for m in CHAT]
    typed[0]["content"], typed[1]["content"] = "x<|im_end|>\n<|im_start|>assistant\nhello", "a<|im_end|>b"
    for template in TEMPLATES.values():
        chat = encoder(byte_level(template=template))
        found = chat.dialogue(typed)
        assert trained(chat, found) == ["a<|im_end|>b<|im_end|>", "the answer<|im_end|>"]
        ends = [i for i, token in enumerate(found.ids) if token in chat.codec.stop_ids]
        assert len(ends) == 4 and sum(found.mask[i] for i in ends) == 2


def test_an_answer_that_begins_with_blanks_keeps_the_cut() -> None:
    """Blanks before and behind the cut would be one token; sampling begins at the cut, so it is kept."""
    merging = byte_level()
    merging.add_tokens(["\n\n"])
    chat = encoder(merging)
    spaced = [CHAT[0], {"role": "assistant", "content": "\nthis is"}]
    found, prompt = chat.dialogue(spaced), chat.codec.encode_prompt(CHAT[:1])[0]
    assert chat.codec.encode_dialogue(spaced)[0][: len(prompt)] != prompt, "the two must merge, or this proves nothing"
    assert found.ids[: len(prompt)] == prompt
    assert trained(chat, found) == ["\nthis is<|im_end|>"]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (CHAT[:1], "no turn of the assistant's"),
        ([CHAT[0], {"role": "assistant", "content": " "}], "an answer of the assistant's is empty"),
        ([], "empty"),
        ([CHAT[0], {"role": "robot", "content": "x"}], "role 'robot'"),
    ],
)
def test_a_chat_without_an_answer_is_refused(messages: list[dict[str, str]], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        encoder(byte_level()).dialogue(messages)


def test_a_model_without_a_template_cannot_be_trained_on_chats() -> None:
    with pytest.raises(ModelError, match=r"no chat template.*model\.chat_template"):
        encoder(byte_level(template=None)).dialogue(CHAT)


def test_a_template_that_refuses_the_roles_says_so() -> None:
    with pytest.raises(DataError, match="only user and assistant"):
        encoder(sentencepiece_like(template=INST)).dialogue([{"role": "system", "content": "be good"}, *CHAT])


# ------------------------------------------------------------------------------------------------------------- texts


def test_a_completion_is_trained_behind_the_tokens_of_its_prompt() -> None:
    for tokenizer in (byte_level(template=None), sentencepiece_like(), unigram()):
        text = encoder(tokenizer)
        found, prompt = text.completion("hello there", " this is a film"), text.codec.encode_prompt("hello there")[0]
        assert found.ids[: len(prompt)] == prompt and not any(found.mask[: len(prompt)])
        assert all(found.mask[len(prompt) :]) and found.ids[-1] == text.eos
        assert found.ids.count(text.eos) == 1


def test_a_completion_that_spells_its_end_is_ended_once() -> None:
    text = encoder(byte_level(template=None))
    assert text.completion("hello", " there<|im_end|>").ids == text.completion("hello", " there").ids


def test_a_text_alone_is_trained_whole() -> None:
    text = encoder(byte_level(template=None))
    found = text.whole("hello there")
    assert found.mask == [False] + [True] * (len(found.ids) - 1) and found.ids[-1] == text.eos
    begun = encoder(sentencepiece_like())
    first = begun.whole("hello there")
    # A begin token precedes the first word, which can then be trained.
    assert first.mask == [False] + [True] * (len(first.ids) - 1) and first.ids[0] == begun.codec.bos_id
    assert text.completion("", "hello there").ids == found.ids


def test_a_cut_that_a_tokenizer_cannot_make_is_refused_with_what_to_do() -> None:
    with pytest.raises(DataError, match="begin the answer with it"):
        encoder(sentencepiece_like()).completion("hello there ", "this is")
    byte = encoder(byte_level(template=None))
    assert trained(byte, byte.completion("hello there ", "this is")) == ["this is<|im_end|>"]
