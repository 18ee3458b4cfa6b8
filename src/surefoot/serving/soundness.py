"""What makes a message sound: ids, lengths, layout, types, finite numbers. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from surefoot.errors import WireError
from surefoot.records import BoolArray
from surefoot.serving.frames import Array, Limits

Int32Array = npt.NDArray[np.int32]
MAX_ID: Final = (1 << 31) - 1


def present(**arrays: Array | None) -> dict[str, Array]:
    """The arrays that are there, as they travel: booleans as bytes."""
    return {k: a.view(np.uint8) if a.dtype == np.bool_ else a for k, a in arrays.items() if a is not None}


def check_ids(ids: Sequence[int], lengths: Sequence[int]) -> None:
    if not ids or len(ids) != len(lengths):
        raise unsound("there must be at least one row, and one length per row", f"{len(ids)}, {len(lengths)} lengths")
    if len(set(ids)) < len(ids):
        raise unsound("two rows have the same id", short(ids))
    if min(ids) < 0 or max(ids) > MAX_ID or min(lengths) < 1 or max(lengths) > MAX_ID:
        raise unsound("ids count from 0 and lengths from 1", f"{short(ids)}, lengths {short(lengths)}")


def check_limits(rows: int, tokens: Array | None, limits: Limits) -> None:
    for name, count, limit in (
        ("rows", rows, limits.rows),
        ("tokens, padding included", 0 if tokens is None else tokens.size, limits.tokens),
    ):
        if count > limit:
            raise unsound(f"too many {name}", count, str(limit), code="too_large")


def checked_rows(tokens: Array, mask: Array, lengths: Sequence[int]) -> tuple[Int32Array, BoolArray]:
    """Tokens as int32 and the mask as booleans, once they are sound."""
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or tokens.dtype.itemsize < 2:
        raise unsound("tokens must be integers [B, T]", f"{tokens.dtype} {tokens.shape}", code="bad_request")
    if mask.shape != tokens.shape or mask.dtype not in (np.uint8, np.bool_):
        raise unsound("the mask must be of the tokens' shape", f"{mask.dtype} {mask.shape}", code="bad_request")
    if len(tokens) != len(lengths) or max(lengths) > tokens.shape[1]:
        raise unsound("rows and lengths disagree", f"tokens {tokens.shape}, lengths {short(lengths)}")
    if tokens.min() < 0 or tokens.max() > MAX_ID:
        raise unsound("token ids must be at least 0 and below 2^31", f"{tokens.min()} to {tokens.max()}")
    if mask.dtype == np.uint8 and mask.max() > 1:
        raise unsound("the mask must hold 0 and 1", int(mask.max()))
    if mask[:, 0].any():
        raise unsound("the first token of a row cannot be an action token", mask[:, 0].tolist()[:16])
    padding = np.arange(tokens.shape[1]) >= np.asarray(lengths)[:, None]
    if ((tokens != 0) | (mask != 0))[padding].any():
        raise unsound("there are tokens behind a row's end: its length is wrong", short(lengths))
    return np.ascontiguousarray(tokens, dtype=np.int32), np.ascontiguousarray(mask).view(np.bool_)


def check_floats(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype not in (np.float32, np.float64):
        allowed = f"float32 or float64 {list(shape)}"
        raise unsound(f"{name} of another type or shape", f"{array.dtype} {array.shape}", allowed, code="bad_request")
    if not np.isfinite(array).all():
        raise unsound(f"{name} that are not finite", f"{int((~np.isfinite(array)).sum())} of {array.size}")


def names_of(message: object) -> str:
    return ", ".join(name for name, value in vars(message).items() if value is not None)


def short(numbers: Sequence[int]) -> str:
    return f"{list(numbers[:8])}{'...' if len(numbers) > 8 else ''}"


def unsound(what: str, got: Any, allowed: str | None = None, *, code: str = "unprocessable") -> WireError:
    hint = "send fewer rows in a request, or raise the service's limits" if code == "too_large" else None
    return WireError(what, got=got, allowed=allowed, hint=hint or "docs/service.md describes every message", code=code)
