"""The micro-batches of a run's heaviest step, laid out as training lays them out, from the prompts alone.

Responses are taken to be as long as they may be, and to have nothing in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from surefoot.assembly.activations import LaidSizes
from surefoot.assembly.models import batch_plan
from surefoot.assembly.roles import width_of
from surefoot.config import Config
from surefoot.data.order import PromptOrder
from surefoot.models.attention import Packed
from surefoot.models.grouped_attention import in_buckets
from surefoot.models.packing import groups_within, pack, pad
from surefoot.records import IntArray
from surefoot.rollout.decoding import PREFILL_TOKENS
from surefoot.training.update import plan_minibatches

MOST_STEPS: Final = 1000
"""Steps that are looked at for the heaviest one."""


@dataclass(frozen=True)
class StepSizes:
    """A step in numbers.

    Attributes:
        rows: decoded at once.
        longest: tokens of the longest prompt.
        prefill: prompts' tokens that are read in one pass.
        reading: the largest micro-batch that reads the rollout.
        training: the largest one of an update.
    """

    rows: int
    longest: int
    prefill: int
    reading: LaidSizes
    training: LaidSizes


@dataclass(frozen=True)
class _Rows:
    """Stands for a batch where only the number of its rows is asked for."""

    trained_rows: list[int]


def step_sizes(config: Config, prompts: Sequence[Sequence[int]], device: torch.device) -> StepSizes:
    """Lay out the heaviest step of a run.

    Args:
        config: the run.
        prompts: token ids of all prompts, at least one.
        device: decides whether rows are packed.
    """
    step, chosen = _heaviest_step(config, [len(ids) for ids in prompts])
    packed = batch_plan(config).packed(device)
    rows = _responded(config, [prompts[i] for i in chosen])
    everything = list(range(len(rows)))
    # With one minibatch all epochs go over the same rows.
    epochs = config.ppo.epochs if config.ppo.minibatches > 1 else 1
    ppo = config.ppo.model_copy(update={"epochs": epochs})
    whole: Any = _Rows(everything)
    plan = plan_minibatches(whole, config.model_copy(update={"ppo": ppo}), step)
    at_once = min(config.rollout.max_rows or len(rows), len(rows))
    return StepSizes(
        rows=at_once,
        longest=max(len(ids) for ids in prompts),
        prefill=min(PREFILL_TOKENS, sum(sorted(len(prompts[i]) for i in chosen)[-at_once:])),
        reading=_largest(config, rows, [everything], packed=packed),
        # The state after the last token is of no use in an update.
        training=_largest(config, [ids[:-1] for ids in rows], [m for epoch in plan for m in epoch], packed=packed),
    )


def even_prompts(config: Config, length: int) -> list[list[int]]:
    """A step's prompts of one length that have nothing in common, for want of real ones."""
    count = config.rollout.prompts_per_step
    return [list(range(i * length, (i + 1) * length)) for i in range(count)]


def _heaviest_step(config: Config, lengths: Sequence[int]) -> tuple[int, list[int]]:
    """The step with most prompt tokens, and the indices of its prompts."""
    order = PromptOrder(
        len(lengths),
        batch=config.rollout.prompts_per_step,
        seed=config.run.seed,
        shuffle=config.data.shuffle,
        drop_last=config.data.drop_last and len(lengths) >= config.rollout.prompts_per_step,
    )
    steps = range(1, min(config.run.steps or 1, MOST_STEPS) + 1)
    heaviest = max(steps, key=lambda step: sum(lengths[i] for i in order.batch(step)))
    return heaviest, order.batch(heaviest)


def _responded(config: Config, prompts: Sequence[Sequence[int]]) -> list[IntArray]:
    """Prompts with responses of ids that no other row has."""
    new, samples = config.rollout.max_new_tokens, config.rollout.samples_per_prompt
    repeated = [ids for ids in prompts for _ in range(samples)]
    return [
        np.concatenate([np.asarray(ids, dtype=np.int64), -1 - np.arange(row * new, (row + 1) * new)])
        for row, ids in enumerate(repeated)
    ]


def _largest(config: Config, rows: list[IntArray], minibatches: Sequence[Sequence[int]], *, packed: bool) -> LaidSizes:
    found = [
        sizes
        for minibatch in minibatches
        for sizes in _micro_batches(config, [rows[i] for i in minibatch], packed=packed)
    ]
    return max(found, key=lambda sizes: (sizes.tokens, sizes.joined))


def _micro_batches(config: Config, rows: list[IntArray], *, packed: bool) -> Iterator[LaidSizes]:
    for group in groups_within(rows, config.batch.tokens, packed=packed):
        laid = pack([rows[i] for i in group]) if packed else pad([rows[i] for i in group])
        actions, tokens = len(group) * config.rollout.max_new_tokens, int(laid.ids.size)
        if not isinstance(laid.layout, Packed):
            yield LaidSizes(tokens, actions, joined=0, masked=0, packed=False)
            continue
        own, before = laid.layout.lengths, laid.layout.before or ((),) * len(laid.layout.lengths)
        seen = [length + sum(own[i] for i in others) for length, others in zip(own, before, strict=True)]
        continuing = [(own[i], seen[i]) for i in range(len(own)) if before[i]]
        joined, masked = sum(keys for _, keys in continuing), sum(queries * keys for queries, keys in set(continuing))
        together = in_buckets(own, seen, width_of(config)) or []
        weights = sum(len(b) * max(own[i] for i in b) * max(seen[i] for i in b) for b in together)
        yield LaidSizes(tokens, actions, joined, masked, packed=True, weights=weights)
