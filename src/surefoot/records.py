"""Frozen records that cross boundaries. They hold plain Python and numpy: importing them loads no torch.

Layout of every per-token array (see docs/architecture.md): B trajectories, T tokens of the longest, right-padded;
column t speaks about token t; off the mask arrays are 0 and nothing reads them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from surefoot.errors import DataError

FloatArray = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


class StopReason(StrEnum):
    """Why a trajectory ended; always recorded, never inferred from lengths."""

    EOS = "eos"
    """The policy chose an end-of-sequence token."""
    STOP = "stop"
    """A configured stop string appeared."""
    LENGTH = "length"
    """Cut off: the token limit was reached."""
    ENVIRONMENT = "environment"
    """The environment ended the episode."""

    @property
    def cut_off(self) -> bool:
        """Whether the trajectory was cut off before it ended by itself."""
        return self is StopReason.LENGTH


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the prompt data, ready to be sampled from.

    Attributes:
        id: stable row id, ``FILE:LINE`` for files.
        tokens: token ids as the policy sees them (template applied), at least one.
        text: the rendered prompt, for rewards and logs only.
        messages: the chat messages the row held, None for a plain string.
        columns: the row's other columns, handed to reward functions.
    """

    id: str
    tokens: tuple[int, ...]
    text: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


_PER_TOKEN = ("logp", "step_rewards", "entropy", "values")


@dataclass(frozen=True)
class Trajectory:
    """One episode: given and action tokens in order.

    Attributes:
        tokens: T token ids.
        mask: T booleans, True on action tokens. ``mask[0]`` must be False: nothing precedes the first token.
        stop_reason: why the episode ended.
        logp: T log-probabilities of the behaviour policy, 0 off the mask; None when they are not known.
        entropy, values: T entropies of what the tokens were drawn from, and values of the states they were chosen in,
            as the engine saw them in passing; 0 off the mask, None when it does not say.
        prompt: the prompt it started from.
        response: text of the action part without the closing stop token, for rewards and logs.
        group: id shared by the samples of one prompt within a step.
        step_rewards: T rewards given by an environment or a token-level reward; None when there are none.
    """

    tokens: Sequence[int]
    mask: Sequence[bool]
    stop_reason: StopReason = StopReason.EOS
    logp: Sequence[float] | None = None
    prompt: Prompt | None = None
    response: str = ""
    group: int = 0
    step_rewards: Sequence[float] | None = None
    entropy: Sequence[float] | None = None
    values: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "mask", *_PER_TOKEN):
            values = getattr(self, name)
            if values is not None:
                # Lists, arrays and tensors alike become tuples of plain numbers: a record does not change.
                plain = values.tolist() if hasattr(values, "tolist") else values
                object.__setattr__(self, name, tuple(plain))
        length = len(self.tokens)
        if length == 0:
            raise DataError("a trajectory has no tokens", hint="each prompt needs at least one token")
        if not all(isinstance(t, (int, np.integer)) and t >= 0 for t in self.tokens):
            raise DataError("token ids must be integers of at least 0", got=list(self.tokens)[:8])
        for name in ("mask", *_PER_TOKEN):
            values = getattr(self, name)
            if values is not None and len(values) != length:
                raise DataError(f"a trajectory's {name} must be as long as its tokens", got=len(values), allowed=length)
        if not all(m in (0, 1) for m in self.mask):
            raise DataError("a trajectory's mask must hold booleans", got=list(self.mask)[:8])
        if self.mask[0]:
            raise DataError(
                "the first token of a trajectory cannot be an action token: no token precedes it",
                hint="start the prompt with the begin-of-sequence token or with any given token",
            )
        for name in _PER_TOKEN:
            values = getattr(self, name)
            if values is not None and not all(math.isfinite(v) for v, m in zip(values, self.mask, strict=True) if m):
                raise DataError(f"a trajectory's {name} must be finite on its action tokens")
        # Accepts the plain string too, so that records read back from JSON need no conversion.
        object.__setattr__(self, "stop_reason", StopReason(self.stop_reason))


def _padded(rows: Sequence[Sequence[Any]], width: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    out = np.zeros((len(rows), width), dtype=dtype)
    for b, row in enumerate(rows):
        out[b, : len(row)] = row
    return out


def _known(trajectories: Sequence[Trajectory], name: str, mask: BoolArray) -> FloatArray | None:
    """``[B, T]`` of what every trajectory knows, 0 off the mask; None where one does not."""
    rows = [getattr(t, name) for t in trajectories]
    if any(row is None for row in rows):
        return None
    return np.where(mask, _padded(rows, mask.shape[1], np.float64), 0.0)


@dataclass(frozen=True)
class Rollout:
    """A batch of trajectories in the one layout: numpy arrays ``[B, T]``, right-padded with 0.

    Attributes:
        tokens: int64 ``[B, T]``.
        mask: bool ``[B, T]``, True on action tokens.
        lengths: int64 ``[B]``, number of real tokens of each row.
        stop_reasons: B stop reasons.
        logp: float ``[B, T]`` behaviour log-probabilities from the engine, 0 off the mask; None when unknown.
        trajectories: the B records the arrays were made from.
        step_rewards: float ``[B, T]``, 0 off the mask; None when no trajectory has any.
        entropy, values: float ``[B, T]`` from the engine, 0 off the mask; None when some trajectory has none.
        info: facts about the sampling (engine, effective sampling parameters, weight version).
    """

    tokens: IntArray
    mask: BoolArray
    lengths: IntArray
    stop_reasons: tuple[StopReason, ...]
    logp: FloatArray | None
    trajectories: tuple[Trajectory, ...]
    step_rewards: FloatArray | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    entropy: FloatArray | None = None
    values: FloatArray | None = None

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], *, info: Mapping[str, Any] | None = None) -> Rollout:
        """Lay trajectories out side by side.

        Args:
            trajectories: at least one.
            info: facts about the sampling, stored with the rollout.
        Raises:
            DataError: no trajectory was given.
        """
        if not trajectories:
            raise DataError("a rollout needs at least one trajectory", got=0)
        width = max(len(t.tokens) for t in trajectories)
        mask = _padded([t.mask for t in trajectories], width, np.bool_)
        step_rewards = None
        known = {name: _known(trajectories, name, mask) for name in ("logp", "entropy", "values")}
        if any(t.step_rewards is not None for t in trajectories):
            step_rewards = np.where(mask, _padded([t.step_rewards or () for t in trajectories], width, np.float64), 0.0)
        return cls(
            tokens=_padded([t.tokens for t in trajectories], width, np.int64),
            mask=mask,
            lengths=np.array([len(t.tokens) for t in trajectories], dtype=np.int64),
            stop_reasons=tuple(t.stop_reason for t in trajectories),
            trajectories=tuple(trajectories),
            step_rewards=step_rewards,
            info=dict(info or {}),
            **known,
        )

    @property
    def num_rows(self) -> int:
        """B, the number of trajectories."""
        return int(self.tokens.shape[0])

    @property
    def cut_off(self) -> BoolArray:
        """bool ``[B]``: which trajectories were cut off."""
        return np.array([reason.cut_off for reason in self.stop_reasons], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward returns for one trajectory.

    Attributes:
        value: the weighted sum of the terms, None when scoring failed.
        reason: why it failed, None when it did not.
        terms: each term's own unweighted value, None where that term failed or was left out.
        token_rewards: rewards by position in the trajectory, ``[T]``, or None; they come on top of ``value``.
        note: why the value is what it is ("2 words, at least 5 asked for"), None when there is nothing to say.
        missing: it failed because there was nothing to score by: no such column in the row, no person's rating. What
            becomes of the row then is config (``reward.terms.missing``).
    """

    value: float | None
    reason: str | None = None
    terms: Mapping[str, float | None] = field(default_factory=dict)
    token_rewards: tuple[float, ...] | None = None
    note: str | None = None
    missing: bool = False

    @property
    def failed(self) -> bool:
        """Whether there is no usable value."""
        return self.value is None


def digest_of(prompt: str | Sequence[Mapping[str, Any]], response: str) -> str:
    """What people's judgements of a response are filed under: a sha256, as 64 hexadecimal digits.

    It covers what a person reads. A chat prompt counts by its messages, whatever template rendered them, and of each
    message its role and content; spaces and line ends count.

    Args:
        prompt: the text of a prompt that is a string, or the messages of a chat.
        response: the text of the response, without the closing stop token.
    Returns:
        the digest of ``[prompt, response]`` as JSON without spaces, non-ASCII escaped, keys sorted.
    """
    read = prompt if isinstance(prompt, str) else [{k: m.get(k) for k in ("content", "role")} for m in prompt]
    return hashlib.sha256(json.dumps([read, response], separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def plain_number(value: Any) -> float | int | None:
    """A number fit for JSON: None for what is missing or not finite."""
    if value is None or isinstance(value, bool):
        return None if value is None else int(value)
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, int):
        return number
    return float(number) if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did: plain numbers under ``group/name`` keys; undefined is None, never NaN."""

    step: int
    metrics: Mapping[str, float | int | None]

    def as_json(self) -> dict[str, float | int | None]:
        """The line of ``metrics.jsonl``: ``step`` first, then the metrics in alphabetical order."""
        return {"step": self.step, **{k: plain_number(v) for k, v in sorted(self.metrics.items())}}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a detector or a check found.

    Attributes:
        name: the detector's name.
        severity: ``info``, ``warning`` or ``error``.
        message: one sentence: what was seen.
        evidence: the numbers it rests on.
        advice: what to do about it.
        step: the step it was seen at, None before a run.
    """

    name: str
    severity: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Every input of a run with its digest: what ``lineage.json`` holds."""

    run: str
    inputs: Mapping[str, Mapping[str, Any]]
    packages: Mapping[str, str]
    seed: int
    machine: Mapping[str, Any]
    code: Mapping[str, Any]
