"""The sources that a response may rest on, read from a column. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from surefoot.rewards.checks.check import Answer, CannotJudge
from surefoot.rewards.checks.segments import words

IDS: Final = ("id", "number", "key")
TEXTS: Final = ("text", "content", "passage", "document")
PROMPT: Final = "prompt"
"""As the name of a column: the prompt itself is the source."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text with the name it is cited by."""

    id: str
    text: str


def read_sources(answer: Answer, column: str) -> list[Source]:
    """The row's sources.

    Understood are a text, a list of texts (cited by their number from 1), a list of objects with ``id`` (or ``number``,
    ``key``; their number from 1 when there is none) and ``text`` (or ``content``, ``passage``, ``document``) and
    perhaps ``title``, and an object from id to text.

    Raises:
        CannotJudge: there are none, or they cannot be read.
    """
    value = answer.prompt if column == PROMPT and PROMPT not in answer.columns else answer.column(column)
    if isinstance(value, Mapping) and not any(key in value for key in TEXTS):
        entries: Sequence[Any] = [{"id": key, "text": text} for key, text in value.items()]
    else:
        entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        raise CannotJudge(f"column {column!r} holds no sources")
    return [_source(number, entry, column) for number, entry in enumerate(entries, start=1)]


def _source(number: int, entry: Any, column: str) -> Source:
    if isinstance(entry, str):
        return Source(str(number), entry)
    if isinstance(entry, Mapping):
        text = next((entry[key] for key in TEXTS if isinstance(entry.get(key), str)), None)
        name = next((entry[key] for key in IDS if isinstance(entry.get(key), str | int)), number)
        title = entry.get("title")
        if text is not None:
            return Source(str(name), f"{title}\n{text}" if isinstance(title, str) else text)
    raise CannotJudge(f"source {number} in column {column!r} is no text and no object with one of {', '.join(TEXTS)}")


@lru_cache(maxsize=256)
def flat(text: str) -> str:
    """The words of a text in lower case, one space between, before and behind: what a quotation is looked up in."""
    return f" {' '.join(words(text.casefold()))} "
