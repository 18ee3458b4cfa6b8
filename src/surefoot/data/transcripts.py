"""What a reward model reads for a prompt and an answer: a text, or messages; and transcripts told apart. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.data.parsing import RowFault
from surefoot.models.messages import messages_fault, plain_messages, text_fault

Text = str | tuple[Mapping[str, Any], ...]
"""A text, or a conversation."""

_TURN = re.compile(r"\n\n(Human|Assistant):")
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}


def conversation(prompt: Text | None, value: Any, name: str, *, prompt_alone: bool = False) -> Text:
    """Prompt and answer as one: texts are put together, messages lined up.

    Args:
        prompt: a text, messages, or None when the value holds it already.
        value: the answer: a text, or messages of which the assistant's are the last.
        name: of its column.
        prompt_alone: the value is a prompt by itself.
    Raises:
        RowFault: it is neither, or cannot be read.
    """
    if isinstance(value, str):
        answer = as_text(value, name)
        if prompt_alone and not answer.strip():
            raise RowFault(f"{name}: is empty")
        if isinstance(prompt, tuple):
            return (*prompt, {"role": "assistant", "content": answer})
        return (prompt or "") + answer
    fault = messages_fault(value, prompt=prompt_alone)
    if fault is None and not prompt_alone and value[-1]["role"] != "assistant":
        fault = f"the last message must be the assistant's, not the {value[-1]['role']}'s"
    if fault is not None:
        raise RowFault(f"{name}: {fault}" if value is not None else f"no column {name!r}")
    said = tuple(plain_messages(value))
    if prompt is None:
        return said
    before = prompt if isinstance(prompt, tuple) else ({"role": "user", "content": prompt},)
    return said if _spoken(said[: len(before)]) == _spoken(before) else (*before, *said)


def as_text(value: Any, name: str) -> str:
    """A text that can be read, maybe an empty one.

    Raises:
        RowFault: it is none.
    """
    if value is None:
        raise RowFault(f"no column {name!r}")
    if not isinstance(value, str):
        raise RowFault(f"{name}: must be a text, not {type(value).__name__}")
    fault = text_fault(value)
    if fault is not None:
        raise RowFault(f"{name}: {fault}")
    return value


def transcript(text: str) -> tuple[Mapping[str, Any], ...] | None:
    """Messages of a transcript in Anthropic's form, None when it is none.

    A blank after each colon and blanks at the end of a turn are not part of what was said.
    """
    parts = _TURN.split(text if text.startswith("\n\n") else f"\n\n{text.lstrip()}")
    if parts[0].strip() or len(parts) < 5 or parts[1] != "Human" or parts[-2] != "Assistant":
        return None
    turns = zip(parts[1::2], parts[2::2], strict=True)
    messages = tuple({"role": _SPEAKERS[who], "content": said.removeprefix(" ").rstrip()} for who, said in turns)
    return messages if messages_fault(messages, prompt=False) is None else None


def common_prompt(chosen: Text, rejected: Text) -> Text:
    """What both begin with: whole messages; of texts what comes before the last answer, or all that is the same."""
    if not isinstance(chosen, str) and not isinstance(rejected, str):
        one, other = _spoken(chosen), _spoken(rejected)
        same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return chosen[:same]
    assert isinstance(chosen, str) and isinstance(rejected, str)
    before = [text.rpartition("\n\nAssistant:")[0] for text in (chosen, rejected)]
    if before[0] and before[0] == before[1]:
        return before[0]
    differ = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    return chosen[:differ] if differ is not None else min(chosen, rejected, key=len)


def _spoken(messages: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    return [(message["role"], message["content"]) for message in messages]
