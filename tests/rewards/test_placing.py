"""Rewards by token and by span: nothing is lost, doubled or moved to a given token."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from surefoot.models.tokenizer import TextCodec
from surefoot.records import Rollout, StopReason, Trajectory
from surefoot.rewards.placing import Misplaced, place_spans, place_tokens
from tests.rewards.conftest import Make

MASK = [False, True, True, False, True, True, False]
# Four action tokens: "ab", the two halves of one character, and the stop token without text.
OFFSETS = [(0, 2), (2, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("span", "position"),
    [((0, 1), 1), ((0, 2), 1), ((1, 2), 1), ((0, 3), 4), ((2, 3), 4), ((1, 3), 4)],
)
def test_a_span_goes_to_the_last_action_token_that_overlaps_it(span: tuple[int, int], position: int) -> None:
    placed = place_spans([(*span, 0.5)], OFFSETS, MASK, length=3)
    assert placed == tuple(0.5 if t == position else 0.0 for t in range(7))


@pytest.mark.parametrize("span", [(0, 4), (-1, 2), (2, 2), (2, 1), (3, 4), (0.5, 2), (float("nan"), 2), (0, 1e300)])
def test_a_span_outside_the_text_is_refused(span: tuple[float, float]) -> None:
    with pytest.raises(Misplaced, match="not a part of the text, which has 3 characters"):
        place_spans([(*span, 1.0)], OFFSETS, MASK, length=3)


def test_a_span_that_no_token_stands_for_is_refused_and_not_lost() -> None:
    with pytest.raises(Misplaced, match=r"no action token stands for the span \(2, 3\)"):
        place_spans([(2, 3, 1.0)], [(0, 2), (3, 4)], [False, True, True], length=4)


def test_rewards_that_are_not_finite_are_refused() -> None:
    with pytest.raises(Misplaced, match=r"the reward of span \(0, 1\) is inf"):
        place_spans([(0, 1, float("inf"))], OFFSETS, MASK, length=3)
    with pytest.raises(Misplaced, match="the reward of action token 2 is nan"):
        place_tokens([0.0, 1.0, float("nan"), 2.0], MASK)


def test_the_sum_placed_is_the_sum_returned_for_any_spans() -> None:
    draw = random.Random(0)
    for _ in range(200):
        count = draw.randint(1, 6)
        cuts = sorted(draw.choices(range(1, 9), k=count - 1))
        offsets = list(zip([0, *cuts], [*cuts, 9], strict=True))
        mask = [False]
        for _ in offsets:
            mask += [False] * draw.randint(0, 2) + [True]
        spans = []
        for _ in range(draw.randint(0, 5)):
            start = draw.randint(0, 8)
            spans.append((start, draw.randint(start + 1, 9), draw.randint(-8, 8) / 4))
        placed = place_spans(spans, offsets, mask, length=9)
        assert sum(placed) == sum(reward for _, _, reward in spans)
        assert len(placed) == len(mask) and all(m or p == 0 for p, m in zip(placed, mask, strict=True))


def byte_codec() -> TextCodec:
    """A tokenizer of single bytes, "<think>" and an end token."""
    special = ["</s>", "<think>"]
    alphabet = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return TextCodec.of(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"))


def test_tok_11_spans_of_the_text_a_function_saw_land_on_the_bytes_that_end_them(make: Make) -> None:
    """With a real tokenizer: markers kept, the stop token left off, characters of one to four bytes."""
    text = "<think>né 日\N{SLIGHTLY SMILING FACE}!"
    codec = byte_codec()
    tokens = [*codec.encode_text(text), 0]
    response = codec.response_text(tokens, StopReason.EOS)
    reward = make(
        f"""
        def f(prompts, completions):
            (text,) = completions
            assert text == {text!r}
            return [[(n, n + 1, n) for n in range(len(text))] + [(0, len(text), 0.5), (0, 9, -2)]]
        """,
        offsets=codec.spans,
    )
    row = Trajectory([5, *tokens], [0] + [1] * len(tokens), StopReason.EOS, response=response)
    (score,) = reward.score(Rollout.of([row]))
    expected = [0.0, 0.0 + 1 + 2 + 3 + 4 + 5 + 6]  # the prompt's token, and "<think>", which is one token
    expected += [7.0, 0.0, 8.0 - 2, 9.0]  # n, the two bytes of é with the span that ends in it, a blank
    expected += [0.0, 0.0, 10.0, 0.0, 0.0, 0.0, 11.0, 12.0 + 0.5, 0.0]  # three bytes, four bytes, !, the stop token
    assert list(score.token_rewards or ()) == expected
    assert score.terms["q"] == sum(range(13)) + 0.5 - 2
