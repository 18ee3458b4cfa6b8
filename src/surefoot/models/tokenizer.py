"""Between text and token ids: prompts in, responses out, each special token exactly where it belongs. Torch-free.

Lengths, masks and ends come from positions and recorded stop reasons, never from comparing ids with a padding id.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from surefoot.errors import DataError, ModelError
from surefoot.models.chat import ChatEncoder, plain_ids
from surefoot.models.messages import Messages
from surefoot.models.tokenizer_files import load_tokenizer, read_template, stop_settings, text_folder
from surefoot.records import StopReason

logger = logging.getLogger("surefoot")

PROBES = 8
WINDOW = 32
MOST_ROWS = 10_000_000


@dataclass(frozen=True, slots=True)
class VocabularyPlan:
    """How a tokenizer's ids fit a model's embedding rows.

    Attributes:
        embedding_rows: rows the model has.
        rows_needed: one more than the tokenizer's largest id; grow embeddings and head when there are fewer.
        banned_ids: rows without a token, in order; never sampled, and left out of every log-probability.
    """

    embedding_rows: int
    rows_needed: int
    banned_ids: tuple[int, ...]

    @property
    def grow(self) -> bool:
        """Whether the model has too few rows."""
        return self.rows_needed > self.embedding_rows

    @property
    def rows(self) -> int:
        """Rows after growing."""
        return max(self.rows_needed, self.embedding_rows)

    @property
    def banned_from(self) -> int | None:
        """The id from which on no row has a token, None when the last row has one."""
        return self.rows_needed if self.rows_needed < self.rows else None


class TextCodec:
    """A tokenizer with everything decided: what begins a prompt, what ends a response, what is text.

    Args:
        tokenizer: a transformers tokenizer; it is not changed.
        name: what to call its model in messages.
        config_stop_ids: end-of-sequence ids that the model's configs name.
        ignored_generation_settings: sampling settings of the model folder, which nothing follows.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        name: str = "the model",
        config_stop_ids: Sequence[int] = (),
        ignored_generation_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.name = tokenizer, name
        self.ignored_generation_settings = dict(ignored_generation_settings or {})
        self.chat = ChatEncoder(tokenizer, name)
        self.bos_id: int | None = tokenizer.bos_token_id
        self._added = self._added_around()
        self.stop_ids = self._stop_ids(config_stop_ids)

    @classmethod
    def of(cls, tokenizer: Any, **options: Any) -> TextCodec:
        """A codec around a transformers tokenizer; options as for the class."""
        return cls(tokenizer, **options)

    # --------------------------------------------------------------------------------------------- text to ids

    def encode_prompt(self, prompt: str | Messages) -> tuple[list[int], str]:
        """Token ids and text of a prompt.

        A string stands as it is, with what the tokenizer puts in front of every text; special tokens spelled in it are
        special tokens. Messages go through the chat template, with the assistant's turn opened; special tokens spelled
        in them are text. What the tokenizer appends to a text (an end-of-sequence token) is left off: a response
        follows. A begin-of-sequence token that tokenizer and template both bring stands once.

        Raises:
            ModelError: messages, and the model has no usable chat template.
            DataError: the messages are none, the template refuses them, or nothing is left to encode.
        """
        if isinstance(prompt, str):
            ids, text = self.begun(self.encode_text(prompt)), prompt
        else:
            ids, text = self.chat.encode(prompt)
            ids = self.begun(ids)
        if not ids:
            raise DataError("a prompt has no tokens", got=text[:80], hint="a prompt needs text the tokenizer knows")
        return ids, text

    def encode_dialogue(self, messages: Messages) -> tuple[list[int], str]:
        """Token ids and text of a whole conversation, answers included, as reward models read it.

        Raises:
            ModelError, DataError: as :meth:`encode_prompt`; any message may be the last.
        """
        ids, text = self.chat.encode(messages, generation_prompt=False)
        return self.begun(ids), text

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text with nothing added; special tokens spelled in it are special tokens.

        Raises:
            DataError: the tokenizer cannot read the text.
        """
        return plain_ids(self.tokenizer, text)

    def begun(self, ids: list[int]) -> list[int]:
        """Ids with what the tokenizer puts in front of every text, once, and no begin-of-sequence token doubled."""
        begin = list(self.begin_ids)
        while begin and ids[: len(begin)] == begin:
            ids = ids[len(begin) :]
        while len(ids) > 1 and self.bos_id is not None and ids[0] == ids[1] == self.bos_id:
            ids = ids[1:]
        return ids if self._begins_after_blanks(ids) else begin + ids

    def _begins_after_blanks(self, ids: list[int]) -> bool:
        """Whether a template wrote the begin token after a line break, as sloppy templates do."""
        if self.bos_id is None or self.bos_id not in ids:
            return False
        return not self.decode(ids[: ids.index(self.bos_id)]).strip()

    @property
    def begin_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts in front of every text."""
        return self._added[0]

    @property
    def left_off_ids(self) -> tuple[int, ...]:
        """What the tokenizer appends to every text, and no prompt gets."""
        return self._added[1]

    def _added_around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        ordinary = set(self.token_ids) - set(self.tokenizer.get_added_vocab()) - set(self.tokenizer.all_special_tokens)
        # A tokenizer of whole words may make nothing of "a"; one of its own words it knows.
        for word in ("a", *sorted(ordinary)[:PROBES]):
            try:
                body = self.encode_text(word)
            except DataError:
                continue
            whole = list(self.tokenizer(word, add_special_tokens=True, verbose=False)["input_ids"])
            for start in range(len(whole) - len(body) + 1):
                if body and whole[start : start + len(body)] == body:
                    return tuple(whole[:start]), tuple(whole[start + len(body) :])
        return (), ()

    # --------------------------------------------------------------------------------------------- ids to text

    def decode(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of any ids, special tokens included; bytes that make no character become U+FFFD."""
        text: str = self.tokenizer.decode(
            list(map(int, tokens)), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return text

    def response_text(self, tokens: Sequence[int], stop_reason: StopReason, *, skip_special: bool = False) -> str:
        """Text of a response: the stop token that ended it is left off, by position; everything else is kept.

        Args:
            tokens: the action tokens, the closing stop token included.
            stop_reason: why the response ended.
            skip_special: leave out all special tokens.
        """
        closed = stop_reason is StopReason.EOS and len(tokens) > 0 and int(tokens[-1]) in self.stop_ids
        return self.decode(tokens[:-1] if closed else tokens, skip_special=skip_special)

    def spans(self, tokens: Sequence[int], *, skip_special: bool = False) -> list[tuple[int, int]]:
        """The characters ``[start, end)`` of the decoded text that each token stands for, without gap or overlap.

        A character made of several tokens belongs to the last of them, which completes it; the others stand for
        ``[n, n)``. A closing stop token lies behind the text that :meth:`response_text` gives.
        """
        text = self.decode(tokens, skip_special=skip_special)
        spans: list[tuple[int, int]] = []
        start = first = offset = 0
        for number in range(len(tokens) - 1):
            if number % WINDOW == 0 and number > 0:
                # Decoding from the first token each time would cost the square of the length.
                first = number - WINDOW // 2
                known = self.decode(tokens[first:number], skip_special=skip_special)
                offset = start - len(known)
                if offset < 0 or text[offset:start] != known:  # cut within a character
                    first = offset = 0
            sofar = self.decode(tokens[first : number + 1], skip_special=skip_special)
            end = start
            while end < len(text) and end - offset < len(sofar) and sofar[end - offset] == text[end]:
                end += 1
            spans.append((start, end))
            start = end
        return [*spans, (start, len(text))] if len(tokens) else []

    # ------------------------------------------------------------------------------------------------ vocabulary

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """Every token the tokenizer knows, added ones included, and its id."""
        return {str(token): int(number) for token, number in self.tokenizer.get_vocab().items()}

    @property
    def rows_needed(self) -> int:
        """One more than the largest id."""
        return max(self.token_ids.values()) + 1

    @property
    def pad_id(self) -> int:
        """An id to fill rows with. Any will do, since masks come from lengths; no token is added for it."""
        choices = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, self.bos_id, min(self.token_ids.values()))
        return next(int(choice) for choice in choices if choice is not None)

    def check_vocabulary(self, embedding_rows: int) -> VocabularyPlan:
        """What to grow and what to ban for a model with this many embedding rows.

        Raises:
            ModelError: no model has as many.
        """
        if not 0 < embedding_rows <= MOST_ROWS:
            raise ModelError(
                "the model's vocabulary has an impossible size",
                got=embedding_rows,
                allowed=f"1 to {MOST_ROWS:,}",
                hint="correct vocab_size in config.json",
            )
        used = frozenset(self.token_ids.values())
        rows = max(embedding_rows, self.rows_needed)
        return VocabularyPlan(embedding_rows, self.rows_needed, tuple(i for i in range(rows) if i not in used))

    def _stop_ids(self, configured: Sequence[int]) -> frozenset[int]:
        own = self.tokenizer.eos_token_id
        added = set(self.tokenizer.added_tokens_decoder) | set(self.tokenizer.all_special_ids)
        known = frozenset(self.token_ids.values())
        # Configs are often left at their class's default, which is a word in another vocabulary.
        stray = [i for i in configured if i not in known or (own is not None and i != own and i not in added)]
        if stray:
            logger.warning(
                "%s: its configs name %s as end of sequence, no special tokens of the tokenizer: not used",
                self.name,
                ", ".join(map(str, stray)),
            )
        ids = frozenset(int(i) for i in (own, *configured) if i is not None and i not in stray)
        if not ids:
            logger.warning("%s has no end-of-sequence token: every response runs to its limit", self.name)
        return ids

    # ------------------------------------------------------------------------------------------------- identity

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be encoded."""
        try:
            return bool(self.chat.template)
        except ModelError:
            return False

    @property
    def unguarded(self) -> int:
        """Chats so far in which typed control tokens could not be kept apart from the template's."""
        return self.chat.unguarded

    def vocabulary_fingerprint(self) -> str:
        """sha256 over tokens and ids: two tokenizers with the same one may exchange ids."""
        return _sha256(sorted(self.token_ids.items()))

    def fingerprint(self) -> str:
        """sha256 over all that decides how text becomes ids: vocabulary, merges, special tokens, chat template."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        spec = sorted(self.token_ids.items()) if backend is None else json.loads(backend.to_str())
        if isinstance(spec, dict):
            spec |= {"truncation": None, "padding": None}  # the library's scratch space
        special = {key: str(value) for key, value in self.tokenizer.special_tokens_map.items()}
        template = self.chat.template if self.has_chat_template else None
        return _sha256([spec, special, sorted(self.stop_ids), template])

    def save(self, folder: str) -> None:
        """Write the tokenizer, chat template included, into a model folder."""
        self.tokenizer.save_pretrained(folder)


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_codec(folder: str, *, chat_template: str | None = None, trust_remote_code: bool = False) -> TextCodec:
    """The codec of a model folder, a hub id or an adapter folder; no weights are read.

    Args:
        folder: where the model is.
        chat_template: Jinja source, or a file with it, in place of the model's own template.
        trust_remote_code: run code that comes with the tokenizer.
    Raises:
        ModelError: there is no tokenizer, or the template cannot be read.
    """
    template = None if chat_template is None else read_template(chat_template)
    source = text_folder(folder)
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    if template is not None:
        tokenizer.chat_template = template
    stop_ids, ignored = stop_settings(source)
    if ignored:
        shown = ", ".join(f"{key}: {value}" for key, value in ignored.items())
        logger.info("%s: generation_config.json is not followed (%s)", folder, shown)
    return TextCodec(tokenizer, name=folder, config_stop_ids=stop_ids, ignored_generation_settings=ignored)
