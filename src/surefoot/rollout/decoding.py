"""Batched decoding with a preallocated cache: many sequences in, their continuations out.

Rows keep their own positions in the cache, so prompts of different lengths need no padding between prompt and
response. Ended rows are replaced by waiting prompts; when none wait they leave the batch, in groups, since removing
them one by one costs more than it saves.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from surefoot.errors import ConfigError, RolloutError
from surefoot.models.attention import Decode, KVCache, Packed, Prefill
from surefoot.models.decoder import Decoder, decoder_for
from surefoot.models.load import CausalLM
from surefoot.models.packing import groups_within, pack
from surefoot.models.scoring import ValueHead
from surefoot.records import StopReason
from surefoot.rollout.sampling import Drawn, sample_tokens

# Rows are dropped from the batch once this share of it has finished.
COMPACT_BELOW = 0.75
# While prompts wait, they take the places of ended rows once this share of the batch has ended.
REFILL_FROM = 0.25
# Prompts are read in groups of at most this many tokens.
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
        laid_out: whether weights are laid out anew first, where that can be done.
    """

    max_new_tokens: int
    temperature: float | None = None
    greedy: bool = False
    top_k: int = 0
    top_p: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    max_rows: int | None = None
    laid_out: bool = True

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
    """What a row became.

    Attributes:
        tokens: sampled ids.
        logp, entropy: their log-probabilities, and the entropies of what they were drawn from.
        values: of the states they were chosen in; empty without a value head.
        stop_reason: why it ended.
    """

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stop_reason: StopReason = StopReason.LENGTH


Ended = Callable[[int, Continuation], None]
"""Is told the number of a sequence that has ended, and what it became."""


@dataclass
class _Batch:
    """The rows being decoded; one that has ended keeps its place until another takes it.

    Attributes:
        rows: numbers of their sequences.
        room: tokens each may still get.
        lengths: ``[R]`` tokens each has in the cache; the next one goes there.
        states: ``[R, H]`` after the last of them.
        cache: keys and values.
        decoder: reads one token a row.
    """

    rows: list[int]
    room: list[int]
    lengths: Tensor
    states: Tensor
    cache: KVCache
    decoder: Decoder | None


@torch.no_grad()
def decode(
    lm: CausalLM,
    sequences: Sequence[Sequence[int]],
    uniform: Sequence[npt.NDArray[np.float64]],
    sampling: Sampling,
    text_of: Callable[[Sequence[int]], str] | None = None,
    value_head: ValueHead | None = None,
    ended: Ended | None = None,
) -> list[Continuation]:
    """Continue every sequence.

    Args:
        lm: the model.
        sequences: token ids, at least one each; what several begin with is read once.
        uniform: for each sequence ``max_new_tokens`` draws from [0, 1), so that a row's tokens are its own.
        sampling: how to draw and when to stop.
        text_of: ids to text; needed for stop strings.
        value_head: on the model's trunk; values are read in passing.
        ended: told of every row that got tokens, as soon as it has ended.
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
    waiting = sorted((i for i in range(len(sequences)) if room[i] > 0), key=lambda i: (len(sequences[i]), i))
    if not waiting:
        return out
    size = min(sampling.max_rows or len(waiting), len(waiting))
    # The last token drawn is never read.
    cache = KVCache(size, max(len(sequences[i]) + room[i] - 1 for i in waiting))
    first, waiting = waiting[:size], waiting[size:]
    states = _prefill(lm, [sequences[i] for i in first], cache, list(range(size)))
    known = torch.tensor([len(sequences[i]) for i in first], device=lm.device)
    decoder = decoder_for(lm, size) if sampling.laid_out else None
    batch = _Batch(first, [room[i] for i in first], known, states, cache, decoder)
    with decoder or nullcontext():
        while True:
            values = None if value_head is None else value_head(batch.states).tolist()
            drawn = _draw(lm, batch, draws, sampling, out)
            for row in _record(batch, drawn, values, sampling, text_of, out):
                if ended is not None:
                    ended(row, out[row])
            tokens, over = drawn.tokens, [place for place, left in enumerate(batch.room) if left == 0]
            going_on = len(batch.rows) - len(over)
            if not going_on and not waiting:
                return out
            if not waiting and going_on <= COMPACT_BELOW * len(batch.rows):
                tokens = _drop(batch, over, tokens)
            if going_on:
                _advance(lm, batch, tokens)
            if waiting and len(over) >= REFILL_FROM * len(batch.rows):
                places, taken, waiting = over[: len(waiting)], waiting[: len(over)], waiting[len(over) :]
                _refill(lm, batch, places, {i: (sequences[i], room[i]) for i in taken})


def _draw(
    lm: CausalLM,
    batch: _Batch,
    draws: Tensor,
    sampling: Sampling,
    out: list[Continuation],
) -> Drawn:
    """Draw the next token of each row, ``[R]``; of no meaning in rows that have ended."""
    logits = lm.head.logits(batch.states) if batch.decoder is None else batch.decoder.logits(batch.states)
    if sampling.temperature is not None:
        logits = logits * (lm.head.settings.temperature / sampling.temperature)
    last = draws.shape[1] - 1
    drawn = torch.tensor([min(len(out[row].tokens), last) for row in batch.rows], device=lm.device)
    uniform = draws[torch.tensor(batch.rows, device=lm.device), drawn]
    return sample_tokens(logits, uniform, greedy=sampling.greedy, top_k=sampling.top_k, top_p=sampling.top_p)


def _drop(batch: _Batch, ended: list[int], tokens: Tensor) -> Tensor:
    """Let ended rows leave the batch; gives the tokens of those that stay."""
    kept = sorted(set(range(len(batch.rows))) - set(ended))
    keep = torch.tensor(kept, device=tokens.device)
    batch.cache.select(keep)
    batch.rows, batch.room = [batch.rows[i] for i in kept], [batch.room[i] for i in kept]
    batch.lengths, batch.states = batch.lengths[keep], batch.states[keep]
    return tokens[keep]


def _refill(lm: CausalLM, batch: _Batch, places: list[int], taken: dict[int, tuple[Sequence[int], int]]) -> None:
    """Put waiting sequences where rows have ended."""
    states = _prefill(lm, [ids for ids, _ in taken.values()], batch.cache, places)
    at = torch.tensor(places, device=lm.device)
    batch.states[at] = states
    batch.lengths[at] = torch.tensor([len(ids) for ids, _ in taken.values()], device=lm.device)
    for place, (row, (_, room)) in zip(places, taken.items(), strict=True):
        batch.rows[place], batch.room[place] = row, room


def _prefill(lm: CausalLM, sequences: list[Sequence[int]], cache: KVCache, places: list[int]) -> Tensor:
    """Read sequences into these places of the cache; gives the ``[P, H]`` states after their last tokens."""
    rows = [np.array(ids, dtype=np.int64) for ids in sequences]
    states = torch.empty(len(rows), lm.hidden_size, dtype=lm.model.dtype, device=lm.device)
    for group in groups_within(rows, PREFILL_TOKENS, packed=True):
        laid = pack([rows[i] for i in group])
        longest = max(len(place) for place in laid.places)
        table = np.stack([np.pad(place, (0, longest - len(place)), mode="edge") for place in laid.places])

        def tensor(array: npt.NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(array).to(lm.device)

        assert isinstance(laid.layout, Packed)
        layout = Prefill(laid.layout, cache, tensor(np.array([places[i] for i in group])), tensor(table))
        hidden = lm.trunk(
            input_ids=tensor(laid.ids),
            position_ids=tensor(laid.positions),
            use_cache=False,
            attention_layout=layout,
        ).last_hidden_state
        last = tensor(np.array([place[-1] for place in laid.places]))
        states[torch.tensor(group, device=lm.device)] = hidden[0].index_select(0, last)
    return states


def _advance(lm: CausalLM, batch: _Batch, tokens: Tensor) -> None:
    """Append one token to each row."""
    # Rows that have ended but are not dropped yet go on writing into their last place.
    positions = batch.lengths.clamp(max=batch.cache.capacity - 1)
    layout = Decode(batch.cache, positions, int(positions.max()) + 1)
    if batch.decoder is not None:
        batch.states = batch.decoder.states(tokens, layout)
    else:
        batch.states = lm.trunk(
            input_ids=tokens[:, None], position_ids=positions[:, None], use_cache=False, attention_layout=layout
        ).last_hidden_state[:, 0]
    batch.lengths = positions + 1


def _record(
    batch: _Batch,
    drawn: Drawn,
    values: list[float] | None,
    sampling: Sampling,
    text_of: Callable[[Sequence[int]], str] | None,
    out: list[Continuation],
) -> list[int]:
    """Note the new tokens of rows that have room; gives the rows that have ended with them."""
    over = []
    columns = (drawn.tokens.tolist(), drawn.logp.tolist(), drawn.entropy.tolist())
    for i, (row, token, logp, entropy) in enumerate(zip(batch.rows, *columns, strict=True)):
        continuation = out[row]
        if batch.room[i] == 0:
            continue
        if not math.isfinite(logp):
            raise RolloutError(
                "the policy's logits are no distribution any more",
                got=f"log-probability {logp} of token {token}",
                hint="training diverged: lower optim.policy_lr; the last checkpoint is whole",
            )
        continuation.tokens.append(token)
        continuation.logp.append(logp)
        continuation.entropy.append(entropy)
        if values is not None:
            continuation.values.append(values[i])
        batch.room[i] -= 1
        if token in sampling.stop_ids:
            continuation.stop_reason = StopReason.EOS
        elif text_of is not None and _ends(continuation.tokens, sampling.stop_strings, text_of):
            continuation.stop_reason = StopReason.STOP
        if continuation.stop_reason is not StopReason.LENGTH:
            batch.room[i] = 0
        if batch.room[i] == 0:
            over.append(row)
    return over


def _ends(tokens: list[int], stop_strings: tuple[str, ...], text_of: Callable[[Sequence[int]], str]) -> bool:
    """Whether a stop string has just appeared; only the tail can hold a new one."""
    if not stop_strings:
        return False
    longest = max(len(s.encode()) for s in stop_strings)
    # A token is at least one byte of text, so this many tokens hold any stop string that ends here.
    tail = text_of(tokens[-(longest + 1) :])
    return any(stop in tail for stop in stop_strings)
