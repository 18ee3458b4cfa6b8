"""Each prompt has its begin-of-sequence token once: TOK-05 as ``surefoot check`` sees it."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from surefoot.assembly.preflight_tokenizer import check_tokenizer, closes_with_stop
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import build_config
from surefoot.data.prompts import PromptSet
from surefoot.data.reading import RowSet
from surefoot.models.tokenizer import TextCodec
from surefoot.records import Finding, Prompt


def finding(toy: object, *prompts: tuple[int, ...], bos: str = "user") -> Finding:
    tokenizer = AutoTokenizer.from_pretrained(toy)
    tokenizer.bos_token = bos
    codec = TextCodec(tokenizer)
    verdicts = Verdicts()
    rows = RowSet((), 0, (), ())
    made = PromptSet(tuple(Prompt(f"p:{i}", ids) for i, ids in enumerate(prompts)))
    check_tokenizer(build_config({}), codec, rows, made, verdicts)
    return next(f for f in verdicts.findings if f.name == "tokenizer/begin")


@pytest.fixture
def bos(toy: object) -> int:
    return int(AutoTokenizer.from_pretrained(toy).convert_tokens_to_ids("user"))


def test_once_is_in_order(toy: object, bos: int) -> None:
    found = finding(toy, (bos, 9), (bos, 10, 11))
    assert found.severity == "info"
    assert "every prompt begins with user, once" in found.message


@pytest.mark.parametrize(
    ("make", "severity", "words"),
    [
        (lambda b: ((b, b, 9), (b, 10)), "error", "1 prompts begin with user twice"),
        (lambda b: ((b, 9), (10, 11)), "warning", "only 1 of 2 prompts begin with user"),
        (lambda b: ((b, 9, b, 10), (b, 10)), "warning", "stands inside 1 prompts"),
        (lambda b: ((9, 10), (10, 11)), "info", "no prompt begins with user"),
    ],
)
def test_twice_at_times_or_inside_is_not(make: object, severity: str, words: str, toy: object, bos: int) -> None:
    found = finding(toy, *make(bos))  # type: ignore[operator]
    assert (found.severity, words in found.message) == (severity, True), found


def test_a_token_that_opens_every_turn_may_stand_inside(toy: object) -> None:
    """ChatML tokenizers (SmolLM2 among them) call ``<|im_start|>`` their begin-of-sequence token."""
    start = int(AutoTokenizer.from_pretrained(toy).convert_tokens_to_ids("<|im_start|>"))
    found = finding(toy, (start, 9, start, 10), (start, 9, start, 11), bos="<|im_start|>")
    assert found.severity == "info"
    assert "also opens each turn" in found.message


def test_what_closes_a_turn_is_read_off_the_template(toy: object) -> None:
    tokenizer = AutoTokenizer.from_pretrained(toy)
    assert closes_with_stop(TextCodec(tokenizer), ()) == (True, "<|im_end|>")
    tokenizer.eos_token = "<unk>"
    assert closes_with_stop(TextCodec(tokenizer), ()) == (False, "<|im_end|>")
    assert closes_with_stop(TextCodec(tokenizer), ("<|im_end|>",)) == (True, "<|im_end|>")
    tokenizer.chat_template = None
    assert closes_with_stop(TextCodec(tokenizer), ()) is None
