"""A row of any kind (prompt, demonstration, preference pair) as its texts, each with who speaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from surefoot.data.transcripts import transcript
from surefoot.models.messages import ROLES

RowKind = Literal["prompt", "demonstration", "preference", "unknown"]

RESPONSE_COLUMNS: Final = ("completion", "response")
CHAT_COLUMNS: Final = ("messages", "conversation")
PAIR: Final = ("chosen", "rejected")
SEVERAL: Final = "responses"
TEXT: Final = "text"


@dataclass(frozen=True, slots=True)
class Passage:
    """One text of a row.

    Attributes:
        role: ``system``, ``developer``, ``user``, ``assistant``, ``tool``; ``prompt`` for a prompt that is a string;
            ``response`` for what is trained on; ``column`` for any other text of the row.
        place: where in the row, as ``messages[2]``.
        text: the text.
        chat: it is the content of a chat message, which goes through a template.
    """

    role: str
    place: str
    text: str
    chat: bool = False


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A row with its place.

    Attributes:
        file, line: where it stands.
        kind: what it is for.
        passages: every text in it, each once.
        given: the prompt as one text, system turns left out.
        answers: what is trained on: none, one response or several, or chosen and rejected.
        label: value of the label column, None where there is none.
    """

    file: str
    line: int
    kind: RowKind
    passages: tuple[Passage, ...]
    given: str
    answers: tuple[str, ...]
    label: Any = None


@dataclass(frozen=True, slots=True)
class _Side:
    """A prompt with an answer, or either alone."""

    given: tuple[Passage, ...]
    answer: str | None


def read_row(file: str, line: int, value: Mapping[str, Any], *, column: str, label: str | None = None) -> AuditRow:
    """A raw row's texts.

    Args:
        file, line: where it stands.
        value: its columns.
        column: the prompt's column.
        label: a column with a label, if there is one.
    """
    kind, used, sides = _sides(value, column)
    passages: dict[tuple[str, str], Passage] = {}
    for side_name, side in sides.items():
        answer = [] if side.answer is None else [Passage("response", side_name, side.answer, _is_chat(side.given))]
        for passage in (*side.given, *answer):
            passages.setdefault((passage.role, passage.text), passage)
    others = [p for key, item in value.items() if key not in used for p in _other_texts(item, key)]
    given = "\n".join(p.text for p in next(iter(sides.values())).given if p.role not in ("system", "developer"))
    answers = tuple(side.answer for side in sides.values() if side.answer is not None)
    found = (*passages.values(), *others)
    return AuditRow(file, line, kind, found, given, answers, None if label is None else value.get(label))


def _sides(value: Mapping[str, Any], column: str) -> tuple[RowKind, set[str], dict[str, _Side]]:
    """What the row is for, the columns that say it, and prompt with answer for each of its sides."""
    given = _given(value.get(column), column) if value.get(column) is not None else ()
    prompt = {column} if given else set()
    if all(name in value for name in PAIR):
        return "preference", {*PAIR, *prompt}, {name: _side(value[name], name, given) for name in PAIR}
    if isinstance(value.get(SEVERAL), list):
        several = {f"{SEVERAL}[{i}]": _side(one, SEVERAL, given) for i, one in enumerate(value[SEVERAL])}
        return "demonstration", {SEVERAL, *prompt}, several or {SEVERAL: _Side(given, None)}
    response = next((name for name in RESPONSE_COLUMNS if value.get(name) is not None), None)
    if given and response:
        return "demonstration", {response, *prompt}, {response: _side(value[response], response, given)}
    chat = next((name for name in CHAT_COLUMNS if _is_messages(value.get(name))), None)
    if chat:
        side = _split(tuple(_messages(value[chat], chat)))
        return ("prompt" if side.answer is None else "demonstration"), {chat}, {f"{chat}[-1]": side}
    if given:
        return "prompt", prompt, {column: _Side(given, None)}
    if isinstance(value.get(TEXT), str):
        return "demonstration", {TEXT}, {TEXT: _side(value[TEXT], TEXT, ())}
    return "unknown", set(), {column: _Side((), None)}


def _side(answer: Any, name: str, given: tuple[Passage, ...]) -> _Side:
    """A prompt with an answer that is a text, a transcript, or messages with or without the prompt's."""
    turns = transcript(answer) if isinstance(answer, str) else answer if _is_messages(answer) else None
    if turns is None:
        return _Side(given, answer if isinstance(answer, str) else "")
    side = _split(tuple(_messages(turns, name)))
    return _Side((*given, *side.given), side.answer or "")


def _split(turns: tuple[Passage, ...]) -> _Side:
    """What was given, and the assistant's last word where it has it."""
    if turns and turns[-1].role == "assistant":
        return _Side(turns[:-1], turns[-1].text)
    return _Side(turns, None)


def _given(value: Any, column: str) -> tuple[Passage, ...]:
    if _is_messages(value):
        return tuple(_messages(value, column))
    return (Passage("prompt", column, value if isinstance(value, str) else ""),)


def _is_messages(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and bool(value) and _like_one(value[0])


def _like_one(message: Any) -> bool:
    return isinstance(message, Mapping) and "role" in message


def _messages(value: Sequence[Any], place: str) -> Iterator[Passage]:
    for number, message in enumerate(value):
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        text = content if isinstance(content, str) else ""
        yield Passage(role if role in ROLES else "user", f"{place}[{number}]", text, chat=True)


def _is_chat(given: Sequence[Passage]) -> bool:
    return any(passage.chat for passage in given)


def _other_texts(value: Any, place: str) -> Iterator[Passage]:
    """Texts anywhere inside another column."""
    if isinstance(value, str):
        yield Passage("column", place, value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _other_texts(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _other_texts(item, f"{place}[{number}]")
