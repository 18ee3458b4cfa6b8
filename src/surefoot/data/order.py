"""Which prompts a step uses: a pure function of seed and step, so that a resumed run needs no state to go on.

Torch-free.
"""

from __future__ import annotations

import numpy as np

from surefoot.errors import DataError
from surefoot.parallel.rng import generator
from surefoot.records import IntArray


class PromptOrder:
    """Epochs of all rows, each a permutation of its own, cut into batches; the last batch of an epoch may be smaller.

    Args:
        num_rows: at least one.
        batch: rows a step.
        seed: the run's seed.
        shuffle: off: the order of the rows, each epoch.
        drop_last: leave out the smaller last batch.
    Raises:
        DataError: there are no rows, or ``drop_last`` would leave no batch.
    """

    def __init__(
        self, num_rows: int, *, batch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        if num_rows < 1 or batch < 1:
            raise DataError(
                "an order needs at least one prompt and one prompt a step", got=f"{num_rows} prompts, {batch} a step"
            )
        if drop_last and num_rows < batch:
            raise DataError(
                "data.drop_last leaves nothing: there are fewer prompts than a step takes",
                got=f"{num_rows} prompts, {batch} a step",
                hint="set data.drop_last: false, or lower rollout.prompts_per_step",
            )
        self.num_rows, self.batch_size, self.seed = num_rows, batch, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self._latest: tuple[int, IntArray] | None = None

    @property
    def batches_per_epoch(self) -> int:
        """Steps until every row was used once (with ``drop_last``: every row that is used)."""
        whole, rest = divmod(self.num_rows, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batch(self, step: int) -> list[int]:
        """Indices of the rows of a step, counted from 1."""
        if step < 1:
            raise DataError("steps count from 1", got=step)
        epoch, number = divmod(step - 1, self.batches_per_epoch)
        rows = self._rows_of(epoch)[number * self.batch_size : (number + 1) * self.batch_size]
        return [int(row) for row in rows]

    def cursor(self, step: int) -> dict[str, int]:
        """Where the order stands after a step: the epoch, from 0, and how many of its rows are used."""
        if step < 0:
            raise DataError("a cursor stands after a step, 0 before the first", got=step)
        epoch, number = divmod(step, self.batches_per_epoch)
        return {"epoch": epoch, "position": number * self.batch_size}

    def _rows_of(self, epoch: int) -> IntArray:
        if self._latest is None or self._latest[0] != epoch:
            order = generator(self.seed, "data", step=epoch).permutation(self.num_rows) if self.shuffle else None
            self._latest = epoch, np.arange(self.num_rows) if order is None else order
        return self._latest[1]
