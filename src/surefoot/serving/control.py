"""The messages that are plain JSON: handshake, result of training, checkpoints, end of a run. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Self

from surefoot.serving.fields import PROTOCOL, Digest, Finite, JsonBody, Natural, Positive, Protocol, RunName
from surefoot.serving.frames import DEFAULT_LIMITS, Limits

Role = Literal["critic", "reward"]
Number = bool | int | float | None


@dataclass(frozen=True)
class CriticCard:
    """What a service says of its critic.

    Attributes:
        model: sha256 of its weights before any training.
        tokenizer: fingerprint of the vocabulary it reads; None for a folder without a tokenizer.
        vocabulary: token ids it knows, 0 to this less one.
        context: most tokens of a trajectory; None when it has no limit.
        dtype: of its values, and of its weights.
        threads: CPU threads, on which the last bits depend.
        settings: every config value that its training depends on, by its dotted name.
    """

    model: str
    tokenizer: str | None
    vocabulary: Positive
    context: Positive | None
    dtype: str
    threads: Positive
    settings: dict[str, Any] = field(default_factory=dict)

    def differences(self, other: CriticCard) -> list[str]:
        """What two cards disagree on, each as ``name: mine, not theirs``; empty when they agree."""
        return _differences(self, other)


@dataclass(frozen=True)
class RewardCard:
    """What a service says of its reward model.

    Attributes:
        model: sha256 of its weights; of an ensemble that is not read by its mean, with how it is read.
        tokenizer: fingerprint of its own vocabulary; nothing of the policy's need agree with it.
        name: the term's name, or the folder's.
        has_chat_template: whether conversations can be scored as such.
    """

    model: str
    tokenizer: str | None
    name: str
    has_chat_template: bool

    def differences(self, other: RewardCard) -> list[str]:
        """What two cards disagree on, each as ``name: mine, not theirs``; empty when they agree."""
        return _differences(self, other)


def _differences(mine: CriticCard | RewardCard, theirs: CriticCard | RewardCard) -> list[str]:
    def flat(card: CriticCard | RewardCard) -> dict[str, Any]:
        plain = dict(vars(card))
        return {**{k: v for k, v in plain.items() if k != "settings"}, **plain.get("settings", {})}

    ours, others = flat(mine), flat(theirs)
    return [
        f"{key}: {ours.get(key, 'not given')!r}, not {others.get(key, 'not given')!r}"
        for key in dict.fromkeys((*ours, *others))
        if ours.get(key) != others.get(key) or (key in ours) != (key in others)
    ]


@dataclass(frozen=True)
class Handshake(JsonBody):
    """Who answers: asked before anything else, and again when a service comes back.

    Attributes:
        software: its name and version.
        roles: what it does.
        critic, reward: its models; None where it has no such role.
        run: the run that its critic belongs to; None while it belongs to none.
        trained_step: last step that its critic was trained on, 0 before the first.
        limits: what a request may hold.
    """

    WHAT: ClassVar[str] = "the handshake"

    software: str
    roles: list[Role]
    critic: CriticCard | None
    reward: RewardCard | None
    run: RunName | None
    trained_step: Natural
    limits: Limits = DEFAULT_LIMITS
    protocol: Protocol = PROTOCOL


NOT_FINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class TrainResult(JsonBody):
    """What training on a step did.

    Attributes:
        run, step: what was trained.
        updates: one mapping per optimizer step, in order: the fields of
            :class:`surefoot.training.critic_update.Update`. On the wire NaN and the infinities are the texts ``nan``,
            ``inf`` and ``-inf``, since JSON has no numbers for them; all others are read back as exactly the same.
        repeated: this step had been trained before, and this is what was answered then.
        trained_step: last step trained.
        seconds: time that training took.
    """

    WHAT: ClassVar[str] = "the result of training"

    run: RunName
    step: Positive
    updates: list[dict[str, bool | int | float | Literal["nan", "inf", "-inf"] | None]]
    repeated: bool
    trained_step: Natural
    seconds: Finite

    @property
    def numbers(self) -> list[dict[str, Number]]:
        """The updates with NaN and infinities as numbers."""
        return [{k: NOT_FINITE[v] if isinstance(v, str) else v for k, v in one.items()} for one in self.updates]

    @classmethod
    def of(cls, run: str, step: int, updates: list[Mapping[str, Number]], *, seconds: float) -> Self:
        """A first result; ``updates`` may hold NaN and infinities as numbers."""
        texts = [{k: _text(v) for k, v in one.items()} for one in updates]
        return cls(run, step, texts, repeated=False, trained_step=step, seconds=seconds)

    def again(self, trained_step: int) -> Self:
        """The same result, given once more."""
        return replace(self, repeated=True, trained_step=trained_step)


def _text(value: Number) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


@dataclass(frozen=True)
class CheckpointRequest(JsonBody):
    """Save the critic as it is after ``step``, which must be the last step trained.

    Attributes:
        keep: steps whose checkpoints the trainer still has; others are removed once this one is whole.
    """

    WHAT: ClassVar[str] = "a request for a checkpoint"

    run: RunName
    step: Natural
    keep: list[Natural] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpointed(JsonBody):
    """A whole checkpoint: its name, and the sha256 of its manifest."""

    WHAT: ClassVar[str] = "the answer to a request for a checkpoint"

    run: RunName
    step: Natural
    name: RunName
    digest: Digest


@dataclass(frozen=True)
class RestoreRequest(JsonBody):
    """Go back to the checkpoint of ``step``; step 0 without a digest: begin a new run with the initial weights."""

    WHAT: ClassVar[str] = "a request to restore"

    run: RunName
    step: Natural
    digest: Digest | None = None


@dataclass(frozen=True)
class Restored(JsonBody):
    """The step that the critic is at now."""

    WHAT: ClassVar[str] = "the answer to a request to restore"

    run: RunName
    trained_step: Natural


@dataclass(frozen=True)
class ReleaseRequest(JsonBody):
    """The run is over: another may have the critic."""

    WHAT: ClassVar[str] = "a request to release"

    run: RunName


@dataclass(frozen=True)
class Released(JsonBody):
    """The run no longer holds the critic."""

    WHAT: ClassVar[str] = "the answer to a request to release"

    run: RunName


@dataclass(frozen=True)
class Readiness(JsonBody):
    """Whether the service can work.

    Attributes:
        status: ``ready``, or ``waiting``.
        waits_for: what it waits for, as ``replaying 3 of 7``; None when it is ready.
    """

    WHAT: ClassVar[str] = "the answer of /v1/ready"

    status: Literal["ready", "waiting"]
    waits_for: str | None = None
