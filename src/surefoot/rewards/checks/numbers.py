"""Numbers as people write them, read from text. Torch-free.

Read are digits of any script, thousands separators, decimals, signs, percent, fractions (``3/4``, ``1 1/2``, ``½``,
``\\frac{3}{4}``), powers of ten (``1.5e3``, ``1.5 x 10^3``), the words hundred to trillion behind a number, and a
unit. What can be read in more than one way is found and left without a value. All in time linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, InvalidOperation
from typing import Final, Literal

DecimalMark = Literal["point", "comma"]

EXACT: Final = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, DivisionByZero])
LONGEST: Final = 1000
"""Characters of a number at most; a longer one is left without a value."""
MULTIPLIERS: Final = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}

_SIGNS: Final = dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d"), "-")
_TABLE: Final = _SIGNS | {0x2044: "/", 0x2215: "/", 0x066B: ".", 0x066C: ",", 0xD7: "x", 0xB7: "x", 0x22C5: "x"}
_SPACED: Final = re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\\[,!])(?=\d{3}(?!\d))")
_RAISED: Final = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,9}")
_FROM_RAISED: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_VULGAR: Final = re.compile("([¼½¾⅐-⅞])")
_FRAC: Final = re.compile(r"\\[dt]?frac\s{0,3}\{\s{0,3}(-?\d{1,1000})\s{0,3}\}\s{0,3}\{\s{0,3}(\d{1,1000})\s{0,3}\}")
_LATEX: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf|operatorname)\s{0,3}\{([^{}\n]{0,80})\}|\{,\}|\\([%$,!; ])")
_FOREIGN_DIGIT: Final = re.compile(r"(?:(?![0-9])\d)+")
_TIMES: Final = re.compile(r"\\(?:times|cdot)\b")

_NUMBER: Final = re.compile(
    r"""(?<![A-Za-z\u00c0-\u024f0-9_.])
    (?:(?<![\w)%\]])(?P<sign>[+-]))?+
    (?P<currency>[$€£¥]\s?)?+
    (?:(?<![\w)%\]])(?P<inner>[+-]))?+
    (?P<body>(?:\d|\.\d)[\d.,'_’]*+)""",
    re.VERBOSE,
)
_EXPONENT: Final = re.compile(r"[eE]([+-]?\d{1,9})(?![\w.])")
_POWER: Final = re.compile(r"\s{0,3}(?:x|\*)\s{0,3}10\s{0,3}(?:\^|\*\*)\s{0,3}[{(]?([+-]?\d{1,9})(?!\d)[})]?")
_BARE_POWER: Final = re.compile(r"(?:\^|\*\*)\s{0,3}[{(]?([+-]?\d{1,9})(?!\d)[})]?")
_OVER: Final = re.compile(r"\s?/\s?(\d{1,1000})(?!\d)(?!\s?/\s?\d)(?![.,]\d)")
_MIXED: Final = re.compile(r"\s{1,3}(\d{1,9})/(\d{1,9})(?!\d)(?!/\d)")
_DATE: Final = re.compile(r"\s?/\s?\d+\s?/\s?\d")
_PERCENT: Final = re.compile(r"\s?(?:%|per\s?cent\b|pct\b)", re.IGNORECASE)
_WORD: Final = re.compile(r"[\s-]?(hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)
_UNIT: Final = re.compile(r"\s{0,2}(°\s?[CF]\b|[A-Za-zµμΩ°€£¥$][A-Za-zµμΩ°]*(?:/[A-Za-z]+)?(?:\^?[23](?!\d))?)")
_TRAILING: Final = ".,'’_"
_GROUPED: Final = {
    "point": (re.compile(r"\d*\.?\d+|\d+\."), re.compile(r"\d{1,3}(?:,\d{2,3})*,\d{3}(?:\.\d+)?")),
    "comma": (re.compile(r"\d*,?\d+|\d+,"), re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?")),
}
_GROUPED_OTHERWISE: Final = re.compile(r"\d{1,3}(?:(?P<by>[_'’])\d{3})(?:(?P=by)\d{3})*(?:[.,]\d+)?")


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text.

    Attributes:
        text: as it stands there, after signs and digits have been made plain.
        value: what it is; 75 % is 0.75. None: it can be read in more than one way, or not at all.
        percent: whether a percent sign or word follows.
        unit: the word behind or the currency before it; empty without one.
        start, end: its place in the plain text.
    """

    text: str
    value: Decimal | None
    percent: bool = False
    unit: str = ""
    start: int = 0
    end: int = 0


def find_numbers(text: str, *, decimal: DecimalMark = "point") -> Iterator[Number]:
    """The numbers of a text, in order, each read when it is asked for.

    A digit behind a Latin letter belongs to a name (``H2O``, ``x2``), a hyphen behind a letter, digit or bracket is no
    sign (``3-4``), and a number with two slashes is a date.

    Args:
        text: anything.
        decimal: whether ``1.5`` or ``1,5`` is one and a half; the other mark groups thousands.
    """
    plain, place = plain_text(text), 0
    while found := _NUMBER.search(plain, place):
        number = _read(plain, found, decimal)
        yield number
        place = max(number.end, found.start() + 1)


def plain_text(text: str) -> str:
    """The text with ASCII digits, signs and slashes, LaTeX's spacing, text and fractions written out."""
    text = _SPACED.sub("_", text)
    if "\\" in text or "{,}" in text:
        text = _FRAC.sub(lambda m: f"{' ' * m.string[: m.start()][-1:].isdigit()}{m[1]}/{m[2]} ", text)
        text = _LATEX.sub(lambda m: m[1] or m[2] or ("," if m[0] == "{,}" else " "), _TIMES.sub("x", text))
    if text.isascii():
        return text
    text = _RAISED.sub(lambda m: "^" + m[0].translate(_FROM_RAISED), _VULGAR.sub(r" \1", text))
    text = unicodedata.normalize("NFKC", text).translate(_TABLE)
    return _FOREIGN_DIGIT.sub(lambda m: "".join(str(unicodedata.decimal(c)) for c in m[0]), text)


def _read(text: str, found: re.Match[str], decimal: DecimalMark) -> Number:
    body = found["body"].rstrip(_TRAILING)
    start, end = found.start(), found.start("body") + len(body)
    value = _value(body, decimal)
    if date := _DATE.match(text, end):
        return Number(text[start : date.end()], None, start=start, end=date.end())
    if value is not None:
        value, end = _with_powers(text, end, value, body)
    negative = "-" in ((found["sign"] or "") + (found["inner"] or ""))
    if value is not None and negative:
        value = value.copy_negate()
    percent = _PERCENT.match(text, end)
    if percent:
        value, end = None if value is None else EXACT.scaleb(value, -2), percent.end()
    unit = _UNIT.match(text, end)
    name = unit[1] if unit and not percent else (found["currency"] or "").strip()
    shown = text[start:end].strip()
    if unit and any(c.isdigit() for c in unit[1]):  # the 2 of m^2 is no number of its own
        end = unit.end()
    return Number(shown, value, bool(percent), name, start, end)


def _value(body: str, decimal: DecimalMark) -> Decimal | None:
    if len(body) > LONGEST:
        return None
    plain, grouped = _GROUPED[decimal]
    if plain.fullmatch(body):
        return EXACT.create_decimal(body.replace(",", "."))
    mark, group = (".", ",") if decimal == "point" else (",", ".")
    if grouped.fullmatch(body):
        return EXACT.create_decimal(body.replace(group, "").replace(mark, "."))
    if _GROUPED_OTHERWISE.fullmatch(body) and group not in body:
        return EXACT.create_decimal(re.sub("[_'’]", "", body).replace(mark, "."))
    return None


def _with_powers(text: str, end: int, value: Decimal, body: str) -> tuple[Decimal | None, int]:
    """What stands behind the digits: an exponent, a fraction, a word for a power of ten."""
    if exponent := _EXPONENT.match(text, end) or _POWER.match(text, end):
        return EXACT.scaleb(value, int(exponent[1])), exponent.end()
    if power := _BARE_POWER.match(text, end):
        return (EXACT.scaleb(Decimal(1), int(power[1])) if body == "10" else None), power.end()
    if over := _OVER.match(text, end):
        below = Decimal(over[1])
        return (EXACT.divide(value, below) if below else None), over.end()
    mixed = _MIXED.match(text, end) if body.isdigit() else None
    if mixed and 0 < int(mixed[1]) < int(mixed[2]):
        return EXACT.add(value, EXACT.divide(Decimal(mixed[1]), Decimal(mixed[2]))), mixed.end()
    if word := _WORD.match(text, end):
        return EXACT.scaleb(value, MULTIPLIERS[word[1].lower()]), word.end()
    return value, end
