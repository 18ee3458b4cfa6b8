"""Demonstrations: rows to what is shown to the model, and to tokens with the ones that are trained. Torch-free.

The one place where a demonstration is dropped or cut; each is counted and named.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from surefoot.config import SFTSection
from surefoot.data.parsing import Parsed, RowFault, listed, parse_rows
from surefoot.errors import DataError
from surefoot.models.answers import Answers
from surefoot.models.messages import Messages, messages_fault, plain_messages, text_fault
from surefoot.records import BoolArray, IntArray

logger = logging.getLogger("surefoot")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One row: a chat, a prompt that is a text with its completion, or a text alone.

    Attributes:
        id: ``FILE:LINE``.
        messages: of a chat, else None.
        prompt: the prompt that is a text, None for a chat or a text alone.
        text: the completion, or the text alone; empty for a chat.
    """

    id: str
    messages: tuple[Mapping[str, Any], ...] | None = None
    prompt: str | None = None
    text: str = ""

    @property
    def prompt_key(self) -> str:
        """sha256 of the prompt: what comes before the last answer; of the whole text where there is none."""
        if self.messages is not None:
            last = max(i for i, m in enumerate(self.messages) if m["role"] == "assistant")
            return prompt_key(self.messages[:last])
        return prompt_key(self.text if self.prompt is None else self.prompt)


def prompt_key(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """sha256 of a prompt: a text, or messages by role and content."""
    said = prompt if isinstance(prompt, str) else [[m.get("role"), m.get("content")] for m in prompt]
    return hashlib.sha256(json.dumps(said, ensure_ascii=True).encode()).hexdigest()


def read_demonstrations(source: str, section: SFTSection) -> Parsed[Demonstration]:
    """Read demonstrations.

    Raises:
        DataError: nothing is there, no row is usable, or some are not and ``sft.bad_rows`` does not skip them.
    """
    return parse_rows(source, lambda at, row: _parsed(at, row, section), bad_rows=section.bad_rows, section="sft")


def _parsed(at: str, row: Mapping[str, Any], section: SFTSection) -> Demonstration:
    messages, prompt, completion, text = (
        row.get(name)
        for name in (section.messages_column, section.prompt_column, section.completion_column, section.text_column)
    )
    if messages is not None:
        return Demonstration(at, messages=_chat(messages, section.messages_column))
    if prompt is not None and completion is not None:
        return _pair(at, prompt, completion, section)
    if prompt is None and completion is None and text is not None:
        return Demonstration(at, text=_text(text, section.text_column))
    wanted = (
        f"{section.messages_column!r}, {section.prompt_column!r} with {section.completion_column!r}, "
        f"or {section.text_column!r}"
    )
    raise RowFault(f"no demonstration in it: it needs {wanted} (columns: {', '.join(list(row)[:12]) or 'none'})")


def _pair(at: str, prompt: Any, completion: Any, section: SFTSection) -> Demonstration:
    """A prompt with its completion; either may be a text or chat messages."""
    if isinstance(prompt, str) and isinstance(completion, str):
        _text(completion, section.completion_column)
        fault = text_fault(prompt)
        if fault is not None:
            raise RowFault(f"{section.prompt_column}: {fault}")
        return Demonstration(at, prompt=prompt, text=completion)
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    for name, part in ((section.prompt_column, before), (section.completion_column, after)):
        fault = messages_fault(part, prompt=False)
        if fault is not None:
            raise RowFault(f"{name}: {fault}")
    return Demonstration(at, messages=_chat([*before, *after], section.completion_column))


def _chat(messages: Any, column: str) -> tuple[Mapping[str, Any], ...]:
    fault = messages_fault(messages, prompt=False)
    if fault is None and all(m["role"] != "assistant" for m in messages):
        fault = "no turn of the assistant's, so there is nothing to train"
    if fault is not None:
        raise RowFault(f"{column}: {fault}")
    return tuple(plain_messages(messages))


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise RowFault(f"{column}: must be a text, not {type(value).__name__}")
    fault = text_fault(value) if value.strip() else "is empty"
    if fault is not None:
        raise RowFault(f"{column}: {fault}")
    return value


# ------------------------------------------------------------------------------------------------------ to tokens


class DemonstrationEncoder(Protocol):
    """What is needed of :class:`surefoot.models.answers.AnswerEncoder`."""

    def dialogue(self, messages: Messages, /) -> Answers:
        """Tokens of a chat, and which are trained."""
        ...

    def completion(self, prompt: str, completion: str, /) -> Answers:
        """The same of a text that follows another."""
        ...

    def whole(self, text: str, /) -> Answers:
        """The same of a text alone."""
        ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A demonstration as tokens.

    Attributes:
        id: of its row.
        tokens: int64 ``[T]``.
        mask: bool ``[T]``, True on tokens that are trained.
        prompt_key: of its prompt.
    """

    id: str
    tokens: IntArray
    mask: BoolArray
    prompt_key: str


@dataclass(frozen=True, slots=True)
class DemonstrationSet:
    """Demonstrations, ready to be trained on.

    Attributes:
        rows: in the order of the file.
        dropped, cut: ids of rows left out, or cut, because they are too long.
        refused: ids of rows that could not be encoded, with the reason; empty unless bad rows are skipped.
        ends: ids that close the assistant's turns.
    """

    rows: tuple[Encoded, ...]
    dropped: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    ends: frozenset[int] = frozenset()

    @property
    def counts(self) -> dict[str, int]:
        """What became of the rows, and tokens of those that are left."""
        return {
            "kept": len(self.rows),
            "dropped": len(self.dropped),
            "cut": len(self.cut),
            "refused": len(self.refused),
            "tokens": sum(len(row.tokens) for row in self.rows),
            "trained_tokens": sum(int(row.mask.sum()) for row in self.rows),
            "longest": max((len(row.tokens) for row in self.rows), default=0),
        }


def prepare_demonstrations(
    rows: Sequence[Demonstration], encoder: DemonstrationEncoder, section: SFTSection, *, limit: int | None
) -> DemonstrationSet:
    """Encode demonstrations and apply the rule for long ones.

    Args:
        rows: as read.
        encoder: of the model's tokenizer.
        section: ``overlong`` and ``bad_rows``.
        limit: longest row in tokens; None: any.
    Raises:
        DataError: a row cannot be encoded, is too long where that is refused, or none is left.
        ModelError: there are chats and the model has no chat template.
    """
    kept: list[Encoded] = []
    dropped: list[str] = []
    cut: list[str] = []
    refused: list[tuple[str, str]] = []
    ends: set[int] = set()
    for row in rows:
        try:
            found = _encode(row, encoder)
        except DataError as error:
            refused.append((row.id, str(error)))
            continue
        ids, mask = found.ids, found.mask
        if limit is not None and len(ids) > limit:
            if section.overlong == "cut" and any(mask[:limit]):
                ids, mask = ids[:limit], mask[:limit]
                cut.append(row.id)
            else:
                dropped.append(f"{row.id} ({len(ids)})")
                continue
        ends |= found.ends
        kept.append(Encoded(row.id, np.array(ids, dtype=np.int64), np.array(mask, dtype=np.bool_), row.prompt_key))
    _refuse(rows, kept, dropped, refused, section, limit)
    if dropped:
        logger.warning("%d demonstrations of more than %s tokens dropped: %s", len(dropped), limit, listed(dropped))
    if cut:
        logger.warning(
            "%d demonstrations cut to %s tokens, the ends of their answers with it: %s", len(cut), limit, listed(cut)
        )
    return DemonstrationSet(tuple(kept), tuple(dropped), tuple(cut), tuple(refused), frozenset(ends))


def _encode(row: Demonstration, encoder: DemonstrationEncoder) -> Answers:
    if row.messages is not None:
        return encoder.dialogue(row.messages)
    return encoder.whole(row.text) if row.prompt is None else encoder.completion(row.prompt, row.text)


def _refuse(
    rows: Sequence[Demonstration],
    kept: Sequence[Encoded],
    dropped: Sequence[str],
    refused: Sequence[tuple[str, str]],
    section: SFTSection,
    limit: int | None,
) -> None:
    reasons = listed([f"{row}: {reason}" for row, reason in refused], most=5)
    if refused and (section.bad_rows == "error" or not kept):
        hint = "correct them, or set sft.bad_rows: skip" if kept else "correct them"
        raise DataError(f"{len(refused)} of {len(rows)} demonstrations cannot be encoded: {reasons}", hint=hint)
    if dropped and (section.overlong == "error" or not kept):
        raise DataError(
            f"{len(dropped)} of {len(rows)} demonstrations are longer than {limit} tokens",
            got=listed(list(dropped)),
            hint="raise sft.max_tokens as far as the model's context allows, or set sft.overlong: cut",
        )
    if refused:
        logger.warning("%d demonstrations cannot be encoded, skipped: %s", len(refused), reasons)
