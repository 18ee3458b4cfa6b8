"""What the clients ask a service: each question as a request, and how its answer is read. No clock, no sockets.

Both clients, the blocking one and the one for asyncio, send these. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from surefoot.errors import (
    ServiceFailed,
    ServiceMismatch,
    ServiceUnavailable,
    WireError,
)
from surefoot.rewards.http_calls import RETRIED, Answer, CallTrouble, GaveUp, Patience, Request
from surefoot.serving.wire import (
    MEDIA_TYPE,
    STATUS,
    Checkpointed,
    CheckpointRequest,
    Handshake,
    Inferred,
    InferRequest,
    Limits,
    Readiness,
    Refusal,
    Released,
    ReleaseRequest,
    Restored,
    RestoreRequest,
    TrainRequest,
    TrainResult,
)

R = TypeVar("R")
_JSON: Final = {"Content-Type": "application/json"}
_SMALL: Final = 1 << 20
_ROOM: Final = 1 << 16
"""Bytes of an answer besides its numbers: names, reasons and the like, per row at most."""


@dataclass(frozen=True)
class Operation(Generic[R]):
    """One question.

    Attributes:
        what: what to call it in messages.
        request: what is sent.
        read: the answer from the body of a 200; WireError when it is none.
        other: reads what is neither a 200 nor worth another try; None where that is an error.
    """

    what: str
    request: Request
    read: Callable[[bytes], R]
    other: Callable[[Answer, str], R] | None = None


def handshake() -> Operation[Handshake]:
    """Who are you?"""
    return Operation("the handshake", Request("GET", "/v1/handshake", answer_bytes=_SMALL), Handshake.unpack)


def recognise() -> Operation[Handshake | None]:
    """Are you a service of this protocol at all? A server of another kind answers with whatever it likes."""

    def read(body: bytes) -> Handshake | None:
        try:
            return Handshake.unpack(body)
        except WireError as error:
            if error.code == "mismatch":
                raise
            return None

    def other(answer: Answer, place: str) -> None:
        refusal = Refusal.unpack(answer.body, answer.status)
        if refusal.typed and refusal.code != "not_found":
            raise refusal.error(place)

    return Operation("the handshake", handshake().request, read, other)


def infer(request: InferRequest) -> Operation[Inferred]:
    """Values, scores or both."""

    def read(body: bytes) -> Inferred:
        answer = Inferred.unpack(body, Limits(body_bytes=room))
        answer.check(request)
        return answer

    cells = 0 if request.tokens is None else request.tokens.size
    room = _SMALL + 8 * cells + _ROOM * len(request.ids)
    headers = _headers(MEDIA_TYPE, request.run, request.trained_step)
    return Operation("infer", Request("POST", "/v1/infer", request.pack(), headers, room), read)


def train(request: TrainRequest) -> Operation[TrainResult]:
    """Train on a step, once."""

    def read(body: bytes) -> TrainResult:
        return _same(TrainResult.unpack(body), request.run, request.step)

    headers = _headers(MEDIA_TYPE, request.run, request.step)
    return Operation("train", Request("POST", "/v1/train", request.pack(), headers, _SMALL), read)


def checkpoint(run: str, step: int, keep: Sequence[int]) -> Operation[Checkpointed]:
    """Save the critic as it is after a step."""
    asked = CheckpointRequest(run, step, list(keep))

    def read(body: bytes) -> Checkpointed:
        return _same(Checkpointed.unpack(body), run, step)

    return Operation("checkpoint", _post("/v1/checkpoint", asked.pack(), run, step), read)


def restore(run: str, step: int, digest: str | None) -> Operation[Restored]:
    """Back to a checkpoint, or to the initial weights."""
    asked = RestoreRequest(run, step, digest)

    def read(body: bytes) -> Restored:
        answer = Restored.unpack(body)
        if (answer.run, answer.trained_step) != (run, step):
            raise _other(f"run {answer.run}, step {answer.trained_step}", f"run {run}, step {step}")
        return answer

    return Operation("restore", _post("/v1/restore", asked.pack(), run, step), read)


def release(run: str) -> Operation[Released]:
    """The run is over."""
    return Operation("release", _post("/v1/release", ReleaseRequest(run).pack(), run, None), Released.unpack)


def ready() -> Operation[Readiness]:
    """Can you work now?"""
    return Operation("ready", Request("GET", "/v1/ready", answer_bytes=_SMALL), Readiness.unpack)


def _post(path: str, body: bytes, run: str, step: int | None) -> Request:
    return Request("POST", path, body, _headers(_JSON["Content-Type"], run, step), _SMALL)


def _headers(kind: str, run: str | None, step: int | None) -> dict[str, str]:
    named = {"Content-Type": kind, "X-Surefoot-Run": run, "X-Surefoot-Step": None if step is None else str(step)}
    return {name: value for name, value in named.items() if value is not None}


M = TypeVar("M", TrainResult, Checkpointed)


def _same(answer: M, run: str, step: int) -> M:
    if (answer.run, answer.step) != (run, step):
        raise _other(f"run {answer.run}, step {answer.step}", f"run {run}, step {step}")
    return answer


def _other(got: str, asked: str) -> WireError:
    return WireError("the answer is to another question", got=got, allowed=asked, code="bad_request")


# ------------------------------------------------------------------------------------------- what becomes of answers


def judged(operation: Operation[R], answer: Answer, place: str) -> R:
    """The answer as a record.

    Args:
        operation: what was asked.
        answer: what came back.
        place: who answered, for messages.
    Raises:
        CallTrouble: the same question may be answered a little later.
        ServiceError: it would be answered so again.
    """
    if answer.status == 200:
        return _read(operation, answer, place)
    if operation.other is not None and answer.status not in RETRIED:
        return operation.other(answer, place)
    if 300 <= answer.status < 400:
        raise ServiceFailed(
            f"{place} sends {operation.what} elsewhere, and nothing is followed",
            got=f"{answer.status} to {answer.headers.get('location', 'nowhere')}"[:200],
            hint="write the address that it names into the config, if that is your service",
        )
    refusal = Refusal.unpack(answer.body, answer.status)
    if answer.status in RETRIED or (answer.status >= 500 and refusal.retry):
        message = refusal.message if refusal.typed or answer.status != 503 else _waiting(answer).waits_for
        detail = f"; {refusal.got}" if refusal.got else ""
        raise CallTrouble(f"it answers {answer.status}: {message}{detail}"[:300], answer.retry_after_s)
    if not refusal.typed:
        refusal = replace(refusal, hint="is that a surefoot service? is the address right, and the port?")
    raise refusal.error(place)


def readiness(answer: Answer, place: str) -> Readiness:
    """Whether a service is ready: one that is not says so with 503, which is an answer here."""
    return judged(ready(), answer, place) if answer.status != 503 else _waiting(answer)


def _waiting(answer: Answer) -> Readiness:
    try:
        return Readiness.unpack(answer.body)
    except WireError:
        refusal = Refusal.unpack(answer.body, answer.status)
        return Readiness("waiting", refusal.got or refusal.message)


def _read(operation: Operation[R], answer: Answer, place: str) -> R:
    try:
        return operation.read(answer.body)
    except WireError as error:
        if not answer.whole:
            # Nothing said how long it would be, so it may have been cut on its way.
            raise CallTrouble(f"the answer cannot be read: {error.what}") from error
        kind = ServiceMismatch if error.code == "mismatch" else ServiceFailed
        raise kind(
            f"{place}: {error.what}", got=error.got, allowed=error.allowed, hint=error.hint, code=error.code
        ) from error


def unavailable(operation: Operation[R], place: str, gave_up: GaveUp, patience: Patience) -> ServiceUnavailable:
    """The error that ends a call that no try has served."""
    return ServiceUnavailable(
        f"{place} did not answer {operation.what} in time",
        got=str(gave_up),
        allowed=f"{patience.patience_s:g} s of patience, {patience.timeout_s:g} s a try",
        hint=_what_to_do(gave_up.last),
    )


def _what_to_do(last: str) -> str:
    if "no answer within" in last:
        return "if it only needs longer, raise timeout_s and patience_s; a repeated request is not computed twice"
    if f"it answers {STATUS['disk_full']}" in last:
        return "make room on the service's disk, then go on with --resume"
    return (
        "is it running, and is the address right? GET /v1/ready says what it waits for; start it and go on with "
        "--resume"
    )
