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
from surefoot.models.attention import Layout, Packed, Padded
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
        last: ``[r]`` flat positions of the states after each row's last token.
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


def micro_batches(
    rollout: Rollout, rows: Sequence[int] | IntArray, *, tokens: int, packed: bool, device: torch.device
) -> Iterator[MicroBatch]:
    """Cut rows into micro-batches of at most ``tokens`` tokens (one row always fits).

    Rows of one length class come together, so that little is padded; in the packed layout nothing is.
    """
    order = sorted((int(r) for r in rows), key=lambda r: (int(rollout.lengths[r]), r))
    group: list[int] = []
    for row in order:
        length = int(rollout.lengths[row])
        used = sum(int(rollout.lengths[r]) for r in group) if packed else length * len(group)
        if group and used + length > tokens:
            yield lay_out(rollout, group, packed=packed, device=device)
            group = []
        group.append(row)
    if group:
        yield lay_out(rollout, group, packed=packed, device=device)


def lay_out(rollout: Rollout, rows: Sequence[int], *, packed: bool, device: torch.device) -> MicroBatch:
    """One micro-batch of exactly these rows; what stands off the rows' lengths is never looked at.

    Raises:
        DataError: the first token of a row is on the mask.
    """
    index = np.asarray(rows, dtype=np.int64)
    lengths = rollout.lengths[index]
    width = int(lengths.max())
    real = np.arange(width) < lengths[:, None]
    mask = rollout.mask[index, :width] & real
    if mask[:, 0].any():
        raise DataError("the first token of a trajectory cannot be an action token: no token precedes it")
    local, columns = np.nonzero(mask)
    if packed:
        ids = np.concatenate([rollout.tokens[r, :n] for r, n in zip(index, lengths, strict=True)])[None]
        positions = np.concatenate([np.arange(n) for n in lengths])[None]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        layout: Layout = Packed(tuple(int(n) for n in lengths))
    else:
        ids = np.where(real, rollout.tokens[index, :width], 0)
        positions = np.broadcast_to(np.arange(width), ids.shape)
        starts = np.arange(len(index)) * width
        layout = Padded()

    def tensor(array: IntArray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(device)

    return MicroBatch(
        rows=index,
        input_ids=tensor(ids),
        position_ids=tensor(positions),
        layout=layout,
        states=tensor(starts[local] + columns - 1),
        tokens=tensor(rollout.tokens[index[local], columns]),
        where=(index[local], columns),
        local=local,
        last=tensor(starts + lengths - 1),
    )
