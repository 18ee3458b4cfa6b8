"""Checks of the tokenizer on the run's own prompts: where they begin, where responses end, what was typed into them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config
from surefoot.data.prompts import PromptSet
from surefoot.data.reading import RowSet
from surefoot.errors import SurefootError
from surefoot.models.tokenizer import TextCodec

SHOWN: Final = 3


def check_tokenizer(config: Config, codec: TextCodec, rows: RowSet, prompts: PromptSet, verdicts: Verdicts) -> None:
    """Everything that can be said of a tokenizer once there are prompts."""
    _check_begin(codec, prompts, verdicts)
    _check_form(codec, prompts, verdicts)
    _check_typed(codec, rows, verdicts)
    _check_closing(config, codec, prompts, verdicts)


def check_settings(codec: TextCodec, embedding_rows: int, verdicts: Verdicts) -> None:
    """Vocabulary and generation settings of the model folder; needs no prompts."""
    plan = verdicts.attempt("tokenizer/vocabulary", lambda: codec.check_vocabulary(embedding_rows))
    if plan is None:
        pass
    elif plan.grow:
        verdicts.warn(
            "tokenizer/vocabulary",
            f"the tokenizer has ids up to {plan.rows_needed - 1}, the model {plan.embedding_rows} rows: rows are added",
            "if no token was added on purpose, the tokenizer is another model's",
        )
    else:
        banned = f"; {len(plan.banned_ids)} rows without a token are never sampled" if plan.banned_ids else ""
        verdicts.ok("tokenizer/vocabulary", f"every one of {len(codec.token_ids)} tokens has a row{banned}")
    if codec.ignored_generation_settings:
        shown = ", ".join(f"{key}: {value}" for key, value in sorted(codec.ignored_generation_settings.items()))
        verdicts.note(
            "tokenizer/generation_config",
            f"not followed, in training nor in evaluation: {shown}",
            "the run samples as rollout and evaluate say; whoever serves the model may follow the file",
            settings=dict(codec.ignored_generation_settings),
        )
    else:
        verdicts.ok("tokenizer/generation_config", "the model folder asks for no sampling settings")


def _check_begin(codec: TextCodec, prompts: PromptSet, verdicts: Verdicts) -> None:
    """One begin-of-sequence token at the start of each prompt, where the tokenizer or the template writes one."""
    bos, name = codec.bos_id, "tokenizer/begin"
    if bos is None:
        verdicts.ok(name, "the tokenizer has no begin-of-sequence token")
        return
    counts = Counter(prompt.tokens.count(bos) for prompt in prompts.prompts)
    spelled = codec.decode([bos])
    begun = sum(prompt.tokens[0] == bos for prompt in prompts.prompts)
    doubled = [p.id for p in prompts.prompts if len(p.tokens) > 1 and p.tokens[0] == p.tokens[1] == bos]
    total = len(prompts.prompts)
    evidence = {"begun": begun, "prompts": total}
    if doubled:
        verdicts.problem(
            name, f"{len(doubled)} prompts begin with {spelled} twice", "report this as a bug", rows=doubled[:SHOWN]
        )
    elif 0 < begun < total:
        verdicts.warn(
            name,
            f"only {begun} of {total} prompts begin with {spelled}",
            "write all prompts as messages, or all as plain text",
            **evidence,
        )
    elif begun and max(counts) > 1 and _controls_turns(codec, bos):
        # ChatML tokenizers call the opening of each turn their begin-of-sequence token.
        verdicts.ok(name, f"every prompt begins with {spelled}, which also opens each turn", **evidence)
    elif max(counts) > 1:
        inside = sum(n for count, n in counts.items() if count > 1)
        verdicts.warn(
            name,
            f"{spelled} stands inside {inside} prompts as well as at their start",
            "remove it from the text of the prompts",
            **evidence,
        )
    elif begun:
        verdicts.ok(name, f"every prompt begins with {spelled}, once", **evidence)
    else:
        verdicts.ok(
            name, f"no prompt begins with {spelled}: neither the tokenizer nor a template writes it", **evidence
        )


def _controls_turns(codec: TextCodec, token: int) -> bool:
    """Whether the chat template itself writes the token several times in a conversation."""
    if not codec.has_chat_template:
        return False
    ids = _dialogue(codec, "a", "b")
    return ids is not None and ids.count(token) > 1


def _check_form(codec: TextCodec, prompts: PromptSet, verdicts: Verdicts) -> None:
    chats = sum(prompt.messages is not None for prompt in prompts.prompts)
    plain, name = len(prompts.prompts) - chats, "tokenizer/template"
    if plain and codec.has_chat_template:
        verdicts.warn(
            name,
            f"{plain} of {len(prompts.prompts)} prompts are plain text and skip the model's chat template",
            "write them as messages ([{role: user, content: ...}]) unless they are meant to be continued as text",
            plain=plain,
            chats=chats,
        )
    elif chats:
        opening = prompts.prompts[0].text[-40:]
        verdicts.ok(name, f"{chats} chats go through the chat template, and end in {opening!r}", chats=chats)
    else:
        verdicts.ok(name, "plain text, and the model has no chat template", plain=plain)


def _check_typed(codec: TextCodec, rows: RowSet, verdicts: Verdicts) -> None:
    """Special tokens that stand in the prompts' own text."""
    special = sorted({str(t) for t in codec.tokenizer.all_special_tokens} - {str(codec.tokenizer.unk_token)})
    chats = plain = 0
    found: Counter[str] = Counter()
    for row in rows.rows:
        content = row.prompt if isinstance(row.prompt, str) else "\n".join(str(m["content"]) for m in row.prompt)
        here = [token for token in special if token in content]
        found.update(here)
        chats += bool(here) and not isinstance(row.prompt, str)
        plain += bool(here) and isinstance(row.prompt, str)
    name, shown = "tokenizer/typed", ", ".join(token for token, _ in found.most_common(SHOWN))
    if codec.unguarded:
        verdicts.warn(
            name,
            f"special tokens typed in {codec.unguarded} chats ({shown}) cannot be told from the template's",
            "remove them from the messages: they can end a turn",
            tokens=dict(found),
        )
    elif plain:
        verdicts.note(
            name,
            f"{plain} plain prompts spell special tokens ({shown}), which count as such",
            "right for prompts that were rendered beforehand; else write them as messages",
            tokens=dict(found),
        )
    elif chats:
        verdicts.ok(name, f"{chats} chats spell special tokens ({shown}): kept as text", tokens=dict(found))
    else:
        verdicts.ok(name, "no prompt spells a special token")


def closes_with_stop(codec: TextCodec, stop_strings: Sequence[str]) -> tuple[bool, str] | None:
    """Whether what the template writes behind an answer ends a response, and that text; None without a template."""
    if not codec.has_chat_template:
        return None
    first, second = _dialogue(codec, "yes", "good"), _dialogue(codec, "yes", "no 7")
    if first is None or second is None:
        return None
    closing: list[int] = []
    for a, b in zip(reversed(first), reversed(second), strict=False):
        if a != b:
            break
        closing.insert(0, a)
    text = codec.decode(closing)
    return bool(codec.stop_ids.intersection(closing)) or any(s in text for s in stop_strings), text


def _dialogue(codec: TextCodec, question: str, answer: str) -> list[int] | None:
    turns: list[Mapping[str, Any]] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    try:
        return codec.encode_dialogue(turns)[0]
    except SurefootError:  # a template that wants other turns
        return None


def _check_closing(config: Config, codec: TextCodec, prompts: PromptSet, verdicts: Verdicts) -> None:
    """An answer's end as the template writes it is an end as the sampler knows it."""
    name = "tokenizer/end"
    stops = ", ".join(codec.decode([i]) for i in sorted(codec.stop_ids))
    chats = any(prompt.messages is not None for prompt in prompts.prompts)
    closing = closes_with_stop(codec, config.rollout.stop) if chats else None
    if not codec.stop_ids and not config.rollout.stop:
        verdicts.warn(
            name,
            "the tokenizer has no end-of-sequence token: every response runs to rollout.max_new_tokens",
            "set rollout.stop to a text that ends a response, or eos_token in the tokenizer's config",
        )
    elif closing is not None and not closing[0]:
        verdicts.warn(
            name,
            f"the chat template closes a turn with {closing[1]!r}, which does not end a response (these do: {stops})",
            f"set rollout.stop: [{json.dumps(closing[1].strip())}], or eos_token_id in generation_config.json",
            stop_ids=sorted(codec.stop_ids),
            closing=closing[1],
        )
    else:
        also = f" and {config.rollout.stop}" if config.rollout.stop else ""
        template = ", as the chat template closes a turn" if closing is not None else ""
        verdicts.ok(
            name, f"a response ends with {stops or 'a stop string'}{also}{template}", stop_ids=sorted(codec.stop_ids)
        )
