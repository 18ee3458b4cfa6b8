"""Cutting a rollout into micro-batches that fit a token budget, in either layout.

A micro-batch changes no number: each row is computed as if it were alone, and losses are sums divided by counts of the
whole optimizer batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surefoot.errors import DataError
from surefoot.models.attention import Layout
from surefoot.models.packing import groups_within, pack, pad
from surefoot.records import IntArray, Rollout


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a rollout, laid out for one forward pass.

    Attributes:
        rows: ``[r]`` row numbers in the rollout.
        input_ids, position_ids: ``[R, C]``.
        layout: how attention parts the rows.
        states: ``[n]`` flat positions of the states in which the n action tokens were chosen.
        tokens: ``[n]`` the action tokens.
        where: row and column of each of the n tokens in the rollout.
        local: ``[n]`` row of each token within ``rows``.
        last: ``[r]`` flat positions of the states after each row's last token that is read.
        longest: tokens of the longest row.
    """

    rows: IntArray
    input_ids: Tensor
    position_ids: Tensor
    layout: Layout
    states: Tensor
    tokens: Tensor
    where: tuple[IntArray, IntArray]
    local: IntArray
    last: Tensor
    longest: int


def micro_batches(
    rollout: Rollout,
    rows: Sequence[int] | IntArray,
    *,
    tokens: int,
    packed: bool,
    device: torch.device,
    after: bool = False,
) -> Iterator[MicroBatch]:
    """Cut rows into micro-batches of at most ``tokens`` tokens (one row always fits).

    Args:
        rollout, rows: which.
        tokens, packed: as in :func:`surefoot.models.packing.groups_within`.
        device, after: as in :func:`lay_out`.
    """
    ids = [_read_part(rollout, int(r), after=after) for r in rows]
    for group in groups_within(ids, tokens, packed=packed):
        yield lay_out(rollout, [int(rows[i]) for i in group], packed=packed, device=device, after=after)


def lay_out(
    rollout: Rollout, rows: Sequence[int], *, packed: bool, device: torch.device, after: bool = False
) -> MicroBatch:
    """One micro-batch of exactly these rows; what stands off the rows' lengths is never looked at.

    Args:
        rollout, rows: which.
        packed: end to end; else side by side.
        device: where to.
        after: also read what no action token depends on, up to the state after the last token.
    Raises:
        DataError: the first token of a row is on the mask.
    """
    index = np.asarray(rows, dtype=np.int64)
    ids = [_read_part(rollout, r, after=after) for r in rows]
    width = int(rollout.lengths[index].max())
    mask = rollout.mask[index, :width] & (np.arange(width) < rollout.lengths[index][:, None])
    if mask[:, 0].any():
        raise DataError("the first token of a trajectory cannot be an action token: no token precedes it")
    local, columns = np.nonzero(mask)
    laid = pack(ids) if packed else pad(ids)
    starts = np.cumsum([0, *map(len, ids)])[:-1]
    flat = np.concatenate(laid.places)

    def tensor(array: IntArray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(device)

    return MicroBatch(
        rows=index,
        input_ids=tensor(laid.ids),
        position_ids=tensor(laid.positions),
        layout=laid.layout,
        states=tensor(flat[starts[local] + columns - 1]),
        tokens=tensor(rollout.tokens[index[local], columns]),
        where=(index[local], columns),
        local=local,
        last=tensor(np.array([place[-1] for place in laid.places])),
        longest=int(rollout.lengths[index].max()),
    )


def _read_part(rollout: Rollout, row: int, *, after: bool) -> IntArray:
    """The tokens of a row that must be read: what follows the state of its last action token only if asked for."""
    length = int(rollout.lengths[row])
    if not after:
        actions = np.nonzero(rollout.mask[row, :length])[0]
        length = max(1, int(actions[-1])) if len(actions) else 1
    return rollout.tokens[row, :length]
