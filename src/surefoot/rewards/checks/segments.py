"""Words, sentences, paragraphs and list items of a text, in time linear in it. Torch-free.

They are rules of thumb: writing without spaces between words (Chinese, Japanese, Thai) has no words here, and a full
stop behind an abbreviation that is not on the list ends a sentence.
"""

from __future__ import annotations

import re
from typing import Final

import regex

WORD: Final = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
# Vowel signs and accents that stand behind their letter are part of the word; Python's own \w leaves them out.
MARKED_WORD: Final = regex.compile(r"[\p{L}\p{M}\p{N}]++(?:['’\-][\p{L}\p{M}\p{N}]++)*+")
BULLET: Final = re.compile(r"^[ \t]*[*\-+•–][ \t]+(?=\S)", re.MULTILINE)
NUMBERED: Final = re.compile(r"^[ \t]*\d{1,3}[.)][ \t]+(?=\S)", re.MULTILINE)
LIST_MARK: Final = re.compile(r"^[ \t]*(?:[*\-+•–]|\d{1,3}[.)]|#{1,6})[ \t]+", re.MULTILINE)
STARS: Final = re.compile(r"^[ \t]*\*[ \t]?\*[ \t]?\*[ \t]*$", re.MULTILINE)
BLANK: Final = re.compile(r"\n[ \t]*\n\s*")

_END: Final = re.compile(
    r"""(?<![.!?…])[.!?…]++["'”’»)\]]*+(?=\s|$)
    | [。！？]++[」』”’)]*+
    | \n[ \t]*+\n
    | \n(?=[ \t]*+(?:[*\-+•–]|\d{1,3}[.)])[ \t])""",
    re.VERBOSE,
)
_ABBREVIATIONS: Final = (
    "mr mrs ms dr prof sr jr st vs etc approx dept est fig figs no vol eq inc ltd co corp e.g i.e cf al "
    "ca z.b d.h bzw usw ggf nr u.a p.ej sra m mme"
)
_ABBREVIATED: Final = frozenset(_ABBREVIATIONS.split())
LOOK_BACK: Final = 24


def words(text: str) -> list[str]:
    """Runs of letters and digits, with apostrophes and hyphens inside: ``don't`` and ``well-known`` are one each."""
    found: list[str] = WORD.findall(text) if text.isascii() else MARKED_WORD.findall(text)
    return found


def sentences(text: str) -> list[str]:
    """Parts that end in a full stop, a question or exclamation mark, an empty line, or before a list item.

    Parts without a letter or digit are none. A full stop behind an abbreviation or a single letter ends nothing, unless
    nothing follows it.
    """
    found, start = [], 0
    for end in _END.finditer(text):
        if end[0][0] == "." and end.end() < len(text) and _abbreviated(text, start, end):
            continue
        found.append(text[start : end.end()])
        start = end.end()
    found.append(text[start:])
    return [part.strip() for part in found if WORD.search(part)]


def _abbreviated(text: str, start: int, end: re.Match[str]) -> bool:
    if end[0] != "." or not text[end.start() - 1 : end.start()].isalnum():
        return False
    before = text[max(start, end.start() - LOOK_BACK) : end.start()].split()
    last = before[-1].lstrip("([\"'“‘")
    if last.isdigit():  # "1." at the start of a sentence numbers it
        return len(last) <= 3 and end.start() - start <= LOOK_BACK and text[start : end.start()].strip() == last
    return last.casefold() in _ABBREVIATED or (
        last != "I" and all(len(part) == 1 and part.isalpha() for part in last.split("."))
    )


def paragraphs(text: str, divider: str = "blank") -> list[str]:
    """Parts between empty lines (``blank``) or between lines of three stars (``stars``), empty ones left out."""
    parts = (STARS if divider == "stars" else BLANK).split(text)
    return [part.strip() for part in parts if part.strip()]
