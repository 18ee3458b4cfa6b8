"""A reward model behind one or several services, as a reward term calls it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surefoot.errors import DataError, ServiceFailed, ServiceUnavailable
from surefoot.records import Score, Trajectory
from surefoot.rewards.model import shown
from surefoot.rewards.remote import CallFailed
from surefoot.serving.control import RewardCard
from surefoot.serving.replicas import Replicas
from surefoot.serving.wire import InferRequest, Item


class ServiceScorer:
    """Sends what the reward model would be shown in one process: a conversation where it can read one, else text.

    Args:
        name: the term's name.
        replicas: of one reward model.
        card: what they said of it.
    """

    def __init__(self, name: str, replicas: Replicas, card: RewardCard) -> None:
        self.name, self.replicas, self.card = name, replicas, card

    def score(self, rows: Sequence[Trajectory]) -> list[Score]:
        """See :class:`surefoot.rewards.remote.Scorer`.

        Raises:
            CallFailed: no replica answered in time, or the model failed.
            ServiceError: what another try would not change: a token, a limit, another model than the others.
        """
        items: dict[int, Item] = {}
        scores: dict[int, Score] = {}
        for index, trajectory in enumerate(rows):
            try:
                items[index] = shown(trajectory, has_chat_template=self.card.has_chat_template)
            except DataError as error:
                scores[index] = self._failed(str(error))
        if items:
            scores |= zip(items, self._asked(list(items.values())), strict=True)
        return [scores[index] for index in range(len(rows))]

    def close(self) -> None:
        """Close the connections."""
        self.replicas.close()

    def _asked(self, items: Sequence[Item]) -> list[Score]:
        # The service reads the text with its own tokenizer, so lengths in the policy's tokens mean nothing there.
        ids = tuple(range(len(items)))
        request = InferRequest(ids, tuple(1 for _ in items), ("scores",), items=tuple(items))
        try:
            answer = self.replicas.infer(request)
        except (ServiceUnavailable, ServiceFailed) as error:
            raise CallFailed(str(error).splitlines()[0]) from error
        assert answer.scores is not None
        found = np.where(answer.failed, 0.0, answer.scores).tolist()
        return [
            Score(value, None, {self.name: value}) if reason is None else self._failed(reason)
            for value, reason in zip(found, answer.reasons, strict=True)
        ]

    def _failed(self, reason: str) -> Score:
        return Score(None, reason, {self.name: None})
