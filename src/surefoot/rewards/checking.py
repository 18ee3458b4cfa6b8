"""A verifiable check as a term of the reward: in this process, or in one of its own under a limit of time."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from surefoot.config.sections import RewardTerm
from surefoot.errors import ConfigError, MissingExtra, UserError
from surefoot.records import Prompt, Rollout, Score, Trajectory
from surefoot.rewards import worker
from surefoot.rewards.checks import Answer, Judgement, make_check
from surefoot.rewards.function import FunctionReward
from surefoot.rewards.placing import usable

logger = logging.getLogger("surefoot.rewards")

ENTRY: Final = f"{__name__}:judge"
"""What runs in the process of an isolated check."""


class CheckReward:
    """One term of the reward: a check. Scores are raw: neither centred, scaled, clipped nor weighted.

    A response that is wrong scores 0, with the reason in ``Score.note``; one that cannot be judged has failed, with the
    reason in ``Score.reason``; a row without the column that the check needs has ``Score.missing``.

    Args:
        term: name, check and options.
        timeout_s: limit for one call of an isolated check, as for a function.
        seed: the run's seed.
    Raises:
        ConfigError: no such check, or options that cannot be used.
        MissingExtra: the check needs a package that is not installed.
    """

    def __init__(self, term: RewardTerm, *, timeout_s: float = 60.0, seed: int = 0) -> None:
        self.name = term.name
        try:
            self._check = make_check(term.place, term.options)
        except UserError as error:
            kind = MissingExtra if isinstance(error, MissingExtra) else ConfigError
            raise kind(
                f"reward term {term.name}: {error.what}", got=error.got, allowed=error.allowed, hint=error.hint
            ) from None
        self._isolated = _IsolatedCheck(term, timeout_s=timeout_s, seed=seed) if self._check.isolated else None
        self._required = () if term.when_missing in ("skip", "model") else self._check.columns

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Columns that the prompts must have; none where a row without them is provided for."""
        return self._required

    def score(self, rollout: Rollout) -> list[Score]:
        """One raw Score per trajectory, in order.

        Raises:
            RewardError: the process of an isolated check answered in a shape that cannot be.
        """
        if self._isolated is not None:
            return self._isolated.score(rollout)
        return [as_score(self.name, self._judge(answer_of(row))) for row in rollout.trajectories]

    def close(self) -> None:
        """End the process of an isolated check."""
        if self._isolated is not None:
            self._isolated.close()

    def _judge(self, answer: Answer) -> Judgement:
        try:
            return self._check(answer)
        except Exception as error:
            # The edge of the check: one response that it does not survive is told and counted, and ends no run.
            logger.warning("reward %s failed for a response", self.name, exc_info=True)
            return Judgement(None, worker.describe(error))


class _IsolatedCheck(FunctionReward):
    """The same check in a process of its own, with a function's limits on its time."""

    def __init__(self, term: RewardTerm, *, timeout_s: float, seed: int) -> None:
        super().__init__(RewardTerm(name=term.name, target=ENTRY), timeout_s=timeout_s, seed=seed)
        self._spec = {"name": term.place, "options": term.options}

    def _call(self, rows: Sequence[Trajectory], limit_s: float) -> list[Score]:
        answers = [answer_of(row) for row in rows]
        columns: dict[str, list[Any]] = {
            "completions": [answer.response for answer in answers],
            "prompt_texts": [answer.prompt for answer in answers],
            "rows": [dict(answer.columns) for answer in answers],
            "tokens": [answer.tokens for answer in answers],
            "check": [self._spec] * len(answers),
        }
        found = self._callee.call(columns, seed=self._call_seed(rows), limit_s=limit_s)
        return [as_score(self.name, Judgement(one["value"], one.get("note"), bool(one["missing"]))) for one in found]


def judge(
    completions: Sequence[str],
    prompt_texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    tokens: Sequence[int],
    check: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Judge rows in the worker's process: what :class:`_IsolatedCheck` calls there."""
    answers = map(Answer, completions, prompt_texts, rows, tokens)
    found = [_made(repr(spec), spec)(answer) for spec, answer in zip(check, answers, strict=True)]
    return [
        {"value": one.value, "missing": float(one.missing)} | ({"note": one.note} if one.note else {}) for one in found
    ]


_MADE: dict[str, Any] = {}


def _made(key: str, spec: Mapping[str, Any]) -> Any:
    if key not in _MADE:
        _MADE[key] = make_check(spec["name"], spec["options"])
    return _MADE[key]


def answer_of(row: Trajectory) -> Answer:
    """What a check sees of a trajectory."""
    prompt = row.prompt or Prompt("", ())
    return Answer(row.response, prompt.text, prompt.columns, sum(map(bool, row.mask)))


def as_score(term: str, judged: Judgement) -> Score:
    """A judgement as the Score of a term."""
    if judged.value is None or not usable(judged.value):
        reason = judged.note or f"scored {judged.value}"
        return Score(None, reason, {term: None}, missing=judged.missing)
    return Score(judged.value, None, {term: judged.value}, note=judged.note)
