"""Nested values under dotted keys. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flat(tree: Mapping[str, Any] | Sequence[Any], prefix: str = "") -> dict[str, Any]:
    """Every value under its dotted key; entries of lists under their number."""
    out: dict[str, Any] = {}
    for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        if isinstance(value, (Mapping, list)) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out
