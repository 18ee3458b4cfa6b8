"""Protocol version 1 between the trainer and a critic or reward service: what a message holds and how it is checked.

Arrays have the one layout of every per-token array: ``[B, T]``, right-padded with 0, column t speaks about token t.
Making or reading a message that is not sound raises :class:`surefoot.errors.WireError`, so one that exists is sound.
``docs/service.md`` describes the bytes. Torch-free.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from surefoot.records import BoolArray, FloatArray
from surefoot.serving.control import (
    Checkpointed,
    CheckpointRequest,
    CriticCard,
    Handshake,
    Readiness,
    Released,
    ReleaseRequest,
    Restored,
    RestoreRequest,
    RewardCard,
    TrainResult,
)
from surefoot.serving.fields import PROTOCOL, Digest, Natural, Positive, Protocol, Reason, RunName, read_json, to_json
from surefoot.serving.frames import DEFAULT_LIMITS, MEDIA_TYPE, Array, Limits, open_frame, pack_frame
from surefoot.serving.refusals import RETRY, STATUS, Refusal
from surefoot.serving.soundness import (
    Int32Array,
    check_floats,
    check_ids,
    check_limits,
    checked_rows,
    names_of,
    present,
    short,
    unsound,
)

__all__ = [
    "MEDIA_TYPE",
    "PROTOCOL",
    "RETRY",
    "STATUS",
    "CheckpointRequest",
    "Checkpointed",
    "CriticCard",
    "Handshake",
    "InferRequest",
    "Inferred",
    "Limits",
    "Readiness",
    "Refusal",
    "ReleaseRequest",
    "Released",
    "RestoreRequest",
    "Restored",
    "RewardCard",
    "TrainRequest",
    "TrainResult",
]

Want = Literal["values", "scores"]
Item = str | Sequence[Mapping[str, Any]]
"""What a reward model reads: a text, or chat messages."""
Plan = Sequence[Sequence[Sequence[int]]]
"""Rows of each minibatch of each epoch."""


@dataclass(frozen=True, eq=False)
class InferRequest:
    """Ask for values, scores or both.

    Attributes:
        ids: B different numbers of at least 0 that name the rows; the answer must bring them back.
        lengths: B numbers of tokens, from 1 to T.
        want: ``values``, ``scores`` or both.
        tokens: int32 ``[B, T]``, 0 behind a row's end; None when only scores are wanted.
        mask: bool ``[B, T]``, True on action tokens, never in the first column; None when only scores are wanted.
        items: B texts or conversations, for scores; None when only values are wanted.
        run, trained_step: the run, and the step that the critic must have been trained on; None: any.
    """

    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    want: tuple[Want, ...]
    tokens: Int32Array | None = None
    mask: BoolArray | None = None
    items: tuple[Item, ...] | None = None
    run: str | None = None
    trained_step: int | None = None

    def __post_init__(self) -> None:
        check_ids(self.ids, self.lengths)
        if not self.want or len(set(self.want)) < len(self.want) or not set(self.want) <= {"values", "scores"}:
            raise unsound("want must name values, scores or both", list(self.want))
        if ("values" in self.want) != (self.tokens is not None) or (self.tokens is None) != (self.mask is None):
            raise unsound("tokens and mask are there for values, and only for them", names_of(self))
        if ("scores" in self.want) != (self.items is not None):
            raise unsound("items are there for scores, and only for them", names_of(self))
        if self.items is not None and len(self.items) != len(self.ids):
            raise unsound("there must be one item per row", f"{len(self.items)} items for {len(self.ids)} rows")
        if self.tokens is not None and self.mask is not None:
            tokens, mask = checked_rows(self.tokens, self.mask, self.lengths)
            object.__setattr__(self, "tokens", tokens)
            object.__setattr__(self, "mask", mask)

    def pack(self) -> bytes:
        """The body of the request."""
        header = {
            "protocol": PROTOCOL,
            "kind": "infer",
            "run": self.run,
            "trained_step": self.trained_step,
            "want": self.want,
            "ids": self.ids,
            "lengths": self.lengths,
        }
        if self.items is not None:
            header["items"] = [i if isinstance(i, str) else [dict(message) for message in i] for i in self.items]
        return pack_frame(header, present(tokens=self.tokens, mask=self.mask))

    @classmethod
    def unpack(cls, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Read a request.

        Raises:
            WireError: it is not one, is not sound, or is larger than the limits.
        """
        text, tensors = open_frame(data, limits, names=("tokens", "mask"), what="the request")
        header = read_json(_InferHeader, text, "the request's header")
        check_limits(len(header.ids), tensors.get("tokens"), limits)
        items = header.items
        return cls(
            tuple(header.ids),
            tuple(header.lengths),
            tuple(header.want),
            tensors.get("tokens"),
            tensors.get("mask"),
            None if items is None else tuple(items),
            header.run,
            header.trained_step,
        )


@dataclass(frozen=True)
class _InferHeader:
    protocol: Protocol
    kind: Literal["infer"]
    run: RunName | None
    trained_step: Natural | None
    want: list[Want]
    ids: list[Natural]
    lengths: list[Positive]
    items: list[str | list[dict[str, Any]]] | None = None


@dataclass(frozen=True, eq=False)
class Inferred:
    """The answer to an :class:`InferRequest`.

    Attributes:
        ids, lengths: as they were asked.
        trained_step: last step that the critic was trained on, 0 without a critic.
        values: float32 or float64 ``[B, T]``; None when none were wanted. ``[1, T]`` stays so.
        after: of the same type, ``[B]``: the value after the last token.
        scores: float64 ``[B]``, 0 where scoring failed; None when none were wanted.
        reasons: for each row why its scoring failed, None where it did not.
    """

    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    trained_step: int
    values: FloatArray | None = None
    after: FloatArray | None = None
    scores: FloatArray | None = None
    reasons: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        check_ids(self.ids, self.lengths)
        if (self.values is None) != (self.after is None):
            raise unsound("values come with the value after the last token", names_of(self))
        if self.values is not None and self.after is not None:
            check_floats("values", self.values, (len(self.ids), self.values.shape[-1] if self.values.ndim else 0))
            check_floats("after", self.after, (len(self.ids),))
            if self.values.dtype != self.after.dtype or self.values.shape[1] < max(self.lengths):
                raise unsound("values and after must be of one type and as long as the rows", self.values.shape)
        if not self.reasons:
            object.__setattr__(self, "reasons", (None,) * len(self.ids))
        if len(self.reasons) != len(self.ids):
            raise unsound("there must be one reason or null per row", len(self.reasons))
        if self.scores is not None:
            check_floats("scores", self.scores, (len(self.ids),))

    @property
    def failed(self) -> BoolArray:
        """bool ``[B]``: rows whose scoring failed."""
        return np.array([reason is not None for reason in self.reasons], dtype=np.bool_)

    def pack(self) -> bytes:
        """The body of the answer."""
        header = {
            "protocol": PROTOCOL,
            "kind": "inferred",
            "ids": self.ids,
            "lengths": self.lengths,
            "trained_step": self.trained_step,
            "reasons": self.reasons,
        }
        scores = None if self.scores is None else np.where(self.failed, 0.0, self.scores).astype("<f8")
        failed = None if self.scores is None else self.failed
        return pack_frame(header, present(values=self.values, after=self.after, scores=scores, failed=failed))

    @classmethod
    def unpack(cls, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Read an answer.

        Raises:
            WireError: it is not one, or is not sound.
        """
        names = ("values", "after", "scores", "failed")
        text, tensors = open_frame(data, limits, names=names, what="the answer")
        header = read_json(_InferredHeader, text, "the answer's header")
        answer = cls(
            tuple(header.ids),
            tuple(header.lengths),
            header.trained_step,
            tensors.get("values"),
            tensors.get("after"),
            tensors.get("scores"),
            tuple(header.reasons),
        )
        failed = tensors.get("failed")
        if (failed is None) != (answer.scores is None):
            raise unsound("scores come with what failed", names_of(answer))
        if failed is not None and not np.array_equal(failed, answer.failed):
            raise unsound("a row has failed exactly where it has a reason", failed.tolist()[:16])
        return answer

    def check(self, request: InferRequest) -> None:
        """Check that this answers the request, row by row.

        Raises:
            WireError: ids, lengths or shapes are others, or what was asked for is missing.
        """
        if (self.ids, self.lengths) != (request.ids, request.lengths):
            raise unsound("the answer is for other rows", f"{short(self.ids)}, asked: {short(request.ids)}")
        for name, found in (("values", self.values), ("scores", self.scores)):
            if (name in request.want) != (found is not None):
                raise unsound(f"the answer must hold {' and '.join(request.want)}, and nothing else", names_of(self))
        shape = None if request.tokens is None else request.tokens.shape
        if self.values is not None and self.values.shape != shape:
            raise unsound("values of another shape than the tokens", f"{self.values.shape}, tokens: {shape}")


@dataclass(frozen=True)
class _InferredHeader:
    protocol: Protocol
    kind: Literal["inferred"]
    ids: list[Natural]
    lengths: list[Positive]
    trained_step: Natural
    reasons: list[Reason | None]


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """One step's batch to train the critic on, once.

    Attributes:
        run, step: what names the request: the same once more gives the stored result.
        lengths: B numbers of tokens.
        plan: rows of each minibatch of each epoch, each row at most once an epoch; empty when there is nothing to
            train on, which counts as a step all the same.
        tokens, mask: as in :class:`InferRequest`.
        values, returns: float32 or float64 ``[B, T]``: values before the update, and what they should have been.
    """

    run: str
    step: int
    lengths: tuple[int, ...]
    plan: Plan
    tokens: Int32Array
    mask: BoolArray
    values: FloatArray
    returns: FloatArray

    def __post_init__(self) -> None:
        check_ids(tuple(range(len(self.lengths))), self.lengths)
        tokens, mask = checked_rows(self.tokens, self.mask, self.lengths)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "plan", tuple(tuple(tuple(map(int, m)) for m in epoch) for epoch in self.plan))
        for name, array in (("values", self.values), ("returns", self.returns)):
            check_floats(name, array, tokens.shape)
        for epoch in self.plan:
            rows = [row for minibatch in epoch for row in minibatch]
            if len(set(rows)) < len(rows) or not all(epoch) or not all(0 <= r < len(self.lengths) for r in rows):
                raise unsound(
                    "an epoch's minibatches must hold rows, each at most once", short(rows), f"0 to {len(tokens) - 1}"
                )

    @functools.cached_property
    def digest(self) -> str:
        """sha256 of the tensors' names, types, shapes and bytes in the order of their names, then lengths and plan."""
        found = hashlib.sha256()
        for name, array in sorted(self._tensors().items()):
            plain = np.ascontiguousarray(array)
            found.update(f"{name} {plain.dtype.str} {plain.shape}\n".encode())
            found.update(plain.tobytes())
        found.update(to_json([self.lengths, self.plan]))
        return found.hexdigest()

    def _tensors(self) -> dict[str, Array]:
        return present(tokens=self.tokens, mask=self.mask, values=self.values, returns=self.returns)

    def pack(self) -> bytes:
        """The body of the request."""
        header = {
            "protocol": PROTOCOL,
            "kind": "train",
            "run": self.run,
            "step": self.step,
            "lengths": self.lengths,
            "plan": self.plan,
            "digest": self.digest,
        }
        return pack_frame(header, self._tensors())

    @classmethod
    def unpack(cls, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Read a request.

        Raises:
            WireError: it is not one, is not sound, is larger than the limits, or its digest is another.
        """
        names = ("tokens", "mask", "values", "returns")
        text, tensors = open_frame(data, limits, names=names, what="the request")
        header = read_json(_TrainHeader, text, "the request's header")
        if missing := [name for name in names if name not in tensors]:
            raise unsound("tensors are missing", ", ".join(missing), code="bad_request")
        check_limits(len(header.lengths), tensors["tokens"], limits)
        request = cls(header.run, header.step, tuple(header.lengths), header.plan, **tensors)
        if request.digest != header.digest:
            raise unsound("the content is not what its digest says: it changed on its way", header.digest)
        return request


@dataclass(frozen=True)
class _TrainHeader:
    protocol: Protocol
    kind: Literal["train"]
    run: RunName
    step: Positive
    lengths: list[Positive]
    plan: list[list[list[Natural]]]
    digest: Digest
