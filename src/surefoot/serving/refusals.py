"""Errors on the wire: one JSON shape, a status for each code, and what a client makes of it. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from surefoot.errors import (
    ServiceError,
    ServiceFailed,
    ServiceMismatch,
    ServiceRefused,
    ServiceUnavailable,
    SurefootError,
    WireError,
)
from surefoot.rewards.http_calls import RETRIED
from surefoot.serving.fields import read_json, to_json

STATUS: Final[Mapping[str, int]] = {
    "bad_request": 400,
    "unauthorised": 401,
    "not_found": 404,
    "stale_step": 409,
    "other_content": 409,
    "in_use": 409,
    "no_such_checkpoint": 409,
    "mismatch": 409,
    "too_large": 413,
    "bad_media_type": 415,
    "unprocessable": 422,
    "too_many": 429,
    "model_failed": 500,
    "not_ready": 503,
    "overloaded": 503,
    "disk_full": 507,
}
"""Every code of the protocol with its HTTP status."""

RETRY: Final = frozenset({"too_many", "not_ready", "overloaded", "disk_full"})
"""Codes after which the same request may succeed a little later."""

_MISMATCH: Final = frozenset({"stale_step", "other_content", "in_use", "no_such_checkpoint", "mismatch"})


@dataclass(frozen=True)
class Refusal:
    """Why a request was not served.

    Attributes:
        code: one of STATUS; a server of another version may send others.
        message, got, allowed, hint: as in :class:`surefoot.errors.SurefootError`.
        retry: whether the same request may succeed later.
        typed: it came in this shape; False for what another server said.
    """

    code: str
    message: str
    got: str | None = None
    allowed: str | None = None
    hint: str | None = None
    retry: bool = False
    typed: bool = True

    @classmethod
    def of(cls, error: SurefootError, code: str | None = None) -> Refusal:
        """An error as it is sent.

        Args:
            error: what was raised.
            code: its code; the error's own when None, else ``bad_request``.
        """
        own = code or getattr(error, "code", None) or "bad_request"
        got, allowed = (None if v is None else v if isinstance(v, str) else repr(v) for v in (error.got, error.allowed))
        return cls(own, error.what, got, allowed, error.hint, own in RETRY)

    @property
    def status(self) -> int:
        """Its HTTP status; 500 for an unknown code."""
        return STATUS.get(self.code, 500)

    def pack(self) -> bytes:
        """The body: ``{"error": {...}}``."""
        return to_json({"error": {name: value for name, value in vars(self).items() if name != "typed"}})

    @classmethod
    def unpack(cls, data: bytes, status: int) -> Refusal:
        """Read the body of an answer with an error's status. Any body will do: a proxy's page is a message too."""
        try:
            return read_json(_Envelope, data, "the error").error
        except WireError:
            return cls(_code_of(status), _shown(data, status), retry=status in RETRIED, typed=False)

    def error(self, place: str) -> ServiceError:
        """The typed error that a client raises; ``place`` says who answered."""
        parts: dict[str, Any] = {"got": self.got, "allowed": self.allowed, "hint": self.hint, "code": self.code}
        return _kind_of(self)(f"{place}: {self.message}", **parts)


@dataclass(frozen=True)
class _Envelope:
    error: Refusal


def _kind_of(refusal: Refusal) -> type[ServiceError]:
    if refusal.code in _MISMATCH:
        return ServiceMismatch
    if refusal.retry or refusal.code in RETRY:
        return ServiceUnavailable
    return ServiceFailed if refusal.status >= 500 else ServiceRefused


def _code_of(status: int) -> str:
    for code, own in STATUS.items():
        if own == status and own != 409:
            return code
    return "bad_request" if 400 <= status < 500 else "model_failed"


def _shown(data: bytes, status: int) -> str:
    phrase = HTTPStatus(status).phrase if status in {s.value for s in HTTPStatus} else "an unknown status"
    text = " ".join(data[:2000].decode("utf-8", "replace").split())[:200]
    return f"{status} {phrase}" + (f": {text}" if text else "")
