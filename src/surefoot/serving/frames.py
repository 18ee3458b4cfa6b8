"""Bodies with tensors: safetensors, its metadata holding one JSON object, the header. Never pickle. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import pydantic_core
import safetensors
import safetensors.numpy
from pydantic import Field

from surefoot.errors import WireError
from surefoot.serving.fields import to_json

MEDIA_TYPE: Final = "application/vnd.surefoot.v1+safetensors"
KEY: Final = "surefoot"
"""The one key of the metadata."""

Array = npt.NDArray[Any]
_DTYPES: Final = {"I32": "<i4", "U8": "|u1", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class Limits:
    """What a body may hold.

    Attributes:
        body_bytes: size of the whole.
        rows: trajectories.
        tokens: trajectories times the longest, padding included.
    """

    body_bytes: Annotated[int, Field(ge=1)] = 256 << 20
    rows: Annotated[int, Field(ge=1)] = 1024
    tokens: Annotated[int, Field(ge=1)] = 1 << 24

    @property
    def header_bytes(self) -> int:
        """Size of the part that is read as JSON: numbers of rows, and the texts to be scored."""
        return min(self.body_bytes, 64 << 20)


DEFAULT_LIMITS: Final = Limits()


def pack_frame(header: Mapping[str, Any], tensors: Mapping[str, Array]) -> bytes:
    """A body of a header and tensors.

    Raises:
        WireError: the header cannot be written as JSON.
    """
    plain = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    body: bytes = safetensors.numpy.save(plain, metadata={KEY: to_json(header).decode()})
    return body


def open_frame(data: bytes, limits: Limits, *, names: Collection[str], what: str) -> tuple[str, dict[str, Array]]:
    """The header's JSON and the tensors of a body. Sizes are checked before anything is read.

    Args:
        data: the body.
        limits: what it may hold.
        names: tensors that it may have.
        what: what to call it in messages.
    Raises:
        WireError: too large (``too_large``), or not such a body (``bad_request``).
    """
    metadata = _metadata(data, limits, what)
    try:
        found: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(bytes(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise _bad(what, str(error)) from None
    tensors: dict[str, Array] = {}
    for name, tensor in found:
        if name not in names:
            raise _bad(what, f"a tensor {name[:40]!r}", allowed=", ".join(sorted(names)) or "no tensor")
        if tensor["dtype"] not in _DTYPES:
            raise _bad(what, f"tensor {name} of type {tensor['dtype']}", allowed=", ".join(_DTYPES))
        if len(tensor["shape"]) not in (1, 2):
            raise _bad(what, f"tensor {name} of {len(tensor['shape'])} dimensions", allowed="1 or 2")
        flat = np.frombuffer(tensor["data"], dtype=_DTYPES[tensor["dtype"]])
        tensors[name] = flat.reshape(tensor["shape"])
    return metadata, tensors


def _metadata(data: bytes, limits: Limits, what: str) -> str:
    if len(data) > limits.body_bytes:
        raise _too_large(what, len(data), limits.body_bytes)
    if len(data) < 8:
        raise _bad(what, f"{len(data)} bytes")
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise _bad(what, f"a header of {size} bytes in a body of {len(data)}")
    if size > limits.header_bytes:
        raise _too_large(f"the header of {what}", size, limits.header_bytes)
    try:
        tree = pydantic_core.from_json(data[8 : 8 + size], allow_inf_nan=False)
    except ValueError as error:
        raise _bad(what, f"a header that is no JSON ({error})") from None
    metadata = tree.get("__metadata__") if isinstance(tree, dict) else None
    header = metadata.get(KEY) if isinstance(metadata, dict) else None
    if not isinstance(header, str):
        raise _bad(what, f"no metadata {KEY!r}")
    return header


def _bad(what: str, got: str, *, allowed: str | None = None) -> WireError:
    return WireError(
        f"{what} is not the safetensors body that it should be",
        got=got[:300],
        allowed=allowed,
        hint="was it cut on its way? docs/service.md describes every message",
        code="bad_request",
    )


def _too_large(what: str, size: int, limit: int) -> WireError:
    return WireError(
        f"{what} is too large",
        got=f"{size} bytes",
        allowed=f"{limit} bytes",
        hint="send fewer rows in a request, or raise serve.body_mb",
        code="too_large",
    )
