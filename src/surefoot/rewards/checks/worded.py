"""Constraints on how a response is worded and laid out. Torch-free."""

from __future__ import annotations

import re
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from surefoot.rewards.checks.constraint import Constraint
from surefoot.rewards.checks.json_text import NoJson, find_json
from surefoot.rewards.checks.languages import LANGUAGES, UNKNOWN, detect
from surefoot.rewards.checks.options import nearest
from surefoot.rewards.checks.segments import paragraphs, words

TITLE: Final = re.compile(r"<<([^<>\n]{1,1000})>>")
QUOTES: Final = (('"', '"'), ("“", "”"), ("„", "“"), ("«", "»"))
APART: Final = re.compile(r"^[ \t]*\*{6}[ \t]*$", re.MULTILINE)


class Case(Constraint):
    """All letters in one case."""

    kind: ClassVar[str] = "case"
    case: Literal["upper", "lower"]
    """Which."""

    def fault(self, text: str) -> str | None:
        """The first word in the other case."""
        right = str.isupper if self.case == "upper" else str.islower
        letters = [word for word in words(text) if any(c.isupper() or c.islower() for c in word)]
        wrong = next((word for word in letters if not right(word)), None)
        if not letters:
            return "no letters"
        return None if wrong is None else f"{wrong[:40]!r} is not in {self.case} case"


class NoCommas(Constraint):
    """No comma anywhere."""

    kind: ClassVar[str] = "no_commas"

    def fault(self, text: str) -> str | None:
        """Count commas, those of other scripts too."""
        count = sum(map(text.count, ",，、،"))
        return f"{count} commas" if count else None


class StartsWith(Constraint):
    """The response begins with a phrase."""

    kind: ClassVar[str] = "starts_with"
    text: str = Field(min_length=1)
    """The phrase; case and spaces at the edges make no difference."""

    def fault(self, text: str) -> str | None:
        """Compare the start."""
        right = text.strip().casefold().startswith(self.text.strip().casefold())
        return None if right else f"does not begin with {self.text!r}"


class EndsWith(Constraint):
    """The response ends with a phrase, nothing behind it."""

    kind: ClassVar[str] = "ends_with"
    text: str = Field(min_length=1)
    """The phrase; case, spaces at the edges and quotes around the response make no difference."""

    def fault(self, text: str) -> str | None:
        """Compare the end."""
        right = text.strip().strip("\"“”'").casefold().endswith(self.text.strip().casefold())
        return None if right else f"does not end with {self.text!r}"


class Quoted(Constraint):
    """The whole response stands in double quotes."""

    kind: ClassVar[str] = "quoted"

    def fault(self, text: str) -> str | None:
        """Look at both ends."""
        plain = text.strip()
        right = len(plain) > 2 and any(plain[0] == first and plain[-1] == last for first, last in QUOTES)
        return None if right else "is not wrapped in double quotes"


class Title(Constraint):
    """A title in double angular brackets, as `<<this>>`."""

    kind: ClassVar[str] = "title"

    def fault(self, text: str) -> str | None:
        """Look for one."""
        return None if any(title.strip() for title in TITLE.findall(text)) else "no title in << >>"


class Postscript(Constraint):
    """A postscript: a line that begins with a marker and says something."""

    kind: ClassVar[str] = "postscript"
    marker: str = Field("P.S.", min_length=1)
    """What it begins with; spaces and full stops in it make no difference."""

    def fault(self, text: str) -> str | None:
        """Look for the line."""
        letters = [re.escape(c) for c in self.marker if not c.isspace() and c != "."]
        pattern = rf"^[ \t]*{r'[.]?[ ]?'.join(letters)}(?:[.:]{{1,2}}[ \t:]*|[ \t]+)\S"
        found = re.search(pattern, text, re.MULTILINE | re.IGNORECASE)
        return None if found else f"no postscript {self.marker!r}"


class Json(Constraint):
    """The response is JSON, in a fenced block or not."""

    kind: ClassVar[str] = "json"

    def fault(self, text: str) -> str | None:
        """Read it."""
        try:
            find_json(text, "auto")
        except NoJson as error:
            return str(error)
        return None


class TwoResponses(Constraint):
    """Two different responses, a line of six stars between them."""

    kind: ClassVar[str] = "two_responses"

    def fault(self, text: str) -> str | None:
        """Split and compare."""
        parts = [part.strip() for part in APART.split(text) if part.strip()]
        if len(parts) != 2:
            return f"{len(parts)} responses between lines of ******, 2 asked for"
        return "the two responses are the same" if parts[0].casefold() == parts[1].casefold() else None


class Language(Constraint):
    """The response is in a language; a text too short to tell is not."""

    kind: ClassVar[str] = "language"
    language: str
    """ISO 639-1 code."""

    @model_validator(mode="after")
    def _known(self) -> Language:
        if self.language not in LANGUAGES:
            raise ValueError(f"{self.language!r} cannot be told here, {nearest(self.language, list(LANGUAGES))}")
        return self

    def fault(self, text: str) -> str | None:
        """Tell the language."""
        found = detect(text)
        if found.code == self.language:
            return None
        return f"language {found.code}{f' ({found.reason})' if found.code == UNKNOWN else ''}, not {self.language}"


class OneOf(Constraint):
    """The response is, or holds, one of several answers, and no other of them."""

    kind: ClassVar[str] = "one_of"
    choices: list[str] = Field(min_length=2)
    """The answers."""

    def fault(self, text: str) -> str | None:
        """Look for each."""
        plain = text.casefold()
        found = [choice for choice in self.choices if choice.strip().casefold() in plain]
        # "maybe not" holds "maybe": the longer one is meant.
        inner = {a for a in found for b in found if a is not b and a.casefold() in b.casefold()}
        held = [choice for choice in found if choice not in inner]
        return None if len(held) == 1 else f"holds {len(held)} of the {len(self.choices)} answers, 1 asked for"


class ParagraphStart(Constraint):
    """A paragraph begins with a word."""

    kind: ClassVar[str] = "paragraph_start"
    paragraph: int = Field(ge=1)
    """Which, from 1."""
    word: str = Field(min_length=1)
    """The word, in any case."""
    total: int | None = Field(None, ge=1)
    """How many paragraphs there must be."""

    def fault(self, text: str) -> str | None:
        """Look at the paragraph."""
        parts = paragraphs(text)
        if self.total is not None and len(parts) != self.total:
            return f"{len(parts)} paragraphs, exactly {self.total} asked for"
        if len(parts) < self.paragraph:
            return f"{len(parts)} paragraphs, and number {self.paragraph} was asked about"
        first = next(iter(words(parts[self.paragraph - 1][:500])), "")
        right = first.casefold() == self.word.strip().strip(".,!?\"'").casefold()
        return None if right else f"paragraph {self.paragraph} begins with {first!r}, not {self.word!r}"


class Repeats(Constraint):
    """The response begins by repeating a text, word for word, and goes on."""

    kind: ClassVar[str] = "repeats"
    text: str = Field(min_length=1)
    """The text, the prompt for instance; case makes no difference."""

    def fault(self, text: str) -> str | None:
        """Compare the start."""
        plain, wanted = text.strip().casefold(), self.text.strip().casefold()
        if not plain.startswith(wanted):
            return "does not begin by repeating the text"
        return None if words(plain[len(wanted) :]) else "says nothing after repeating the text"
