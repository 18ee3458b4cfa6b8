"""The checks that see one row at a time: each text of it, and its length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from surefoot.data.audit.characters import Hit, odd_characters, without_invisible
from surefoot.data.audit.control_tokens import control_tokens, known_tokens, tokens_of
from surefoot.data.audit.credentials import credentials
from surefoot.data.audit.findings import SEVERITIES
from surefoot.data.audit.injections import injections
from surefoot.data.audit.names import NameFinder, name_finder
from surefoot.data.audit.passages import AuditRow, Passage
from surefoot.data.audit.personal import personal_data
from surefoot.data.reading import DEFAULT_COLUMN
from surefoot.errors import DataError

MAX_CHARACTERS: Final = 20_000


@dataclass(frozen=True)
class AuditOptions:
    """What an audit looks at.

    Attributes:
        column: the prompt's column.
        label: a column with a label (two values, or numbers), for trigger phrases.
        against: evaluation data that must not be in the audited data.
        scores: a JSONL file with scores of preference pairs.
        tokenizer: folder of the tokenizer whose control tokens are looked for; None: the well-known ones.
        max_characters: a row with more is over-long.
        max_tokens: a row with more tokens is over-long; needs ``tokenizer``.
        names: a spaCy pipeline that finds names of people.
    """

    column: str = DEFAULT_COLUMN
    label: str | None = None
    against: str | None = None
    scores: Path | None = None
    tokenizer: str | None = None
    max_characters: int = MAX_CHARACTERS
    max_tokens: int | None = None
    names: str | None = None


@dataclass
class TextChecks:
    """The checks that see one text, and the tokenizer where there is one."""

    options: AuditOptions
    tokens: Any = field(default_factory=known_tokens)
    names: NameFinder | None = None
    encoder: Any = None

    @classmethod
    def of(cls, options: AuditOptions) -> TextChecks:
        """The checks that the options ask for."""
        checks = cls(options)
        if options.tokenizer is not None:
            checks.tokens = tokens_of(options.tokenizer)
        if options.names is not None:
            checks.names = name_finder(options.names)
        if options.max_tokens is not None:
            checks.encoder = _encoder(options.tokenizer)
        return checks

    def of_row(self, row: AuditRow) -> Iterator[Hit]:
        """All hits in a row, those of one kind together with the first one's evidence."""
        merged: dict[str, Hit] = {}
        for passage in row.passages:
            for hit in self._of_text(passage):
                shown = hit._replace(evidence=f"{passage.place}: {hit.evidence}")
                before = merged.get(hit.kind)
                merged[hit.kind] = shown if before is None else _together(before, shown)
        yield from merged.values()
        yield from self._length(row)

    def _of_text(self, passage: Passage) -> Iterator[Hit]:
        text = passage.text
        if passage.role in ("user", "prompt", "response") and not without_invisible(text).strip():
            yield Hit("row/empty", "error", "no text")
            return
        yield from odd_characters(text)
        secrets, places = credentials(text)
        yield from secrets
        yield from personal_data(text, places)
        yield from injections(text)
        yield from control_tokens(passage, self.tokens)
        if self.names is not None:
            yield from self.names(text)

    def _length(self, row: AuditRow) -> Iterator[Hit]:
        characters = sum(len(passage.text) for passage in row.passages)
        if characters > self.options.max_characters:
            most = self.options.max_characters
            yield Hit("row/over-long", "warning", f"{characters} characters, at most {most}")
        if self.encoder is not None and self.options.max_tokens is not None:
            number = max(_lengths(self.encoder, row), default=0)
            if number > self.options.max_tokens:
                yield Hit("row/over-long", "warning", f"{number} tokens, at most {self.options.max_tokens}")


def _together(before: Hit, hit: Hit) -> Hit:
    graver = hit if SEVERITIES.index(hit.severity) > SEVERITIES.index(before.severity) else before
    return graver._replace(times=before.times + hit.times)


def _lengths(encoder: Any, row: AuditRow) -> Iterable[int]:
    """Tokens of the prompt with each answer; without those that a template adds."""
    given = len(encoder.encode(without_surrogates(row.given), add_special_tokens=False).ids)
    answers = (len(encoder.encode(without_surrogates(a), add_special_tokens=False).ids) for a in row.answers)
    return [given + answer for answer in answers] or [given]


def without_surrogates(text: str) -> str:
    """The text as a tokenizer can read it; half a surrogate pair is a finding of its own."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _encoder(folder: str | None) -> Any:
    from tokenizers import Tokenizer  # a quarter of a second, and only token counts need it

    file = Path(folder or "") / "tokenizer.json"
    if folder is None or not file.is_file():
        raise DataError(
            "tokens can be counted only with a tokenizer.json",
            got=f"--tokenizer {folder}",
            hint="name a folder that has one, or use --max-characters",
        )
    return Tokenizer.from_file(str(file))
