"""Checks of the prompts: what is wrong here is wrong in every step of a run. No weights are loaded."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from surefoot.assembly.mistakes import lacks_held_out
from surefoot.assembly.preflight_tokenizer import check_settings, check_tokenizer
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config
from surefoot.data.cards import check_cards
from surefoot.data.prompts import PromptSet, prepare_prompts
from surefoot.data.reading import Row, RowSet, read_rows
from surefoot.models.load import context_length
from surefoot.models.tokenizer import TextCodec

CHECKED_ROWS: Final = 4000
"""Rows that are encoded: a chat prompt takes about a millisecond, and a check has seconds."""


@dataclass(frozen=True)
class Text:
    """What the prompts turned out to be.

    Attributes:
        rows: all rows as read.
        prompts: the encoded ones; every row up to CHECKED_ROWS, else as many spread over all of them.
        held_out: the same of ``evaluate.prompts``, or None.
    """

    rows: RowSet
    prompts: PromptSet
    held_out: PromptSet | None


def check_text(config: Config, codec: TextCodec, model_config: Any, verdicts: Verdicts) -> Text | None:
    """Check tokenizer and prompts; None when there is no prompt to sample from."""
    assert config.data.prompts is not None
    check_settings(codec, int(model_config.get_text_config().vocab_size), verdicts)
    _check_cards(config, verdicts)
    rows = verdicts.attempt("prompts/rows", lambda: _read(config, str(config.data.prompts)))
    context = context_length(model_config)
    new = config.rollout.max_new_tokens
    prompts = None
    if rows is not None:
        prompts = verdicts.attempt(
            "prompts/rows",
            lambda: prepare_prompts(_spread(rows.rows), codec, config.data, context=context, max_new_tokens=new),
        )
    if rows is not None and prompts is not None:
        _check_rows(config, rows, prompts, verdicts)
        _check_lengths(prompts, context, new, verdicts)
        _check_duplicates(rows, verdicts)
        check_tokenizer(config, codec, rows, prompts, verdicts)
    held_out = _check_held_out(config, codec, context, rows, verdicts)
    return None if rows is None or prompts is None else Text(rows, prompts, held_out)


def _check_cards(config: Config, verdicts: Verdicts) -> None:
    data = config.data
    cards = verdicts.attempt(
        "prompts/cards",
        lambda: check_cards([data.prompts, config.evaluate.prompts], data.allow, require=data.require_card),
    )
    if cards:
        said = ", ".join(f"{c.name} {c.version}: {c.privacy}, {c.approval.status}" for c in cards)
        verdicts.ok("prompts/cards", f"data cards: {said}")
    elif cards is not None:
        verdicts.ok("prompts/cards", "the data has no card")


def _read(config: Config, source: str) -> RowSet:
    return read_rows(source, column=config.data.column, bad_rows=config.data.bad_rows)


def _spread(rows: Sequence[Row]) -> Sequence[Row]:
    step = -(-len(rows) // CHECKED_ROWS)
    return rows[::step] if step > 1 else rows


def _check_rows(config: Config, rows: RowSet, prompts: PromptSet, verdicts: Verdicts) -> None:
    counts = prompts.counts
    lost = counts["dropped"] + counts["cut"] + counts["refused"] + len(rows.skipped)
    encoded = "" if counts["rows"] == rows.kept else f" (of {rows.kept}; these were encoded, spread over all)"
    what = f"{counts['kept']} of {counts['rows']} rows can be used{encoded}"
    evidence = {**counts, "read": rows.read, "skipped": len(rows.skipped)}
    if lost:
        parts = {
            "dropped as too long": counts["dropped"],
            "cut": counts["cut"],
            "not encodable": counts["refused"],
            "bad rows": len(rows.skipped),
        }
        detail = ", ".join(f"{n} {part}" for part, n in parts.items() if n)
        verdicts.warn(
            "prompts/rows", f"{what}; {detail}", "see data.max_prompt_tokens, data.overlong, data.bad_rows", **evidence
        )
    else:
        verdicts.ok("prompts/rows", what, **evidence)
    step = config.rollout.prompts_per_step
    if rows.kept < step:
        verdicts.warn(
            "prompts/step",
            f"a step asks for {step} prompts and there are {rows.kept}: each step uses all of them, and no more",
            "lower rollout.prompts_per_step, or raise rollout.samples_per_prompt",
        )
    else:
        epochs = (config.run.steps or 0) * step / rows.kept
        verdicts.ok("prompts/step", f"{step} a step; the run goes through them {epochs:.2g} times", epochs=epochs)


def _check_lengths(prompts: PromptSet, context: int | None, new: int, verdicts: Verdicts) -> None:
    lengths = [len(p.tokens) for p in prompts.prompts]
    longest = max(lengths)
    room = f"of {context} tokens the model takes" if context is not None else "and the model names no limit"
    verdicts.ok(
        "prompts/length",
        f"{min(lengths)} to {longest} tokens, median {statistics.median(lengths):g};"
        f" the longest and {new} new ones make {longest + new} {room}",
        shortest=min(lengths),
        median=statistics.median(lengths),
        longest=longest,
        context=context,
    )


def _check_duplicates(rows: RowSet, verdicts: Verdicts) -> None:
    counts = Counter(_said(row) for row in rows.rows)
    repeated = rows.kept - len(counts)
    if repeated:
        often, times = counts.most_common(1)[0]
        verdicts.warn(
            "prompts/duplicates",
            f"{repeated} of {rows.kept} prompts repeat another one, one of them {times} times: {often[:60]!r}",
            "remove them, unless some prompts are to count more",
            repeated=repeated,
        )
    else:
        verdicts.ok("prompts/duplicates", "no prompt stands twice")


def _said(row: Row) -> str:
    """What a prompt says, capitals and blanks aside."""
    text = row.prompt if isinstance(row.prompt, str) else "\n".join(str(m["content"]) for m in row.prompt)
    return " ".join(text.casefold().split())


def _check_held_out(
    config: Config, codec: TextCodec, context: int | None, rows: RowSet | None, verdicts: Verdicts
) -> PromptSet | None:
    """The seventh common mistake, and whether held-out prompts can be used."""
    source = config.evaluate.prompts
    if source is None:
        return None
    held_rows = verdicts.attempt("prompts/held_out", lambda: _read(config, source))
    if held_rows is None:
        return None
    new = config.evaluate.max_new_tokens or config.rollout.max_new_tokens
    used = held_rows.rows[: config.evaluate.max_prompts]
    held = verdicts.attempt(
        "prompts/held_out",
        lambda: prepare_prompts(_spread(used), codec, config.data, context=context, max_new_tokens=new),
    )
    if held is not None:
        verdicts.ok("prompts/held_out", f"{len(used)} held-out prompts, {held.counts['longest']} tokens at most")
    if rows is not None and not lacks_held_out(config):
        _check_overlap({_said(r) for r in rows.rows}, [_said(r) for r in used], verdicts)
    return held


def _check_overlap(trained: set[str], held_out: Sequence[str], verdicts: Verdicts) -> None:
    shared = [text for text in held_out if text in trained]
    if shared:
        verdicts.warn(
            "mistakes/held_out",
            f"{len(shared)} of {len(held_out)} held-out prompts are training prompts as well: {shared[0][:60]!r}",
            "take them out of one of the two: a score on trained prompts says little",
            shared=len(shared),
            held_out=len(held_out),
        )
    else:
        verdicts.ok("mistakes/held_out", f"none of the {len(held_out)} held-out prompts is trained on")
