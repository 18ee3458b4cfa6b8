"""Batched decoding with a preallocated cache: many sequences in, their continuations out.

Rows keep their own positions in the cache, so prompts of different lengths need no padding between prompt and
response; finished rows leave the batch in groups, since removing them one by one costs more than it saves.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from surefoot.errors import ConfigError, RolloutError
from surefoot.models.attention import Decode, KVCache, Prefill
from surefoot.models.load import CausalLM
from surefoot.records import StopReason
from surefoot.rollout.sampling import sample_tokens

# Rows are dropped from the batch once this share of it has finished.
COMPACT_BELOW = 0.75
# Prompts are read in groups of at most this many tokens, padding included.
PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the neutral values are the trained distribution.

    Attributes:
        max_new_tokens: per row.
        temperature: None: the one that the model's log-probabilities are under.
        greedy, top_k, top_p: as in :func:`surefoot.rollout.sampling.sample_tokens`.
        stop_ids: ids that end a row.
        stop_strings: texts that end a row.
        max_rows: rows decoded at once.
    """

    max_new_tokens: int
    temperature: float | None = None
    greedy: bool = False
    top_k: int = 0
    top_p: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature > 0:
            hint = "greedy choice is greedy=True"
            raise ConfigError("a sampling temperature must be above 0", got=self.temperature, hint=hint)
        if not 0 < self.top_p <= 1:
            raise ConfigError("top_p must be a share of the probability", got=self.top_p, allowed="above 0, at most 1")
        if self.max_new_tokens < 1 or self.top_k < 0 or (self.max_rows is not None and self.max_rows < 1):
            raise ConfigError("max_new_tokens and max_rows must be at least 1, top_k at least 0", got=repr(self))
        if "" in self.stop_strings:
            raise ConfigError("an empty stop string would end every response", hint="leave it out of rollout.stop")


@dataclass
class Continuation:
    """What a row became: sampled ids, their log-probabilities, and why it ended."""

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    stop_reason: StopReason = StopReason.LENGTH


@dataclass
class _Batch:
    """The rows still being decoded.

    Attributes:
        rows: numbers of their sequences.
        room: tokens each may still get.
        lengths: ``[R]`` tokens each has in the cache; the next one goes there.
        cache: keys and values.
    """

    rows: list[int]
    room: list[int]
    lengths: Tensor
    cache: KVCache


@torch.no_grad()
def decode(
    lm: CausalLM,
    sequences: Sequence[Sequence[int]],
    uniform: Sequence[npt.NDArray[np.float64]],
    sampling: Sampling,
    text_of: Callable[[Sequence[int]], str] | None = None,
) -> list[Continuation]:
    """Continue every sequence.

    Args:
        lm: the model.
        sequences: token ids, at least one each; equal ones are read once and share their prefill.
        uniform: for each sequence ``max_new_tokens`` draws from [0, 1), so that a row's tokens are its own.
        sampling: how to draw and when to stop.
        text_of: ids to text; needed for stop strings.
    Returns:
        one continuation a sequence, cut off (``StopReason.LENGTH``) where the model's context ends; empty where a
        sequence fills it already.
    Raises:
        RolloutError: the model's logits are no distribution.
    """
    if sampling.stop_strings and text_of is None:
        raise ConfigError("stop strings need a tokenizer", got=sampling.stop_strings, hint="use stop ids")
    out = [Continuation() for _ in sequences]
    draws = torch.from_numpy(np.stack(uniform)).to(lm.device)
    context = lm.context or sys.maxsize
    room = [min(sampling.max_new_tokens, context - len(ids)) for ids in sequences]
    order = sorted((i for i in range(len(sequences)) if room[i] > 0), key=lambda i: (len(sequences[i]), i))
    size = sampling.max_rows or max(1, len(order))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        batch, states = _prefill(lm, sequences, rows, [room[i] for i in rows])
        _decode_batch(lm, batch, states, draws, sampling, text_of, out)
    return out


def _decode_batch(
    lm: CausalLM,
    batch: _Batch,
    states: Tensor,
    draws: Tensor,
    sampling: Sampling,
    text_of: Callable[[Sequence[int]], str] | None,
    out: list[Continuation],
) -> None:
    for step in range(sampling.max_new_tokens):
        logits = lm.head.logits(states)
        if sampling.temperature is not None:
            logits = logits * (lm.head.settings.temperature / sampling.temperature)
        active = torch.tensor(batch.rows, device=lm.device)
        tokens, logp = sample_tokens(
            logits, draws[active, step], greedy=sampling.greedy, top_k=sampling.top_k, top_p=sampling.top_p
        )
        alive = _record(batch, tokens.tolist(), logp.tolist(), sampling, text_of, out)
        if not any(alive):
            return
        if sum(alive) <= COMPACT_BELOW * len(alive):
            kept = [i for i, a in enumerate(alive) if a]
            keep = torch.tensor(kept, device=lm.device)
            batch.cache.select(keep)
            batch.rows, batch.room = [batch.rows[i] for i in kept], [batch.room[i] for i in kept]
            batch.lengths, tokens = batch.lengths[keep], tokens[keep]
        states = _advance(lm, batch, tokens)


def _prefill(
    lm: CausalLM, sequences: Sequence[Sequence[int]], rows: list[int], room: list[int]
) -> tuple[_Batch, Tensor]:
    """Read the sequences, each distinct one once; gives the state after the last token of each row."""
    distinct: dict[tuple[int, ...], int] = {}
    which = [distinct.setdefault(tuple(sequences[row]), len(distinct)) for row in rows]
    prompts = list(distinct)
    # The last token drawn is never read.
    lengths = [len(sequences[row]) + more - 1 for row, more in zip(rows, room, strict=True)]
    cache = KVCache(max(len(prompts[-1]), *lengths))
    states, at = [], 0
    while at < len(prompts):
        # Shortest first, so the last of a group is its width.
        end = at + 1
        while end < len(prompts) and (end + 1 - at) * len(prompts[end]) <= PREFILL_TOKENS:
            end += 1
        states.append(_read(lm, prompts[at:end], Prefill(cache, at, len(prompts))))
        at = end
    index = torch.tensor(which, device=lm.device)
    cache.select(index)
    known = torch.tensor([len(sequences[row]) for row in rows], device=lm.device)
    return _Batch(list(rows), list(room), known, cache), torch.cat(states)[index]


def _read(lm: CausalLM, prompts: Sequence[tuple[int, ...]], layout: Prefill) -> Tensor:
    """States after the last token of each prompt; keys and values go into the layout's cache."""
    ids = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    positions = torch.arange(ids.shape[1], device=lm.device).expand(ids.shape)
    hidden: Tensor = lm.trunk(
        input_ids=ids.to(lm.device), position_ids=positions, use_cache=False, attention_layout=layout
    ).last_hidden_state
    last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=lm.device)
    return hidden[torch.arange(len(prompts), device=lm.device), last]


def _advance(lm: CausalLM, batch: _Batch, tokens: Tensor) -> Tensor:
    """Append one token to each row and give the states after it."""
    # Rows that have ended but are not dropped yet go on writing into their last place.
    positions = batch.lengths.clamp(max=batch.cache.capacity - 1)
    layout = Decode(batch.cache, positions, int(positions.max()) + 1)
    hidden = lm.trunk(
        input_ids=tokens[:, None], position_ids=positions[:, None], use_cache=False, attention_layout=layout
    ).last_hidden_state
    batch.lengths = positions + 1
    states: Tensor = hidden[:, 0]
    return states


def _record(
    batch: _Batch,
    tokens: list[int],
    logp: list[float],
    sampling: Sampling,
    text_of: Callable[[Sequence[int]], str] | None,
    out: list[Continuation],
) -> list[bool]:
    """Note the new tokens of rows that go on; returns which rows still do."""
    alive = []
    for i, (row, token, value) in enumerate(zip(batch.rows, tokens, logp, strict=True)):
        continuation = out[row]
        if batch.room[i] == 0:
            alive.append(False)
            continue
        if not math.isfinite(value):
            raise RolloutError(
                "the policy's logits are no distribution any more",
                got=f"log-probability {value} of token {token}",
                hint="training diverged: lower optim.policy_lr; the last checkpoint is whole",
            )
        continuation.tokens.append(token)
        continuation.logp.append(value)
        batch.room[i] -= 1
        if token in sampling.stop_ids:
            continuation.stop_reason = StopReason.EOS
        elif text_of is not None and _ends(continuation.tokens, sampling.stop_strings, text_of):
            continuation.stop_reason = StopReason.STOP
        if continuation.stop_reason is not StopReason.LENGTH:
            batch.room[i] = 0
        alive.append(batch.room[i] > 0)
    return alive


def _ends(tokens: list[int], stop_strings: tuple[str, ...], text_of: Callable[[Sequence[int]], str]) -> bool:
    """Whether a stop string has just appeared; only the tail can hold a new one."""
    if not stop_strings:
        return False
    longest = max(len(s.encode()) for s in stop_strings)
    # A token is at least one byte of text, so this many tokens hold any stop string that ends here.
    tail = text_of(tokens[-(longest + 1) :])
    return any(stop in tail for stop in stop_strings)
