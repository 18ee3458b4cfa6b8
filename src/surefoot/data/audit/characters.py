"""Odd characters: texts read in the wrong encoding, invisible and misleading characters, mixed normal forms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from surefoot.data.audit.findings import Severity, excerpt


def has_any(text: str, marks: Iterable[str]) -> bool:
    """Whether one of the marks is in the text: the quick look before a slow pattern."""
    for mark in marks:  # noqa: SIM110 - twice as fast as any() here, and it is most of an audit's work
        if mark in text:
            return True
    return False


class Hit(NamedTuple):
    """What one check saw in one text: kind, severity, evidence and how often."""

    kind: str
    severity: Severity
    evidence: str
    times: int = 1


_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_JOINERS = re.compile(r"(?<=[a-z0-9 ])[\u200c\u200d]|[\u200c\u200d](?=[a-z0-9 ])", re.IGNORECASE)
_ZERO_WIDTH = re.compile(r"[\u200b\u2060-\u2064\ufeff\u180e\u00ad]")
_OVERRIDES = re.compile(r"[\u202d\u202e]")
_EMBEDDINGS = re.compile(r"[\u202a-\u202c\u2066-\u2069]")
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
# A waving black flag begins the sequences of England, Scotland and Wales; elsewhere tags spell hidden text.
_TAGS = re.compile(r"(?<!\U0001f3f4)(?<![\U000e0020-\U000e007e])[\U000e0020-\U000e007e]+")
_SELECTORS = re.compile(r"[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}")
_MIXED_SCRIPTS = re.compile(r"[A-Za-z][\u0400-\u04ff]|[\u0400-\u04ff][A-Za-z]")
_INVISIBLE = re.compile(r"[\u200b-\u200d\u2060-\u2064\ufeff\u180e\u00ad\U000e0000-\U000e007f]")

# Bytes 0x80 to 0xBF as Windows-1252 and Latin-1 show them: what follows a lead byte in text read by the wrong name.
_BYTE_OF: Final = {bytes([b]).decode("cp1252", "ignore") or chr(b): b for b in range(0x80, 0xC0)} | {
    chr(b): b for b in range(0x80, 0x100)
}
_FOLLOWING: Final = "".join(c for c, b in _BYTE_OF.items() if b < 0xC0)
_MISREAD = re.compile(f"(?:[\u00c2-\u00f4][{re.escape(_FOLLOWING)}]{{1,3}})+")


def odd_characters(text: str) -> Iterator[Hit]:
    """Everything odd in a text, mixed normal forms excepted: those need the other rows."""
    yield from _of(text, _CONTROLS, "encoding/control", "warning")
    if text.isascii():
        return
    yield from _of(text, _SURROGATES, "encoding/surrogate", "error")
    if "\ufffd" in text:
        evidence = excerpt(text, text.index("\ufffd"))
        yield Hit("encoding/replacement", "warning", evidence, text.count("\ufffd"))
    wrong = [found for found in _MISREAD.finditer(text) if _reads_as_utf8(found[0])]
    if wrong:
        yield Hit("encoding/mojibake", "warning", excerpt(text, wrong[0].start()), len(wrong))
    zero_width = [*_ZERO_WIDTH.finditer(text), *_JOINERS.finditer(text)]
    if zero_width:
        yield Hit("encoding/zero-width", "warning", excerpt(text, zero_width[0].start()), len(zero_width))
    yield from _of(text, _OVERRIDES, "encoding/bidirectional", "error")
    if not _RIGHT_TO_LEFT.search(text):
        yield from _of(text, _EMBEDDINGS, "encoding/bidirectional", "warning")
    yield from _of(text, _TAGS, "encoding/hidden", "error")
    yield from _of(text, _SELECTORS, "encoding/hidden", "error")
    yield from _of(text, _MIXED_SCRIPTS, "encoding/mixed-scripts", "warning")


def _of(text: str, pattern: re.Pattern[str], kind: str, severity: Severity) -> Iterator[Hit]:
    first = pattern.search(text)
    if first is not None:
        count = sum(1 for _ in pattern.finditer(text))
        yield Hit(kind, severity, excerpt(text, first.start()), count)


def _reads_as_utf8(run: str) -> bool:
    """Whether a run of accented letters and signs is what UTF-8 looks like in a single-byte encoding."""
    try:
        meant = bytes(_BYTE_OF[character] for character in run).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return False
    likely = [c for c in meant if c < "\u0180" or "\u2000" <= c < "\u2c00" or c >= "\U0001f000"]
    # A capital before a quotation mark makes one letter of a rarer script by chance; two in a row are no chance.
    return bool(likely) or len(meant) > 1


def is_decomposed(text: str) -> bool:
    """Whether letters and their accents stand apart where one character has both (not in normal form C)."""
    return not text.isascii() and not unicodedata.is_normalized("NFC", text)


def without_invisible(text: str) -> str:
    """The text without zero-width characters and tags."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def hidden_tags(text: str) -> str:
    """What tag characters (invisible copies of ASCII) in the text spell; empty without any."""
    if text.isascii():
        return ""
    return "".join(chr(ord(c) - 0xE0000) for run in _TAGS.findall(text) for c in run)


def folded(text: str) -> str:
    """The text as two spellings of it share it: one case, one normal form, single blanks, nothing invisible."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", without_invisible(text))
    return " ".join(text.casefold().split())
