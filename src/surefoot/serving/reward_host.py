"""The reward model of a service: texts in, scores out, by the code that scores in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch

from surefoot.errors import DataError, ModelError, ServiceFailed, ServiceRefused
from surefoot.models.reward_model import RewardModel
from surefoot.serving.control import RewardCard
from surefoot.serving.critic_keeper import Turn
from surefoot.serving.scores import Scores
from surefoot.serving.wire import InferRequest, Item

MAX_REASON = 1000


class RewardHost:
    """Holds a reward model. :meth:`open` and :meth:`scores` run in one thread, the model's own.

    Args:
        build: loads the model.
        name: the reward term's name, or the folder's.
        turn: entered around everything that needs the model on its device.

    Attributes:
        waits_for: what it is doing before it can work, None once it can.
    """

    card: RewardCard

    def __init__(self, build: Callable[[], RewardModel], name: str, *, turn: Turn = nullcontext) -> None:
        self._build, self._name, self._turn = build, name, turn
        self._held: RewardModel | None = None
        self.waits_for: str | None = "loading the reward model"

    @property
    def model(self) -> RewardModel:
        """The reward model, once it is loaded."""
        if self._held is None:
            raise ServiceFailed("the reward model is not loaded", code="not_ready")
        return self._held

    def open(self) -> None:
        """Load it.

        Raises:
            ModelError: it cannot be used.
        """
        with self._turn():
            held = self._build()
        vocabulary = held.codec.vocabulary_fingerprint()
        self.card = RewardCard(held.scoring_digest, vocabulary, self._name, held.has_chat_template)
        self._held, self.waits_for = held, None

    def move(self, device: torch.device) -> None:
        """Take the model to a device."""
        if self._held is not None:
            self._held.move(device)

    def scores(self, requests: Sequence[InferRequest]) -> list[Scores | Exception]:
        """Scores for each request, computed in one go; for one that holds what the model cannot read, why.

        A text that has no tokens and a score that is not finite are failures of their row alone, with a reason.

        Raises:
            Exception: the model failed on one of them, and nobody knows on which.
        """
        read = [self._read(request) for request in requests]
        rows = [row for each in read if not isinstance(each, Exception) for row in each if not isinstance(row, str)]
        with self._turn():
            values = self.model.score_tokens(rows) if rows else []
        if len(requests) > 1 and not all(map(math.isfinite, values)):
            # Rows that are computed together share a NaN: each request is tried by itself.
            raise ServiceFailed("the reward model's scores are not finite", code="model_failed")
        found = iter(values)
        return [each if isinstance(each, Exception) else _scored(each, found) for each in read]

    def _read(self, request: InferRequest) -> list[list[int] | str] | Exception:
        """Ids of each item, or why there are none."""
        assert request.items is not None
        try:
            return [self._encode(item) for item in request.items]
        except ModelError as error:
            return ServiceRefused(error.what, got=error.got, hint=error.hint, code="unprocessable")

    def _encode(self, item: Item) -> list[int] | str:
        try:
            return self.model.encode(item)
        except DataError as error:
            return str(error)[:MAX_REASON]


def _scored(rows: Sequence[list[int] | str], found: Iterator[float]) -> Scores:
    values, reasons = [], []
    for row in rows:
        value = math.nan if isinstance(row, str) else next(found)
        reason = row if isinstance(row, str) else None if math.isfinite(value) else f"the model's score is {value}"
        values.append(0.0 if reason is not None else value)
        reasons.append(reason)
    return Scores(tuple(values), tuple(reasons))
