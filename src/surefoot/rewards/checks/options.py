"""Options read and refused in words: an unknown one with the nearest known one. Torch-free."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


class Unreadable(Exception):
    """Options that cannot be used. The text names each fault."""


def read_options(model: type[M], given: Mapping[str, Any]) -> M:
    """Validate options.

    Raises:
        Unreadable: unknown options, values out of range; all of them at once.
    """
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        faults = dict.fromkeys(_worded(model, one) for one in error.errors())
        raise Unreadable("; ".join(faults)) from None


def option_names(model: type[BaseModel]) -> list[str]:
    """The options as a config writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def nearest(name: str, known: list[str]) -> str:
    """What to say of an unknown name: the one that was meant, or all there are."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _worded(model: type[BaseModel], error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    if error["type"] == "extra_forbidden":
        return f"unknown option {place!r}, {nearest(place, option_names(model))}"
    if error["type"] == "missing":
        return f"{place} is missing"
    if error["type"] == "value_error":
        return f"{place}: {message}" if place else message
    got = repr(error["input"])
    return f"{place}: {message}{f' (got {got})' if len(got) < 80 else ''}"
