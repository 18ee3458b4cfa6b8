"""Demonstrations as tokens, with the tokens that are to be trained: what the assistant says, and that it ends there.

In a chat the template decides. Where it marks what the assistant says (``{% generation %}``), that is believed. Else
the chat is rendered up to each of the assistant's turns, with the turn opened as for sampling, and up to its end; both
must be beginnings of the whole, or the chat is refused. Places are found by counting tokens of such beginnings, never
by decoding ids and encoding the text again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from surefoot.errors import DataError
from surefoot.models.chat import Marks
from surefoot.models.messages import Messages, messages_fault
from surefoot.models.tokenizer import TextCodec

logger = logging.getLogger("surefoot")

SHOWN = 40
Turns = Literal["all", "last"]


@dataclass(frozen=True, slots=True)
class Answers:
    """A demonstration as tokens.

    Attributes:
        ids: as the model reads it.
        mask: which of them are trained; never the first.
        ends: ids that close the assistant's turns in it.
    """

    ids: list[int]
    mask: list[bool]
    ends: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Ids of a whole chat, and the token at which each of its cuts falls."""

    ids: list[int]
    cuts: dict[int, int]


class AnswerEncoder:
    """Encodes demonstrations with a model's tokenizer and chat template.

    Args:
        codec: of the model that is trained.
        turns: which of the assistant's turns in a chat are trained.
    """

    def __init__(self, codec: TextCodec, *, turns: Turns = "all") -> None:
        self.codec, self.turns = codec, turns
        eos = codec.tokenizer.eos_token_id
        self.eos: int | None = min(codec.stop_ids, default=None) if eos is None else int(eos)
        if self.eos is None:
            logger.warning("%s has no end-of-sequence token: where an answer ends is not trained", codec.name)

    # ------------------------------------------------------------------------------------------------------- chats

    def dialogue(self, messages: Messages) -> Answers:
        """A chat with at least one turn of the assistant's.

        Raises:
            ModelError: the model has no chat template.
            DataError: the messages cannot be used, or it cannot be told which tokens are the assistant's.
        """
        fault = messages_fault(messages, prompt=False) or _no_answer(messages)
        if fault is not None:
            raise DataError("a list of messages cannot be used", got=fault)
        chat = self.codec.chat
        written, marks = chat.write(messages, generation_prompt=False)
        spans = chat.generation_spans(messages, marks)
        if spans is None:
            spans = [self._turn(messages, i, written, marks) for i in self._trained_turns(messages)]
        elif self.turns == "last":
            spans = spans[-1:]
        if not spans:
            raise DataError(
                "the chat template marks nothing that the assistant says",
                got=f"{len(messages)} messages",
                hint="look at {% generation %} in the template",
            )
        found = self._tokens(written, marks, sorted({place for span in spans for place in span}))
        ids, mask, ends = list(found.ids), [False] * len(found.ids), set[int]()
        answered = messages[-1]["role"] == "assistant"
        for number, (start, end) in enumerate(reversed(spans)):
            first, last = found.cuts[start], found.cuts[end]
            closing = self._closing(ids, first, last, ends, final=answered and number == 0)
            if closing is not None:
                ends.add(ids[closing])
                last = closing + 1
            elif answered and number == 0:
                ids = ids[:first] + self._unclosed(ids[:first], written, marks, (start, end))
                mask, last = mask[:first] + [False] * (len(ids) - first), len(ids)
            mask[first:last] = [True] * (last - first)
        return self._begun(ids, mask, frozenset(ends))

    def _trained_turns(self, messages: Messages) -> list[int]:
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        return turns if self.turns == "all" else turns[-1:]

    def _turn(self, messages: Messages, index: int, written: str, marks: Marks) -> tuple[int, int]:
        """Where a turn lies in the rendered chat: behind what opens it for sampling, up to what follows it."""
        chat = self.codec.chat
        before = chat.write_as(messages[:index], marks, generation_prompt=True)
        upto = chat.write_as(messages[: index + 1], marks, generation_prompt=False)
        for part in (before, upto):
            if not written.startswith(part):
                raise self._no_beginning(part, written)
        if len(upto) <= len(before):
            raise self._no_beginning(before, upto)
        return len(before), len(upto)

    def _no_beginning(self, part: str, written: str) -> DataError:
        chat = self.codec.chat
        one, other = chat.unmarked(part), chat.unmarked(written)
        place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return DataError(
            f"the chat template of {self.codec.name} writes the beginning of a chat otherwise once the chat goes on, so"
            " it cannot be told which tokens are the assistant's",
            got=f"{one[place : place + SHOWN]!r} alone, {other[place : place + SHOWN]!r} in the whole",
            hint="sft.turns: last, if only earlier answers are rewritten; else give model.chat_template a template with"
            " {% generation %} around the answers",
        )

    def _tokens(self, written: str, marks: Marks, places: list[int]) -> _Tokens:
        """Ids of the whole, and the token at each place; cut at the places where a token would lie across one."""
        chat = self.codec.chat
        ids = chat.read(written, marks)
        cuts = {place: chat.read(written[:place], marks) for place in places}
        if all(ids[: len(part)] == part for part in cuts.values()):
            return _Tokens(ids, {place: len(part) for place, part in cuts.items()})
        # Sampling begins at such a place too, so a token boundary there is what the model will see.
        joined: list[int] = []
        found = {}
        for start, end in pairwise([0, *places, len(written)]):
            joined += chat.read(written[start:end], marks) if end > start else []
            found[end] = len(joined)
        self._check_same_text(joined, ids)
        return _Tokens(joined, found)

    def _closing(self, ids: list[int], first: int, last: int, ends: set[int], *, final: bool) -> int | None:
        """The token that closes a turn ``[first, last)``: its last special one if nothing but blanks comes after it.

        What the template marks may leave it out; then it comes right behind: a stop token, or whatever special token
        comes behind the last turn, where no other turn can be opened.
        """
        special = self.codec.stop_ids | self.codec.chat.special_ids
        for at in range(last - 1, first - 1, -1):
            if ids[at] in special:
                return at
            if self.codec.decode(ids[at:last]).strip():
                break
        known = special if final else self.codec.stop_ids | ends
        return last if last < len(ids) and ids[last] in known else None

    def _unclosed(self, before: list[int], written: str, marks: Marks, span: tuple[int, int]) -> list[int]:
        """Ids of a last turn that the template does not close: its content, then the end of the sequence."""
        chat = self.codec.chat
        end = chat.content_end(written, *span) if marks == "edges" else span[1]
        whole = chat.read(written[:end], marks)
        if whole[: len(before)] == before:
            ids = whole[len(before) :]
        else:
            ids = chat.read(written[span[0] : end], marks)
            self._check_same_text(before + ids, whole)
        return ids if self.eos is None else [*ids, self.eos]

    def _begun(self, ids: list[int], mask: list[bool], ends: frozenset[int]) -> Answers:
        """With what begins every text, once; the mask keeps to its tokens."""
        begun = self.codec.begun(ids)
        more = len(begun) - len(ids)
        return _checked(begun, [False] * more + mask if more >= 0 else mask[-more:], ends)

    # ------------------------------------------------------------------------------------------------------- texts

    def completion(self, prompt: str, completion: str) -> Answers:
        """A prompt that is a text, with its answer; the prompt's tokens are those that sampling would begin with.

        Raises:
            DataError: there is nothing to train, or no way to cut tokens between the two.
        """
        if not prompt:
            return self.whole(completion)
        given, _ = self.codec.encode_prompt(prompt)
        ids = self.codec.begun(self.codec.encode_text(prompt + completion))
        if ids[: len(given)] != given:
            joined = given + self.codec.encode_text(completion)
            self._check_same_text(joined, ids)
            ids = joined
        return self._ended(ids, len(given))

    def whole(self, text: str) -> Answers:
        """A text alone: every token is trained that has one before it."""
        ids = self.codec.begun(self.codec.encode_text(text))
        return self._ended(ids, max(1, len(self.codec.begin_ids)))

    def _ended(self, ids: list[int], given: int) -> Answers:
        mask = [False] * min(given, len(ids)) + [True] * (len(ids) - given)
        if not any(mask):
            raise DataError("a demonstration has no token to train", got=self.codec.decode(ids)[:80])
        if ids[-1] not in self.codec.stop_ids and self.eos is not None:
            ids, mask = [*ids, self.eos], [*mask, True]
        return _checked(ids, mask, frozenset({ids[-1]} & self.codec.stop_ids))

    def _check_same_text(self, joined: list[int], ids: list[int]) -> None:
        if self.codec.decode(joined) != self.codec.decode(ids):
            raise DataError(
                "a token begins in the prompt and ends in the answer, and this tokenizer cannot cut it",
                got=self.codec.decode(ids)[:80],
                hint="move the blank between the two: end the prompt without one and begin the answer with it",
            )


def _no_answer(messages: Messages) -> str | None:
    answers = [m for m in messages if m["role"] == "assistant"]
    if not answers:
        return "no turn of the assistant's, so there is nothing to train"
    return None if all(str(m["content"]).strip() for m in answers) else "an answer of the assistant's is empty"


def _checked(ids: list[int], mask: list[bool], ends: frozenset[int]) -> Answers:
    """Nothing precedes the first token, so it cannot be trained."""
    mask = [False, *mask[1:]]
    if not any(mask):
        raise DataError("a demonstration has no token to train", got=f"{len(ids)} tokens")
    return Answers(ids, mask, ends)
