"""Batched decoding with a cache against reading every sequence again for every token, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surefoot.errors import ConfigError, RolloutError
from surefoot.models.load import CausalLM
from surefoot.models.policy import load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.records import StopReason
from surefoot.rollout import decoding
from surefoot.rollout.decoding import Continuation, Sampling, decode
from tests.models.oracle_models import NAMES, folder, reading
from tests.rollout.made_engines import Alphabet, slow_decode

NEW = 14
SEQUENCES = [[5] * 3, [9], [3, 70, 114, 5, 60, 2, 88, 41, 0, 17], [71, 0], [25, 87], [9], [3, 70, 114, 5]]


def draws(count: int, new: int = NEW, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.random(new) for _ in range(count)]


def lm(name: str, **options: Any) -> CausalLM:
    return reading(name, BatchPlan(), **({"dtype": "float64"} | options)).lm


def tokens_of(found: list[Continuation]) -> list[list[int]]:
    return [continuation.tokens for continuation in found]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_row_by_row_decoding(name: str, temperature: float) -> None:
    """Rows of many lengths, two of them equal, longer than Gemma 2's window of 6, some ending early."""
    model, uniform, stop = lm(name, temperature=temperature), draws(len(SEQUENCES)), frozenset(range(20))
    expected = [slow_decode(model, s, u, stop) for s, u in zip(SEQUENCES, uniform, strict=True)]
    assert len({len(tokens) for tokens, _ in expected}) > 2
    for max_rows in (None, 1, 3):
        found = decode(model, SEQUENCES, uniform, Sampling(NEW, stop_ids=stop, max_rows=max_rows))
        for row, (tokens, logp) in zip(found, expected, strict=True):
            assert row.tokens == tokens
            np.testing.assert_allclose(row.logp, logp, atol=1e-9)
            ended = tokens[-1] in stop
            assert row.stop_reason is (StopReason.EOS if ended else StopReason.LENGTH)


@pytest.mark.parametrize("budget", [1, 8, 21])
def test_prompts_are_read_within_a_budget_and_nothing_changes(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, uniform, sizes = lm("llama"), draws(len(SEQUENCES)), []
    expected = tokens_of(decode(model, SEQUENCES, uniform, Sampling(NEW)))
    monkeypatch.setattr(decoding, "PREFILL_TOKENS", budget)

    def note(module: Any, args: Any) -> None:
        if args[0].shape[1] > 1 or args[0].shape[0] == 1:
            sizes.append(args[0].numel())

    hook = model.model.get_input_embeddings().register_forward_pre_hook(note)
    assert tokens_of(decode(model, SEQUENCES, uniform, Sampling(NEW))) == expected
    hook.remove()
    assert max(sizes) <= max(budget, 10) and len(sizes) > 1


@pytest.mark.parametrize("share", [0.0, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_when_ended_rows_leave_the_batch_changes_nothing(
    name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, uniform = lm(name), draws(len(SEQUENCES))
    sampling = Sampling(NEW, stop_ids=frozenset(range(20)))
    expected = tokens_of(decode(model, SEQUENCES, uniform, sampling))
    monkeypatch.setattr(decoding, "COMPACT_BELOW", share)
    assert tokens_of(decode(model, SEQUENCES, uniform, sampling)) == expected


def test_a_rows_tokens_do_not_depend_on_its_company_or_place() -> None:
    model, uniform = lm("llama"), draws(len(SEQUENCES))
    expected = tokens_of(decode(model, SEQUENCES, uniform, Sampling(NEW)))
    for rows in ([3], [6, 0, 2], [5, 4, 3, 2, 1, 0]):
        found = decode(model, [SEQUENCES[r] for r in rows], [uniform[r] for r in rows], Sampling(NEW))
        assert tokens_of(found) == [expected[r] for r in rows]


def test_equal_prompts_with_other_draws_become_other_texts() -> None:
    """DAT-06: sharing the prefill must not share the sample."""
    found = decode(lm("llama"), [[9, 4]] * 6, draws(6), Sampling(NEW))
    assert len({tuple(tokens) for tokens in tokens_of(found)}) == 6
    same = decode(lm("llama"), [[9, 4]] * 3, [draws(1)[0]] * 3, Sampling(NEW))
    assert len({tuple(tokens) for tokens in tokens_of(same)}) == 1


def test_a_longer_limit_only_continues() -> None:
    model = lm("llama")
    short = tokens_of(decode(model, SEQUENCES, [u[:5] for u in draws(len(SEQUENCES))], Sampling(5)))
    long = tokens_of(decode(model, SEQUENCES, draws(len(SEQUENCES)), Sampling(NEW)))
    assert [tokens[:5] for tokens in long] == short


def test_one_row_and_one_token() -> None:
    model = lm("gpt2")
    for sequences in ([[7]], [[7, 8, 9], [7]]):
        found = decode(model, sequences, draws(len(sequences), 1), Sampling(1))
        expected = [slow_decode(model, s, u) for s, u in zip(sequences, draws(len(sequences), 1), strict=True)]
        assert [(c.tokens, c.stop_reason) for c in found] == [(t, StopReason.LENGTH) for t, _ in expected]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_rows_end_where_the_context_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of different lengths, each up to its own end; one that is full already gets nothing."""
    model = lm(name)
    context = model.context
    assert context is not None
    lengths = [context, context - 1, context - 4, 1, context - 2]
    sequences = [[3 + i] * n for i, n in enumerate(lengths)]
    uniform = draws(5, context)
    for max_rows, share in ((None, 0.75), (2, 0.75), (None, 0.0)):
        # Rows that have ended and are not dropped must not write beyond the context.
        monkeypatch.setattr(decoding, "COMPACT_BELOW", share)
        found = decode(model, sequences, uniform, Sampling(context, max_rows=max_rows))
        assert [len(c.tokens) for c in found] == [context - n for n in lengths]
        assert all(c.stop_reason is StopReason.LENGTH for c in found)
    for row in (1, 2, 4):
        expected, _ = slow_decode(model, sequences[row], uniform[row][: context - lengths[row]])
        assert found[row].tokens == expected


def test_an_end_on_the_last_allowed_token_is_an_end() -> None:
    """It was chosen, so the row is not cut off."""
    model, uniform = lm("llama"), draws(1)
    tokens, _ = slow_decode(model, [5], uniform[0])
    last = next(i for i, t in enumerate(tokens) if t not in tokens[:i] and i >= 3)
    for limit, reason in ((last, StopReason.LENGTH), (last + 1, StopReason.EOS), (NEW, StopReason.EOS)):
        found = decode(model, [[5]], uniform, Sampling(limit, stop_ids=frozenset({tokens[last]})))[0]
        assert (found.tokens, found.stop_reason) == (tokens[: min(limit, last + 1)], reason)


def test_any_configured_stop_token_ends_a_row() -> None:
    """ALG-24: not only the model's own end of sequence."""
    model, uniform = lm("llama"), draws(len(SEQUENCES))
    free = tokens_of(decode(model, SEQUENCES, uniform, Sampling(NEW)))
    stops = frozenset({free[0][2], free[2][5], 1})
    found = decode(model, SEQUENCES, uniform, Sampling(NEW, stop_ids=stops))
    for row, tokens in zip(found, free, strict=True):
        end = next((i for i, t in enumerate(tokens) if t in stops), None)
        assert row.tokens == (tokens if end is None else tokens[: end + 1])
        assert row.stop_reason is (StopReason.LENGTH if end is None else StopReason.EOS)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_stop_strings_end_a_row_where_they_are_complete(width: int) -> None:
    """Strings over one or several tokens."""
    model, uniform, text = lm("llama"), draws(len(SEQUENCES)), Alphabet()
    free = tokens_of(decode(model, SEQUENCES, uniform, Sampling(NEW)))
    stop = text.decode(free[2])[3 : 3 + width]
    found = decode(model, SEQUENCES, uniform, Sampling(NEW, stop_strings=(stop, "no such text")), text.decode)
    ended = 0
    for row, tokens in zip(found, free, strict=True):
        ends = [n for n in range(1, NEW + 1) if stop in text.decode(tokens[:n])]
        assert row.tokens == (tokens[: ends[0]] if ends else tokens)
        assert row.stop_reason is (StopReason.STOP if ends else StopReason.LENGTH)
        ended += bool(ends)
    assert ended >= 1


def test_the_text_of_the_prompt_is_no_part_of_a_stop_string() -> None:
    model, text, uniform = lm("llama"), Alphabet(), draws(1)
    first = decode(model, [[5, 6]], uniform, Sampling(1))[0].tokens
    for stop in (text.decode([5, 6]), text.decode([6, *first])):
        found = decode(model, [[5, 6]], uniform, Sampling(1, stop_strings=(stop,)), text.decode)[0]
        assert found.stop_reason is StopReason.LENGTH


def test_an_end_token_wins_over_the_stop_string_it_spells() -> None:
    model, text = lm("llama"), Alphabet()
    uniform = draws(1)
    first = decode(model, [[5]], uniform, Sampling(1))[0].tokens[0]
    sampling = Sampling(NEW, stop_ids=frozenset({first}), stop_strings=(text.decode([first]),))
    assert decode(model, [[5]], uniform, sampling, text.decode)[0].stop_reason is StopReason.EOS


def test_banned_ids_are_never_sampled() -> None:
    """TOK-08, and the log-probabilities are under the same ban."""
    banned = tuple(range(0, 128, 2))
    policy = load_policy(folder("llama"), dtype="float64", banned=banned)
    uniform = [np.linspace(0, 1 - 2**-53, NEW)] * 20
    sequences = [[i + 1] for i in range(20)]
    found = decode(policy.lm, sequences, uniform, Sampling(NEW))
    assert all(token % 2 for c in found for token in c.tokens)
    greedy = decode(policy.lm, sequences, uniform, Sampling(NEW, greedy=True))
    assert all(token % 2 for c in greedy for token in c.tokens)
    free = decode(lm("llama"), sequences, uniform, Sampling(NEW))
    assert any(token % 2 == 0 for c in free for token in c.tokens)


def test_another_sampling_temperature_is_for_evaluation() -> None:
    """Tokens and log-probabilities as from a model that is read at that temperature."""
    uniform = draws(len(SEQUENCES))
    found = decode(lm("qwen3"), SEQUENCES, uniform, Sampling(NEW, temperature=0.5))
    expected = decode(lm("qwen3", temperature=0.5), SEQUENCES, uniform, Sampling(NEW))
    assert tokens_of(found) == tokens_of(expected)
    np.testing.assert_allclose([c.logp for c in found], [c.logp for c in expected], atol=1e-9)
    assert tokens_of(found) != tokens_of(decode(lm("qwen3"), SEQUENCES, uniform, Sampling(NEW)))


def test_top_k_of_one_is_greedy() -> None:
    uniform = draws(len(SEQUENCES))
    greedy = tokens_of(decode(lm("llama"), SEQUENCES, uniform, Sampling(NEW, greedy=True)))
    assert tokens_of(decode(lm("llama"), SEQUENCES, uniform, Sampling(NEW, top_k=1))) == greedy
    assert tokens_of(decode(lm("llama"), SEQUENCES, uniform, Sampling(NEW, top_p=1e-6))) == greedy


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"max_rows": 0},
        {"stop_strings": ("x", "")},
    ],
)
def test_impossible_sampling_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Sampling(**({"max_new_tokens": 4} | options))


def test_stop_strings_without_a_tokenizer_are_refused_not_ignored() -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        decode(lm("llama"), [[5]], draws(1), Sampling(NEW, stop_strings=("x",)))


def test_a_diverged_policy_stops_the_rollout() -> None:
    policy = load_policy(folder("llama"))
    with torch.no_grad():
        policy.lm.model.get_output_embeddings().weight[7] = float("nan")
    with pytest.raises(RolloutError, match="no distribution"):
        decode(policy.lm, [[5], [6]], draws(2), Sampling(NEW))
