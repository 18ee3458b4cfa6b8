"""Chat messages to tokens through the model's own template, with what people typed kept apart from what the template
wrote.

A template writes control tokens such as ``<|im_end|>`` as text, and the tokenizer reads them back out of the text. A
user who types the same characters would end the turn. So a chat is rendered with the contents marked, and where the
token ids do not agree with what the template alone wrote, the chat is read by a copy of the tokenizer in which the
control tokens have secret names: then what was typed is text, and the surroundings are cut exactly as before.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import jinja2
from tokenizers import Tokenizer

from surefoot.errors import DataError, ModelError
from surefoot.models.messages import Messages, messages_fault, plain_messages

logger = logging.getLogger("surefoot")

# Tokens of the ordinary vocabulary may be markup of the template too (<tool_call>); runs of blanks never are.
_MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)
# So much of the secret is enough to know that a mark was cut or rewritten.
SECRET_SHOWS = 10
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Marks = Literal["edges", "typed", "none"]
"""What is marked: what was typed and where each content begins and ends; what was typed; nothing."""


class ChatEncoder:
    """Renders and encodes messages with a tokenizer's chat template.

    Args:
        tokenizer: a transformers tokenizer.
        name: what to call its model in messages.

    Attributes:
        unguarded: chats so far in which typed control tokens could not be kept apart from the template's.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        self.unguarded = 0
        # Nobody can type a random name, and no result depends on it.
        self._secret = f"qx{secrets.token_hex(8)}"

    @cached_property
    def template(self) -> str:
        """The template's source.

        Raises:
            ModelError: the model has none.
        """
        try:
            source: str = self._tokenizer.get_chat_template()
        except ValueError as error:
            raise ModelError(
                f"{self._name} has no chat template, and the prompts are lists of messages",
                hint="set model.chat_template to a Jinja template or to a file with one; "
                "a prompt that is a plain string needs none",
            ) from error
        if "strftime_now" in source:
            logger.warning("%s: the chat template writes today's date, so prompts change from day to day", self._name)
        return source

    def render(self, messages: Messages, *, generation_prompt: bool = True) -> str:
        """The chat as text, with the opening of the assistant's turn unless told otherwise.

        Raises:
            ModelError: there is no template, or it is not valid Jinja.
            DataError: the template refuses these messages.
        """
        source = self.template
        try:
            text: str = self._tokenizer.apply_chat_template(
                plain_messages(messages),
                chat_template=source,
                tokenize=False,
                add_generation_prompt=generation_prompt,
            )
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"the chat template of {self._name} is not valid Jinja",
                got=f"{error.message} (line {error.lineno})",
                hint="set model.chat_template to one that is",
            ) from error
        except MemoryError:
            raise
        except Exception as error:  # A template can raise anything.
            raise DataError(
                f"the chat template of {self._name} refuses the messages",
                got=" ".join(str(error).split()) or type(error).__name__,
                hint="change the messages to what the model knows (some have no system role), or set"
                " model.chat_template",
            ) from error
        return text

    def encode(self, messages: Messages, *, generation_prompt: bool = True) -> tuple[list[int], str]:
        """Token ids and text of a chat; nothing is added to what the template writes.

        Args:
            messages: a prompt (it must not end with the assistant's turn) unless ``generation_prompt`` is off.
            generation_prompt: open the assistant's turn at the end.
        Raises:
            ModelError: see :meth:`render`.
            DataError: the messages are none, or the template refuses them.
        """
        fault = messages_fault(messages, prompt=generation_prompt)
        if fault is not None:
            raise DataError("a list of messages cannot be used", got=fault)
        written, marks = self.write(messages, generation_prompt=generation_prompt)
        return self.read(written, marks), self.unmarked(written)

    def write(self, messages: Messages, *, generation_prompt: bool) -> tuple[str, Marks]:
        """The chat as text with marks in what people typed, and which marks the template left whole.

        Raises:
            ModelError, DataError: see :meth:`render`.
        """
        text = self.render(messages, generation_prompt=generation_prompt)
        written = self.write_as(messages, "edges", generation_prompt=generation_prompt)
        if self.unmarked(written) == text:
            return written, "edges"
        # The template looks at how a content begins or ends; then only what was typed is marked.
        written = self.write_as(messages, "typed", generation_prompt=generation_prompt)
        if self._secret[:SECRET_SHOWS] not in self.unmarked(written).lower():
            return written, "typed"
        self._report_unguarded()  # The template rewrites what was typed, marks included.
        return text, "none"

    def write_as(self, messages: Messages, marks: Marks, *, generation_prompt: bool) -> str:
        """The chat as text with these marks; raises as :meth:`render` does."""
        shown = messages if marks == "none" else self._marked(messages, edges=marks == "edges")
        return self.render(shown, generation_prompt=generation_prompt)

    def read(self, written: str, marks: Marks) -> list[int]:
        """Token ids of a text from :meth:`write`, or of a part of it."""
        text = self.unmarked(written)
        ids = plain_ids(self._tokenizer, text)
        if marks == "none":
            return ids
        controls = Counter(self.controls[spelling] for spelling in self._written.findall(written))
        if self._controls_in(ids) == controls:
            return ids
        if self._reader is not None:
            hidden = self._written.sub(lambda found: self._hidden_name(found[0]), written)
            ids = _reading(self._reader.encode, self.unmarked(hidden), add_special_tokens=False).ids
        if self._controls_in(ids) != controls:
            self._report_unguarded()
        return ids

    def generation_spans(self, messages: Messages, marks: Marks) -> list[tuple[int, int]] | None:
        """Where the template says that the assistant speaks: ``[start, end)`` in what :meth:`write_as` gives.

        Returns:
            None for a template without generation markers.
        """
        if not _GENERATION.search(self.template):
            return None
        from transformers.utils.chat_template_utils import render_jinja_template  # may load torch

        shown = messages if marks == "none" else self._marked(messages, edges=marks == "edges")
        rendered, spans = render_jinja_template(
            conversations=[plain_messages(shown)],
            chat_template=self.template,
            return_assistant_tokens_mask=True,
            add_generation_prompt=False,
            **self._tokenizer.special_tokens_map,
        )
        if rendered[0] != self.write_as(messages, marks, generation_prompt=False):
            raise DataError("the chat template writes the same messages in two ways", got=self._name)
        return [(int(start), int(end)) for start, end in spans[0]]

    def content_end(self, written: str, start: int, end: int) -> int:
        """Where in ``[start, end)`` of a text with marks at the edges the last content ends; ``end`` without any."""
        mark = f"{self._secret}e"
        place = written.rfind(mark, start, end)
        return end if place < 0 else place + len(mark)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens."""
        return frozenset(self._special.values())

    # ------------------------------------------------------------------------------------------ control tokens

    @cached_property
    def controls(self) -> dict[str, int]:
        """Control tokens by spelling: the special tokens, and the added tokens that the template names."""
        found = dict(self._special)
        for number, token in self._tokenizer.added_tokens_decoder.items():
            spelling = str(token.content)
            if _MARKUP.fullmatch(spelling) and spelling in self.template:
                found.setdefault(spelling, int(number))
        # Any unknown word becomes this one: its number says nothing about what was typed.
        found.pop(self._unknown, None)
        return found

    @cached_property
    def _special(self) -> dict[str, int]:
        tokenizer = self._tokenizer
        found = {str(t.content): int(number) for number, t in tokenizer.added_tokens_decoder.items() if t.special}
        return found | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))

    @cached_property
    def _unknown(self) -> str:
        model = getattr(self._backend, "model", None)
        if model is None or type(model).__name__ == "Unigram":
            return str(self._tokenizer.unk_token or "")
        return str(getattr(model, "unk_token", None) or "")

    @property
    def _backend(self) -> Any:
        return getattr(self._tokenizer, "backend_tokenizer", None)

    @cached_property
    def _written(self) -> re.Pattern[str]:
        return _any_of(self.controls)

    @cached_property
    def _written_special(self) -> re.Pattern[str]:
        return _any_of([spelling for spelling in self.controls if spelling in self._special])

    def _controls_in(self, ids: Sequence[int]) -> Counter[int]:
        known = frozenset(self.controls.values())
        return Counter(number for number in ids if number in known)

    def _report_unguarded(self) -> None:
        self.unguarded += 1
        if self.unguarded == 1:
            logger.warning(
                "%s: control tokens typed in a message could not be kept apart from those of the chat template;"
                " such text can end a turn. Reported once, counted further.",
                self._name,
            )

    # ------------------------------------------------------------------------------------------------- marking

    def _marked(self, messages: Messages, *, edges: bool) -> list[dict[str, Any]]:
        """The messages with typed control tokens replaced by marks and, with ``edges``, marks around each content.

        The marks at the edges part a token that begins in one content and ends in what follows.
        """
        numbers = {spelling: number for number, spelling in enumerate(self.controls)}

        def hide(pattern: re.Pattern[str], value: Any) -> Any:
            if isinstance(value, str):
                return pattern.sub(lambda found: f"{self._secret}c{numbers[found[0]]:04d}", value)
            if isinstance(value, Mapping):
                return {key: hide(pattern, item) for key, item in value.items()}
            return [hide(pattern, item) for item in value] if isinstance(value, (list, tuple)) else value

        marked = []
        for message in messages:
            # An earlier answer may hold the markup that the template expects in it (<think>), never special tokens.
            pattern = self._written_special if message["role"] == "assistant" else self._written
            hidden = {key: value if key == "role" else hide(pattern, value) for key, value in message.items()}
            if edges:
                hidden["content"] = self._edged(hidden["content"])
            marked.append(hidden)
        return marked

    def _edged(self, content: str) -> str:
        core = content.strip()
        if not core:
            return content
        # Inside the surrounding blanks, so that a template that trims still trims them.
        before, _, after = content.partition(core)
        return f"{before}{self._secret}e{core}{self._secret}e{after}"

    def unmarked(self, text: str) -> str:
        """The text without its marks."""
        spellings = list(self.controls)
        mark = re.compile(rf"{self._secret}(?:e|c(\d{{4}}))")
        return mark.sub(lambda found: spellings[int(found[1])] if found[1] else "", text)

    # ------------------------------------------------------------------------------------- the secretive reader

    def _hidden_name(self, spelling: str) -> str:
        return f"{self._secret}t{self.controls[spelling]:08d}"

    @cached_property
    def _reader(self) -> Tokenizer | None:
        """The tokenizer with secret names for its control tokens; None where there can be none."""
        if self._backend is None:
            return None
        return renamed_tokenizer(
            json.loads(self._backend.to_str()), {spelling: self._hidden_name(spelling) for spelling in self.controls}
        )


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text with nothing added; special tokens spelled in it are special tokens.

    Raises:
        DataError: the tokenizer cannot read the text.
    """
    encoded = _reading(tokenizer, text, add_special_tokens=False, split_special_tokens=False, verbose=False)
    return list(encoded["input_ids"])


def _reading(encode: Callable[..., Any], text: str, **options: Any) -> Any:
    try:
        return encode(text, **options)
    except Exception as error:  # The library raises nothing narrower.
        reason = " ".join(str(error).split())
        raise DataError("the tokenizer cannot read a text", got=f"{text[:80]!r} ({reason})") from error


def _any_of(spellings: Mapping[str, int] | Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def renamed_tokenizer(spec: dict[str, Any], names: Mapping[str, str]) -> Tokenizer | None:
    """A tokenizer from its ``tokenizer.json`` with some tokens under other names and the same ids.

    Args:
        spec: the parsed ``tokenizer.json``; changed in place.
        names: old name to new name.
    Returns:
        None when it cannot be built: a merge makes one of the tokens, or ids would move.
    """

    def rename(token: str) -> str:
        return names.get(token, token)

    ids = {str(token["content"]): int(token["id"]) for token in spec["added_tokens"]}
    for token in spec["added_tokens"]:
        token["content"] = rename(token["content"])
    model = spec["model"]
    if isinstance(model["vocab"], dict):
        ids |= {token: number for token, number in model["vocab"].items() if token in names}
        model["vocab"] = {rename(token): number for token, number in model["vocab"].items()}
    else:
        ids |= {entry[0]: number for number, entry in enumerate(model["vocab"]) if entry[0] in names}
        model["vocab"] = [[rename(token), *rest] for token, *rest in model["vocab"]]
    spec |= {"post_processor": None, "truncation": None, "padding": None}
    try:
        reader = Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # The library raises nothing narrower.
        logger.warning("a tokenizer cannot be rebuilt with other names for its control tokens: %s", error)
        return None
    moved = [old for old, new in names.items() if old in ids and reader.token_to_id(new) != ids[old]]
    return None if moved else reader
