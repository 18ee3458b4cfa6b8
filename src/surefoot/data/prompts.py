"""Rows to prompts as the policy sees them: rendered, encoded, and made to fit, once and for every part alike.

The one place where a prompt is cut. Rollout, trainer, reference, critic and reward all get the tokens made here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from surefoot.config.sections import DataSection
from surefoot.data.reading import Row
from surefoot.errors import DataError
from surefoot.records import Prompt

logger = logging.getLogger("surefoot")

SHOWN = 10


class PromptEncoder(Protocol):
    """What is needed of a tokenizer."""

    def encode_prompt(self, prompt: str | Sequence[Mapping[str, Any]], /) -> tuple[list[int], str]:
        """Token ids and text of a prompt as the policy sees it."""
        ...

    def decode(self, tokens: Sequence[int], /) -> str:
        """Text of ids; needed where prompts are cut."""
        ...


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of a run.

    Attributes:
        prompts: ready to be sampled from, in the order of the rows.
        dropped: ids of rows left out because they are too long.
        cut: ids of rows cut to fit.
        refused: ids of rows that could not be encoded, with the reason; empty unless bad rows are skipped.
    """

    prompts: tuple[Prompt, ...]
    dropped: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many rows came in and what became of them, and the longest prompt in tokens."""
        kept, dropped, refused = len(self.prompts), len(self.dropped), len(self.refused)
        return {
            "rows": kept + dropped + refused,
            "kept": kept,
            "dropped": dropped,
            "cut": len(self.cut),
            "refused": refused,
            "longest": max((len(p.tokens) for p in self.prompts), default=0),
        }


def prepare_prompts(
    rows: Sequence[Row], encoder: PromptEncoder, section: DataSection, *, context: int | None, max_new_tokens: int
) -> PromptSet:
    """Encode rows and apply the rule for long prompts.

    Args:
        rows: as read.
        encoder: a tokenizer's codec.
        section: ``max_prompt_tokens``, measured on the rendered prompt, ``overlong`` and ``bad_rows``.
        context: the longest sequence the model takes, None when it does not say.
        max_new_tokens: action tokens that must fit behind each prompt.
    Raises:
        DataError: a row cannot be encoded, is too long where that is refused, does not fit the model, or none is left.
        ModelError: there are chat messages and the model has no chat template.
    """
    prompts: list[Prompt] = []
    dropped: list[str] = []
    cut: list[str] = []
    refused: list[tuple[str, str]] = []
    hint: str | None = None
    lengths: dict[str, int] = {}
    for row in rows:
        try:
            ids, text = encoder.encode_prompt(row.prompt)
        except DataError as error:
            refused.append((row.id, str(error).removesuffix(f"; hint: {error.hint}")))
            hint = error.hint
            continue
        if len(ids) > section.max_prompt_tokens:
            lengths[row.id] = len(ids)
            if section.overlong in ("drop", "error"):
                dropped.append(row.id)
                continue
            ids = _cut(ids, section, getattr(encoder, "bos_id", None))
            text = encoder.decode(ids)
            cut.append(row.id)
        prompts.append(_prompt(row, ids, text))
    if refused and section.bad_rows == "error":
        raise DataError(f"{len(refused)} of {len(rows)} rows cannot be encoded: " + _shown_reasons(refused), hint=hint)
    if lengths and section.overlong == "error":
        raise _too_long(lengths, section)
    found = PromptSet(tuple(prompts), tuple(dropped), tuple(cut), tuple(refused))
    if not prompts:
        raise _nothing_left(found, lengths, section)
    _check_context(prompts, context, max_new_tokens)
    _report(found, section)
    return found


def _prompt(row: Row, ids: Sequence[int], text: str) -> Prompt:
    messages = None if isinstance(row.prompt, str) else tuple(row.prompt)
    return Prompt(id=row.id, tokens=tuple(ids), text=text, messages=messages, columns=row.columns)


def _cut(ids: list[int], section: DataSection, bos_id: int | None) -> list[int]:
    limit = section.max_prompt_tokens
    if section.overlong == "right":
        return ids[:limit]
    if bos_id is not None and ids[0] == bos_id and limit > 1:
        return [bos_id, *ids[len(ids) - limit + 1 :]]  # a model trained with a begin token needs it in every prompt
    return ids[-limit:]


def _too_long(lengths: Mapping[str, int], section: DataSection) -> DataError:
    shown = _shown([f"{row} ({length})" for row, length in lengths.items()])
    return DataError(
        f"{len(lengths)} prompts are longer than data.max_prompt_tokens",
        got=f"{shown} tokens",
        allowed=f"at most {section.max_prompt_tokens}",
        hint="raise data.max_prompt_tokens, or set data.overlong to drop, left or right",
    )


def _nothing_left(found: PromptSet, lengths: Mapping[str, int], section: DataSection) -> DataError:
    if lengths:
        return DataError(
            "every prompt is longer than data.max_prompt_tokens, none is left",
            got=f"{min(lengths.values())} tokens and more",
            allowed=f"at most {section.max_prompt_tokens}",
            hint="raise data.max_prompt_tokens, or set data.overlong: left",
        )
    if found.refused:
        return DataError("no row can be encoded: " + _shown_reasons(found.refused))
    return DataError("there are no prompts", got=0, allowed="at least 1", hint="check data.prompts")


def _check_context(prompts: Sequence[Prompt], context: int | None, max_new_tokens: int) -> None:
    if context is None:
        return
    over = [f"{p.id} ({len(p.tokens)})" for p in prompts if len(p.tokens) + max_new_tokens > context]
    if over:
        room = context - max_new_tokens
        raise DataError(
            f"{len(over)} prompts and {max_new_tokens} new tokens do not fit the model's context of {context} tokens",
            got=f"{_shown(over)} tokens",
            allowed=f"prompts of at most {room}" if room > 0 else f"rollout.max_new_tokens below {context}",
            hint=f"set data.max_prompt_tokens: {room}" if room > 0 else "lower rollout.max_new_tokens",
        )


def _report(found: PromptSet, section: DataSection) -> None:
    limit = section.max_prompt_tokens
    if found.dropped:
        shown = _shown(found.dropped)
        logger.warning("%d prompts of more than %d tokens dropped: %s", len(found.dropped), limit, shown)
    if found.cut:
        logger.warning("%d prompts cut to %d tokens: %s", len(found.cut), limit, _shown(found.cut))
        chats = {p.id for p in found.prompts if p.messages is not None}.intersection(found.cut)
        if chats:
            logger.warning("%d of them are chats: cutting breaks the form that the chat template gives", len(chats))
    if found.refused:
        logger.warning("%d rows cannot be encoded, skipped: %s", len(found.refused), _shown_reasons(found.refused))


def _shown(items: Sequence[str]) -> str:
    return ", ".join(items[:SHOWN]) + (f" and {len(items) - SHOWN} more" if len(items) > SHOWN else "")


def _shown_reasons(refused: Sequence[tuple[str, str]]) -> str:
    return _shown([f"{row}: {reason}" for row, reason in refused])
