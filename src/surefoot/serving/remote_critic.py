"""A critic in another process, as the step sees it: values ahead of time, training beside the policy's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from surefoot.errors import ServiceError, ServiceFailed, ServiceMismatch
from surefoot.parallel.ahead import Ahead
from surefoot.protocols import Values
from surefoot.records import BoolArray, FloatArray, Rollout, Trajectory
from surefoot.rewards.http_calls import CallTrouble
from surefoot.serving import operations
from surefoot.serving.client import ServiceClient
from surefoot.serving.wire import Handshake, InferRequest, TrainRequest, TrainResult
from surefoot.training.critic_update import Minibatches, ServedCritic, Update
from surefoot.training.losses import ValueBatch

logger = logging.getLogger("surefoot")

RELEASE_S = 5.0
FIELDS = tuple(field.name for field in fields(Update))


@dataclass(frozen=True)
class _RowValues:
    """Values of one trajectory ``[T]``, and after it."""

    values: FloatArray
    after: float


class RemoteCritic(ServedCritic):
    """The critic behind a service.

    Args:
        client: of the service.
        met: what it said of itself when the run began.
        overlap: ask for values of trajectories as they end.
    """

    run: str
    """Name of the run at the service; given before it is restored."""
    step: int | None
    """The last step it was trained on; None until it is restored."""

    def __init__(self, client: ServiceClient, met: Handshake, *, overlap: bool = True) -> None:
        assert met.critic is not None, "a service without a critic was taken for one"
        self.client, self.card, self.limits = client, met.critic, met.limits
        self.step, self._connections = None, client.connections
        self._dtype = np.dtype(np.float64 if met.critic.dtype == "float64" else np.float32)
        self._ahead: Ahead[Trajectory, _RowValues] | None = None
        if overlap:
            self._ahead = Ahead(self._infer, rows=self.limits.rows, name="values-ahead")

    def listeners(self) -> Sequence[Callable[[int, Trajectory], None]]:
        """The sending ahead, where it is on."""
        return () if self._ahead is None else (self._ahead.put,)

    def values(self, rollout: Rollout) -> Values:
        """Values of the states in which tokens were chosen, and after the last token.

        Args:
            rollout: B trajectories.
        Returns:
            ``.values`` ``[B, T]``, 0 off the mask, and ``.after`` ``[B]``.
        """
        known = {} if self._ahead is None else self._ahead.collect()
        rows: dict[int, _RowValues] = {}
        for index, (trajectory, found) in known.items():
            if index < rollout.num_rows and trajectory.tokens == rollout.trajectories[index].tokens:
                rows[index] = found
        missing = [index for index in range(rollout.num_rows) if index not in rows]
        asked = [rollout.trajectories[index] for index in missing], [rollout.mask[index] for index in missing]
        rows.update(zip(missing, self._infer(*asked), strict=True))
        self._meet_again()
        values = np.zeros(rollout.mask.shape, dtype=self._dtype)
        for index, row in rows.items():
            values[index, : len(row.values)] = row.values
        # A trajectory whose score failed has lost its action tokens since it was sent.
        values[~rollout.mask] = 0.0
        after = np.array([rows[index].after for index in range(rollout.num_rows)], dtype=self._dtype)
        return Values(values, after)

    def update(self, batch: ValueBatch, plan: Minibatches, *, step: int) -> Iterator[Update]:
        """Train the critic on a step; see :class:`surefoot.training.critic_update.ServedCritic`."""
        rollout = batch.rollout
        request = TrainRequest(
            run=self.run,
            step=step,
            lengths=tuple(int(n) for n in rollout.lengths),
            plan=plan,
            tokens=rollout.tokens.astype(np.int32),
            mask=rollout.mask,
            values=batch.values.numpy(),
            returns=batch.returns.numpy(),
        )
        result = self.client.train(request)
        updates = self._updates(result, expected=sum(map(len, request.plan)))
        self._meet_again()
        self.step = step
        self.updated = self.updated or any(not update.skipped for update in updates)
        yield from updates

    def _updates(self, result: TrainResult, *, expected: int) -> list[Update]:
        try:
            updates = [Update(**{k: v for k, v in one.items() if k in FIELDS}) for one in result.numbers]  # type: ignore[arg-type]
        except TypeError as error:
            raise ServiceFailed(f"{self.client.place}: an update lacks a number", got=str(error)) from error
        if len(updates) != expected:
            raise ServiceFailed(
                f"{self.client.place} did not train on every minibatch", got=f"{len(updates)} updates", allowed=expected
            )
        return updates

    def _meet_again(self) -> None:
        """Behind the address another service may have been started since; it must be as the one before.

        Raises:
            ServiceMismatch: naming everything that differs.
        """
        if self.client.connections == self._connections:
            return
        found = self.client.handshake().critic
        self._connections = self.client.connections
        differences = (
            ["no critic"] if found is None else replace(found, threads=self.card.threads).differences(self.card)
        )
        if differences:
            raise ServiceMismatch(
                f"{self.client.place} is not as it was when the run began",
                got="; ".join(differences),
                hint="start the service with the config of before, and go on with --resume",
            )

    def checkpoint(self, step: int, *, keep: Sequence[int]) -> Mapping[str, Any]:
        """Save it; the record names the service's checkpoint, its digest, the run and the model."""
        saved = self.client.checkpoint(self.run, step, keep)
        return {
            "run": self.run,
            "step": step,
            "name": saved.name,
            "digest": saved.digest,
            "model": self.card.model,
            "updated": self.updated,
        }

    def restore(self, record: Mapping[str, Any] | None) -> None:
        """Put it back to a checkpoint; None: a critic as it is before any training, for this run.

        Raises:
            ServiceMismatch: another critic than the one the record is of.
        """
        if record is not None and record["model"] != self.card.model:
            raise ServiceMismatch(
                "the service holds another critic than the one that this run began with",
                got=f"model {self.card.model[:16]}...",
                allowed=f"{record['model'][:16]}...",
                hint="start the service with the critic.init of the run's config.yaml",
            )
        step, digest = (0, None) if record is None else (int(record["step"]), str(record["digest"]))
        restored = self.client.restore(self.run, step, digest)
        self.step = restored.trained_step
        self.updated = record is not None and bool(record["updated"])

    def interrupt(self) -> None:
        """Close the connections, whatever is being waited for."""
        self.client.close()

    def close(self) -> None:
        """Let the service know that the run is over, if it can be told at once, and the connections go."""
        if self.step is not None:
            try:
                self.client.try_once(operations.release(self.run), RELEASE_S)
            except (CallTrouble, ServiceError) as trouble:
                logger.warning("%s keeps the critic until its lease ends: %s", self.client.place, trouble)
        self.client.close()
        if self._ahead is not None:
            self._ahead.close()

    def _infer(self, trajectories: Sequence[Trajectory], masks: Sequence[BoolArray] | None = None) -> list[_RowValues]:
        """Values of trajectories, in as few requests as the service takes; ``masks`` are their own where left out."""
        found: list[_RowValues] = []
        for part in self._within_limits([len(t.tokens) for t in trajectories]):
            found += self._infer_part(trajectories[part], None if masks is None else masks[part])
        return found

    def _infer_part(self, trajectories: Sequence[Trajectory], masks: Sequence[BoolArray] | None) -> list[_RowValues]:
        lengths = tuple(len(t.tokens) for t in trajectories)
        tokens = np.zeros((len(lengths), max(lengths)), dtype=np.int32)
        mask = np.zeros(tokens.shape, dtype=np.bool_)
        for row, trajectory in enumerate(trajectories):
            tokens[row, : lengths[row]] = trajectory.tokens
            mask[row, : lengths[row]] = trajectory.mask if masks is None else masks[row][: lengths[row]]
        ids = tuple(range(len(lengths)))
        request = InferRequest(ids, lengths, ("values",), tokens, mask, run=self.run, trained_step=self.step)
        answer = self.client.infer(request)
        assert answer.values is not None and answer.after is not None
        return [_RowValues(answer.values[row, :length], float(answer.after[row])) for row, length in enumerate(lengths)]

    def _within_limits(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Rows of these lengths in parts that one request may hold, padding included."""
        begin = longest = 0
        for row, length in enumerate(lengths):
            longest = max(longest, length)
            count = row - begin + 1
            if row > begin and (count > self.limits.rows or count * longest > self.limits.tokens):
                yield slice(begin, row)
                begin, longest = row, length
        if begin < len(lengths):
            yield slice(begin, len(lengths))
