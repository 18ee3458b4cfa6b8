"""What a chat prompt may hold: the rules that the prompt files and the chat template's encoder share. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

ROLES: Final = ("system", "developer", "user", "assistant", "tool")

Messages = Sequence[Mapping[str, Any]]


def text_fault(text: str) -> str | None:
    """Why a text can go into no prompt, None when it can. Such text comes from files read in the wrong encoding."""
    if "\x00" in text:
        return f"holds a NUL character (character {text.index(chr(0)) + 1})"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"holds half of a surrogate pair (character {error.start + 1})"
    return None


def messages_fault(messages: Any, *, prompt: bool = True) -> str | None:
    """Why messages cannot be used, None when they can.

    Args:
        messages: what stands where a list of ``{"role": ..., "content": ...}`` should.
        prompt: they are a prompt, so a user speaks and the assistant does not have the last word.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        return f"messages must be a list, not {type(messages).__name__}"
    if not messages:
        return "the list of messages is empty"
    for number, message in enumerate(messages, start=1):
        fault = _message_fault(message)
        if fault is not None:
            return f"message {number}: {fault}"
    return _prompt_fault([str(message["role"]) for message in messages]) if prompt else None


def _message_fault(message: Any) -> str | None:
    if not isinstance(message, Mapping):
        return f"must be an object with role and content, not {type(message).__name__}"
    missing = [key for key in ("role", "content") if message.get(key) is None]
    if missing:
        return f"no {' and no '.join(missing)} (it has: {', '.join(map(str, message)) or 'nothing'})"
    role, content = message["role"], message["content"]
    if role not in ROLES:
        return f"role {role!r} is none of {', '.join(ROLES)}"
    if not isinstance(content, str):
        return f"content must be text, not {type(content).__name__}"
    if role == "user" and not content.strip():
        return "the user's turn is empty"
    fault = text_fault(content)
    return None if fault is None else f"content {fault}"


def _prompt_fault(roles: Sequence[str]) -> str | None:
    if "user" not in roles:
        return "no user turn"
    if roles[-1] == "assistant":
        return "the last message is the assistant's, so nothing is left to answer: remove it"
    return None


def plain_messages(messages: Messages) -> list[dict[str, Any]]:
    """Messages as plain dicts, without the keys that columnar files fill up with nulls."""
    return [{str(key): value for key, value in message.items() if value is not None} for message in messages]
