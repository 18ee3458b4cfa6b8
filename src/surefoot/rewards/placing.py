"""Putting rewards that a function gave by token or by span of text onto the positions of a trajectory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Offsets = Callable[[Sequence[int]], Sequence[tuple[int, int]]]
"""From token ids to the part of their decoded text that each stands for: ``[start, end)`` in characters."""

Span = tuple[float, float, float]

LARGEST = 1e100
"""Beyond it sums and squares of scores leave the range of floating-point numbers."""


def usable(value: float) -> bool:
    """Whether a number can be a reward: finite, and not of a size that only a fault produces."""
    return math.isfinite(value) and abs(value) <= LARGEST


class Misplaced(Exception):
    """A reward that has no place in the trajectory. The text says why."""


def place_tokens(rewards: Sequence[float], mask: Sequence[bool]) -> tuple[float, ...]:
    """One reward per action token, onto the positions of the action tokens.

    Args:
        rewards: as many as there are action tokens.
        mask: T booleans.
    Returns:
        T rewards, 0 off the mask; their sum is the sum of ``rewards``.
    Raises:
        Misplaced: a reward is not finite.
    """
    if not all(map(usable, rewards)):
        place = next(n for n, r in enumerate(rewards) if not usable(r))
        raise Misplaced(f"the reward of action token {place} is {rewards[place]}")
    given = iter(rewards)
    return tuple(next(given) if m else 0.0 for m in mask)


def place_spans(
    spans: Sequence[Span], offsets: Sequence[tuple[int, int]], mask: Sequence[bool], *, length: int
) -> tuple[float, ...]:
    """Rewards for spans of the completion's text, onto the positions of the action tokens.

    A span's reward goes, whole, to the last action token that overlaps it: the token whose choice completed the span.
    A character may be made of several tokens; then the last of them counts.

    Args:
        spans: ``(start, end, reward)`` with ``0 <= start < end <= length``, in characters. They may overlap.
        offsets: the characters ``[start, end)`` of each action token.
        mask: T booleans.
        length: characters of the completion.
    Returns:
        T rewards, 0 off the mask; their sum is the sum of the spans' rewards.
    Raises:
        Misplaced: a span is empty, lies outside the text, is covered by no token, or its reward is not finite.
    """
    placed = [0.0] * len(offsets)
    for start, end, reward in spans:
        if not 0 <= start < end <= length or start != int(start) or end != int(end):
            raise Misplaced(f"the span ({start:g}, {end:g}) is not a part of the text, which has {length} characters")
        if not usable(reward):
            raise Misplaced(f"the reward of span ({start:g}, {end:g}) is {reward}")
        covering = [n for n, (first, last) in enumerate(offsets) if first < end and last > start]
        if not covering:
            raise Misplaced(f"no action token stands for the span ({start:g}, {end:g})")
        placed[covering[-1]] += reward
    return place_tokens(placed, mask)
