"""What the functions of this package do on entry: check shapes, masks and numbers, and widen to float32 at least.

Broadcasting is refused on purpose: ``[B, 1]`` against ``[B, T]`` would give a plausible and wrong number.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from surefoot.errors import ConfigError, DataError

LOG_RATIO_LIMIT: Final = 20.0
"""Log ratios are clamped to ±this before they are exponentiated (e²⁰ ≈ 4.9e8)."""


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors in one dtype: the widest among them, and float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def check_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors that differ in shape from the first.

    Raises:
        DataError: two shapes differ.
    """
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != reference.shape:
            raise DataError(
                f"{name} and {first} must have the same shape", got=tuple(tensor.shape), allowed=tuple(reference.shape)
            )


def check_mask(mask: Tensor, **tensors: Tensor) -> None:
    """Refuse a mask that is not boolean, not ``[B, T]``, or not of the tensors' shape.

    Raises:
        DataError: the mask cannot be used with these tensors.
    """
    if mask.dtype is not torch.bool:
        raise DataError("a mask must be boolean", got=str(mask.dtype), hint="mask.bool(), True on action tokens")
    if mask.ndim != 2:
        raise DataError("a mask must be [B, T]", got=tuple(mask.shape))
    check_same_shape(mask=mask, **tensors)


def check_rows(name: str, tensor: Tensor, mask: Tensor) -> None:
    """Refuse a tensor that does not hold one number a row of the mask.

    Raises:
        DataError: the shape is not ``[B]``.
    """
    if tensor.shape != mask.shape[:1]:
        raise DataError(f"{name} must hold one number a row", got=tuple(tensor.shape), allowed=tuple(mask.shape[:1]))


def check_number(name: str, value: float, *, low: float, high: float = math.inf, open_low: bool = False) -> None:
    """Refuse a number outside ``[low, high]`` (``(low, high]`` with ``open_low``), NaN and infinity.

    Raises:
        ConfigError: the number lies outside.
    """
    inside = low < value <= high if open_low else low <= value <= high
    if not (inside and math.isfinite(value)):
        lower = f"more than {low:g}" if open_low else f"at least {low:g}"
        upper = "finite" if math.isinf(high) else f"at most {high:g}"
        raise ConfigError(f"{name} is out of range", got=value, allowed=f"{lower}, {upper}")


def check_clip(clip_low: float, clip_high: float) -> None:
    """Refuse a ratio interval ``[1 − clip_low, 1 + clip_high]`` that does not hold 1 or reaches below 0.

    Raises:
        ConfigError: one of the two is out of range.
    """
    check_number("clip_low", clip_low, low=0.0, high=1.0)
    check_number("clip_high", clip_high, low=0.0)
