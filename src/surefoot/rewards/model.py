"""A reward model as a term of the reward: what text it is shown for a trajectory."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from surefoot.errors import DataError
from surefoot.records import Rollout, Score, Trajectory

logger = logging.getLogger("surefoot.rewards")

Item = str | Sequence[Mapping[str, Any]]


class TextScorer(Protocol):
    """What is needed of ``surefoot.models.reward_model.RewardModel``."""

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be scored."""
        ...

    def encode(self, item: Item) -> list[int]:
        """Its own ids of a text or a conversation; DataError when there are none."""
        ...

    def score_tokens(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """One score per row of its own ids."""
        ...


@runtime_checkable
class SpreadScorer(Protocol):
    """A scorer of several heads that says how far they disagree."""

    def score_with_spread(self, rows: Sequence[Sequence[int]]) -> tuple[list[float], list[float] | None]:
        """One score per row, and the deviation over the heads; None with one head."""
        ...


class ModelReward:
    """One term of the reward: a reward model. Scores are raw: neither clipped nor weighted.

    It is shown the prompt's messages with the response as the assistant's answer, in its own chat template, when the
    prompt was a chat and it has a template; else the text of the prompt with the response behind it. A row whose text
    it cannot read, and a score that is not finite, are failures with a reason. With an ensemble the disagreement of its
    heads is logged beside the term, as ``NAME_spread``.

    Args:
        name: the term's name.
        model: the reward model.
    """

    def __init__(self, name: str, model: TextScorer) -> None:
        self.name, self.model = name, model
        self._warned = False

    def score(self, rollout: Rollout) -> list[Score]:
        """One raw Score per trajectory, in order."""
        rows: dict[int, list[int]] = {}
        reasons: dict[int, str] = {}
        for b, trajectory in enumerate(rollout.trajectories):
            try:
                rows[b] = self.model.encode(self.shown(trajectory))
            except DataError as error:
                reasons[b] = str(error)
        scores, spreads = self._scores(list(rows.values())) if rows else ([], None)
        values = dict(zip(rows, scores, strict=True))
        gaps = {} if spreads is None else dict(zip(rows, spreads, strict=True))
        reasons |= {b: f"the model's score is {value}" for b, value in values.items() if not math.isfinite(value)}
        found = []
        for b in range(rollout.num_rows):
            beside = {f"{self.name}_spread": gaps.get(b)} if gaps else {}
            if b in reasons:
                found.append(Score(None, reasons[b], {self.name: None, **beside}))
            else:
                found.append(Score(values[b], None, {self.name: values[b], **beside}))
        return found

    def _scores(self, rows: Sequence[Sequence[int]]) -> tuple[list[float], list[float] | None]:
        if isinstance(self.model, SpreadScorer):
            return self.model.score_with_spread(rows)
        return self.model.score_tokens(rows), None

    def shown(self, trajectory: Trajectory) -> Item:
        """What the model reads for a trajectory; see :func:`shown`."""
        if _is_chat(trajectory) and not self.model.has_chat_template and not self._warned:
            logger.warning("reward %s: the model has no chat template and reads the policy's", self.name)
            self._warned = True
        return shown(trajectory, has_chat_template=self.model.has_chat_template)

    def close(self) -> None:
        """Nothing to end."""


def _is_chat(trajectory: Trajectory) -> bool:
    return trajectory.prompt is not None and trajectory.prompt.messages is not None


def shown(trajectory: Trajectory, *, has_chat_template: bool) -> Item:
    """What a reward model reads for a trajectory: a conversation where it can, else text.

    Raises:
        DataError: the trajectory has given tokens between its action tokens: several turns are not one response.
    """
    actions = [t for t, m in enumerate(trajectory.mask) if m]
    if actions and len(actions) != actions[-1] - actions[0] + 1:
        raise DataError("a reward model cannot read a trajectory of several turns")
    prompt = trajectory.prompt
    if prompt is not None and prompt.messages is not None and has_chat_template:
        return [*prompt.messages, {"role": "assistant", "content": trajectory.response}]
    return (prompt.text if prompt is not None else "") + trajectory.response
