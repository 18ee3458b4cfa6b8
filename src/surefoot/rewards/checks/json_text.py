"""JSON found in a response and read strictly: what is no JSON says why. Torch-free."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final, Literal

from surefoot.rewards.checks.check import shown
from surefoot.rewards.checks.extracting import fenced

Where = Literal["auto", "whole", "first_fence", "last_fence", "embedded"]
TRIES: Final = 100
"""Places at most at which embedded JSON is looked for."""
OPENING: Final = re.compile(r"[{\[]")
LARGEST_DIGITS: Final = 4000


class NoJson(Exception):
    """There is no JSON where it should be. The text says why."""


def find_json(response: str, where: Where) -> Any:
    """Read the JSON of a response.

    Args:
        response: anything.
        where: ``whole``: nothing but JSON; ``first_fence``, ``last_fence``: in that fenced block; ``embedded``: the
            first object or list that can be read, whatever stands around it; ``auto``: the whole, else the only block.
    Raises:
        NoJson: with the reason; several blocks with ``auto`` are one.
    """
    text = response.strip()
    if not text:
        raise NoJson("the response is empty")
    if where == "embedded":
        return _embedded(text)
    if where == "whole":
        return read_json(text)
    blocks = fenced(text)
    if where == "auto" and not blocks:
        return read_json(text)
    if not blocks:
        raise NoJson("there is no fenced block")
    if where == "auto" and len(blocks) > 1:
        raise NoJson(f"{len(blocks)} fenced blocks, and nothing says which one is meant")
    return read_json(blocks[0 if where == "first_fence" else -1].strip())


def read_json(text: str) -> Any:
    """Strict JSON: no NaN, no key twice, nothing behind it.

    Raises:
        NoJson: it is none.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NoJson(
            f"no JSON: {error.msg} at line {error.lineno}, {shown(text[error.pos : error.pos + 80])}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise NoJson(_reason(error)) from None


def _embedded(text: str) -> Any:
    place = 0
    for _ in range(TRIES):
        opening = OPENING.search(text, place)
        if opening is None:
            break
        place = opening.start()
        try:
            return _DECODER.raw_decode(text, place)[0]
        except json.JSONDecodeError:
            place += 1
        except (ValueError, RecursionError) as error:
            raise NoJson(_reason(error)) from None
    raise NoJson("no object and no list that can be read")


def _reason(error: Exception) -> str:
    return "no JSON: nested too deeply" if isinstance(error, RecursionError) else f"no JSON: {error}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {shown(twice)} stands twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > LARGEST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return value


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
