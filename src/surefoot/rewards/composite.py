"""The weighted sum of several rewards, every term kept apart for the logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

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


@dataclass(frozen=True, slots=True)
class Standing:
    """How a term stands in the sum, besides its weight and clip.

    Attributes:
        center, scale: ``(value - center) / scale`` is clipped and weighted.
        missing: what becomes of a row whose score is ``missing``: the row fails; the term is left out of its sum; or
            the term ``stand_in`` counts in its place, by its own center, scale and clip, with this term's weight.
        stand_in: the name of that term.
    """

    center: float = 0.0
    scale: float = 1.0
    missing: Literal["fail", "skip", "model"] = "fail"
    stand_in: str | None = None


class CompositeReward:
    """``sum_i weight_i * clip_i((term_i - center_i) / scale_i)`` for each trajectory.

    Rewards per token are scaled, clipped and weighted token by token and added up by position, so that a term given by
    token and a term given as a score can stand in one sum. A row in which any term failed has failed, whatever the
    term's weight; ``Score.terms`` holds every term before centring, scaling, clipping and weighting.

    A term that is left out of a row adds nothing, and the other weights stay as they are: what the other terms say is
    worth the same in every row, and a term left out counts like one at its center.

    Args:
        terms: at least one, with different names.
        weights: one per term; all 1 when None.
        clips: one per term: c for [-c, c], (low, high), or None.
        standings: one per term; the defaults when None.
    Raises:
        ConfigError: no term, two terms of one name, a list of the wrong length, an empty interval, or a stand-in that
            is no other term.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        weights: Sequence[float] | None = None,
        clips: Sequence[Clip] | None = None,
        standings: Sequence[Standing] | None = None,
    ) -> None:
        self.terms = tuple(terms)
        self.weights = tuple(weights) if weights is not None else (1.0,) * len(self.terms)
        given = tuple(clips) if clips is not None else (None,) * len(self.terms)
        self.standings = tuple(standings) if standings is not None else (Standing(),) * len(self.terms)
        self._places = {term.name: n for n, term in enumerate(self.terms)}
        if not self.terms:
            raise ConfigError("a reward needs at least one term", hint="add one to reward.terms")
        if len(self._places) < len(self.terms):
            raise ConfigError("two reward terms have the same name", got=[term.name for term in self.terms])
        if not len(self.terms) == len(self.weights) == len(given) == len(self.standings):
            raise ConfigError(
                "a reward needs one weight, one clip and one standing per term",
                got=f"{len(self.terms)} terms, {len(self.weights)} weights, {len(given)} clips, "
                f"{len(self.standings)} standings",
            )
        for term, standing in zip(self.terms, self.standings, strict=True):
            if standing.missing == "model" and standing.stand_in not in self._places.keys() - {term.name}:
                raise ConfigError(f"the stand-in of reward term {term.name} is no other term", got=standing.stand_in)
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
        note = "; ".join(f"{t.name}: {s.note}" for t, s in zip(self.terms, scores, strict=True) if s.note) or None
        counting = self._counting(scores)
        failures = [f"{self.terms[n].name}: {scores[n].reason or 'failed'}" for n in counting if scores[n].failed]
        if not counting:
            failures = ["no term has anything to say: all were left out"]
        if failures:
            return Score(None, "; ".join(dict.fromkeys(failures)), logged, note=note)
        parts, tokens = [], [0.0] * len(mask)
        for n, weight in counting.items():
            score, clip, standing = scores[n], self.clips[n], self.standings[n]
            if score.token_rewards is None:
                parts.append(weight * _clipped(((score.value or 0.0) - standing.center) / standing.scale, clip))
                continue
            # Such a term has no score of its own; clipping its 0 to an interval beside 0 would invent one.
            parts.append(weight * (score.value or 0.0) / standing.scale)
            for t, reward in enumerate(_token_rewards(score.token_rewards, standing, clip, self.terms[n].name)):
                tokens[t] += weight * reward
        value = math.fsum(parts)
        if not math.isfinite(value) or not all(map(math.isfinite, tokens)):
            return Score(None, "the weighted sum is too large for a number", logged, note=note)
        by_token = any(scores[n].token_rewards is not None for n in counting)
        return Score(value, None, logged, tuple(tokens) if by_token else None, note)

    def _counting(self, scores: Sequence[Score]) -> Mapping[int, float]:
        """The terms that count in a row, by number, with their weights; a stand-in's weights add up."""
        counting: dict[int, float] = {}
        for n, (score, standing) in enumerate(zip(scores, self.standings, strict=True)):
            place = n
            if score.failed and score.missing and standing.missing == "skip":
                continue
            if score.failed and score.missing and standing.stand_in is not None:
                place = self._places[standing.stand_in]
            counting[place] = counting.get(place, 0.0) + self.weights[n]
        return counting


def _interval(clip: Clip, name: str) -> tuple[float, float] | None:
    if clip is None:
        return None
    low, high = clip if isinstance(clip, tuple) else (-clip, clip)
    if not low < high:
        raise ConfigError(f"the clip of reward term {name} is no interval", got=clip, allowed="c > 0, or [low, high]")
    return low, high


def _clipped(value: float, interval: tuple[float, float] | None) -> float:
    return value if interval is None else min(max(value, interval[0]), interval[1])


def _token_rewards(
    rewards: Sequence[float], standing: Standing, interval: tuple[float, float] | None, name: str
) -> list[float]:
    if standing.center != 0.0 or (interval is not None and not interval[0] <= 0.0 <= interval[1]):
        what = "its clip leaves out 0" if standing.center == 0.0 else "its center is not 0"
        raise RewardError(
            f"reward term {name} gives rewards per token, and {what}, which most tokens get",
            got=interval if standing.center == 0.0 else standing.center,
            hint="choose an interval with 0 in it" if standing.center == 0.0 else "leave its center at 0",
        )
    return [_clipped(reward / standing.scale, interval) for reward in rewards]
