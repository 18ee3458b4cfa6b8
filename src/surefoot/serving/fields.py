"""JSON objects of the protocol: read into frozen records, every fault named. Torch-free."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from surefoot.errors import WireError

PROTOCOL: Final = 1
MAX_CONTROL_BYTES: Final = 1 << 20
"""Largest JSON body: everything large travels as tensors."""

Natural = Annotated[int, Field(ge=0, lt=1 << 31)]
Positive = Annotated[int, Field(ge=1, lt=1 << 31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Protocol = Literal[1]
Reason = Annotated[str, Field(max_length=2000)]

T = TypeVar("T")


_ADAPTERS: Final[dict[type, TypeAdapter[Any]]] = {}


def read_json(kind: type[T], text: bytes | str, what: str) -> T:
    """A JSON text as a record or a typed dict. Fields that it has besides are ignored: a later version may send more.

    Args:
        kind: what it must be; types are taken strictly, so that ``"3"`` and ``true`` are no numbers.
        text: the JSON.
        what: what to call it in messages.
    Raises:
        WireError: it is no JSON, a field is missing or of another kind (``bad_request``), or it speaks another
            protocol (``mismatch``).
    """
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        found: T = _ADAPTERS[kind].validate_json(text, strict=True)
    except ValidationError as error:
        raise _wire_error(error, what) from None
    return found


def _wire_error(error: ValidationError, what: str) -> WireError:
    faults = error.errors(include_url=False, include_context=False)
    for fault in faults:
        if fault["loc"] == ("protocol",) and isinstance(fault["input"], int):
            return WireError(
                f"{what} speaks another version of the protocol",
                got=fault["input"],
                allowed=PROTOCOL,
                hint="use one version of Surefoot for trainer and service",
                code="mismatch",
            )
    first = faults[0]
    place = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
    shown = repr(first["input"])
    return WireError(
        f"{what} cannot be read: {f'{place}: ' if place else ''}{message}{more}",
        got=None if first["type"] in ("missing", "json_invalid") else shown if len(shown) < 80 else f"{shown[:77]}...",
        hint="docs/service.md describes every message",
        code="bad_request",
    )


def to_json(tree: Any) -> bytes:
    """Compact JSON; numbers are read back as exactly the same.

    Raises:
        WireError: a number is not finite, or a text is no Unicode.
    """
    try:
        return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError) as error:
        raise WireError(f"a message cannot be written as JSON: {error}", code="bad_request") from None


class JsonBody:
    """Base of the messages that are plain JSON; the dataclasses below it are frozen."""

    WHAT: ClassVar[str] = "a message"

    def pack(self) -> bytes:
        """The message as the bytes of a JSON object."""
        return to_json(dataclasses.asdict(self))  # type: ignore[call-overload]

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read it.

        Raises:
            WireError: it is not such a message, or larger than a message without tensors can be.
        """
        if len(data) > MAX_CONTROL_BYTES:
            raise WireError(
                f"{cls.WHAT} is too large",
                got=f"{len(data)} bytes",
                allowed=f"{MAX_CONTROL_BYTES} bytes",
                code="too_large",
            )
        return read_json(cls, data, cls.WHAT)
