"""The weighted sum of several rewards, every term kept apart for the logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from surefoot.config.sections import Clip
from surefoot.errors import ConfigError, RewardError
from surefoot.records import Rollout, Score, Trajectory


class Term(Protocol):
    """A reward with a name: one term of the sum."""

    name: str

    def score(self, rollout: Rollout) -> list[Score]:
        """One Score per trajectory, in order."""
        ...

    def close(self) -> None:
        """Let go of processes and memory."""
        ...


class CompositeReward:
    """``sum_i weight_i * clip_i(term_i)`` for each trajectory.

    Rewards per token are clipped and weighted token by token and added up by position, so that a term given by token
    and a term given as a score can stand in one sum. A row in which any term failed has failed, whatever the term's
    weight; ``Score.terms`` holds every term before clipping and weighting.

    Args:
        terms: at least one, with different names.
        weights: one per term; all 1 when None.
        clips: one per term: c for [-c, c], (low, high), or None.
    Raises:
        ConfigError: no term, two terms of one name, a list of the wrong length, or an empty interval.
    """

    def __init__(
        self, terms: Sequence[Term], weights: Sequence[float] | None = None, clips: Sequence[Clip] | None = None
    ) -> None:
        self.terms = tuple(terms)
        self.weights = tuple(weights) if weights is not None else (1.0,) * len(self.terms)
        given = tuple(clips) if clips is not None else (None,) * len(self.terms)
        if not self.terms:
            raise ConfigError("a reward needs at least one term", hint="add one to reward.terms")
        if len({term.name for term in self.terms}) < len(self.terms):
            raise ConfigError("two reward terms have the same name", got=[term.name for term in self.terms])
        if not len(self.terms) == len(self.weights) == len(given):
            raise ConfigError(
                "a reward needs one weight and one clip per term",
                got=f"{len(self.terms)} terms, {len(self.weights)} weights, {len(given)} clips",
            )
        self.clips = tuple(_interval(clip, term.name) for clip, term in zip(given, self.terms, strict=True))

    def score(self, rollout: Rollout) -> list[Score]:
        """One Score per trajectory, in order.

        Raises:
            RewardError: a term answered in the wrong shape, or two terms log under one name.
        """
        answers = [term.score(rollout) for term in self.terms]
        for term, answer in zip(self.terms, answers, strict=True):
            if len(answer) != rollout.num_rows:
                raise RewardError(
                    f"reward term {term.name} returned the wrong number of scores",
                    got=f"{len(answer)} for {rollout.num_rows} trajectories",
                )
        return [self._sum(scores, rollout.trajectories[b].mask) for b, scores in enumerate(zip(*answers, strict=True))]

    def listeners(self) -> tuple[Callable[[int, Trajectory], None], ...]:
        """What wants to hear of a trajectory (row, trajectory) as soon as it has ended: terms that score elsewhere."""
        return tuple(found for term in self.terms for found in getattr(term, "listeners", tuple)())

    def close(self) -> None:
        """Close every term, even if closing one raises."""
        errors: list[Exception] = []
        for term in self.terms:
            try:
                term.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _sum(self, scores: Sequence[Score], mask: Sequence[bool]) -> Score:
        logged: dict[str, float | None] = {}
        for term, score in zip(self.terms, scores, strict=True):
            values = {term.name: score.value, **score.terms}
            if double := values.keys() & logged.keys():
                raise RewardError(
                    "two reward terms are logged under one name",
                    got=", ".join(sorted(double)),
                    hint="rename the term, or what the function calls its parts",
                )
            logged |= values
        failures = [f"{t.name}: {s.reason or 'failed'}" for t, s in zip(self.terms, scores, strict=True) if s.failed]
        if failures:
            return Score(None, "; ".join(failures), logged)
        parts, tokens = [], [0.0] * len(mask)
        for score, weight, clip, term in zip(scores, self.weights, self.clips, self.terms, strict=True):
            if score.token_rewards is None:
                parts.append(weight * _clipped(score.value or 0.0, clip))
                continue
            # Such a term has no score of its own; clipping its 0 to an interval beside 0 would invent one.
            parts.append(weight * (score.value or 0.0))
            for t, reward in enumerate(_clipped_tokens(score.token_rewards, clip, term.name)):
                tokens[t] += weight * reward
        value = math.fsum(parts)
        if not math.isfinite(value) or not all(map(math.isfinite, tokens)):
            return Score(None, "the weighted sum is too large for a number", logged)
        by_token = any(score.token_rewards is not None for score in scores)
        return Score(value, None, logged, tuple(tokens) if by_token else None)


def _interval(clip: Clip, name: str) -> tuple[float, float] | None:
    if clip is None:
        return None
    low, high = clip if isinstance(clip, tuple) else (-clip, clip)
    if not low < high:
        raise ConfigError(f"the clip of reward term {name} is no interval", got=clip, allowed="c > 0, or [low, high]")
    return low, high


def _clipped(value: float, interval: tuple[float, float] | None) -> float:
    return value if interval is None else min(max(value, interval[0]), interval[1])


def _clipped_tokens(rewards: Sequence[float], interval: tuple[float, float] | None, name: str) -> list[float]:
    if interval is not None and not interval[0] <= 0.0 <= interval[1]:
        raise RewardError(
            f"reward term {name} gives rewards per token, and its clip leaves out 0, which most tokens get",
            got=interval,
            hint="choose an interval with 0 in it",
        )
    return [_clipped(reward, interval) for reward in rewards]
