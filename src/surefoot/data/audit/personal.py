"""Personal data of fixed forms: e-mail addresses, phone numbers, IBANs, payment cards, addresses of computers.

Forms with check digits are checked; the others are told by their shape alone. Names and postal addresses have no shape.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from surefoot.data.audit.characters import Hit
from surefoot.data.audit.findings import Severity, masked, masked_mail

_MAIL = re.compile(r"(?<![\w.+-])[A-Za-z0-9][\w.+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])")
_RESERVED = re.compile(r"(?:^|[@.])(?:example\.(?:com|org|net)|(?:[\w-]+\.)*(?:example|invalid|test|localhost))$", re.I)

_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])")
_IBAN_COUNTRIES: Final = """
AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 ES24 FI18 FO18 FR27
GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27
MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23
TN24 TR26 UA29 VA22 VG24 XK20
"""
_IBAN_LENGTHS: Final = {entry[:2]: int(entry[2:]) for entry in _IBAN_COUNTRIES.split()}
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])(?!\.\d)")
_ISSUERS = re.compile(
    r"4|5[1-5]|2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720)|3[47]|3(?:0[0-5]|[68])|6(?:011|5|4[4-9])|35(?:2[89]|[3-8])"
)

_PHONES = tuple(
    re.compile(pattern)
    for pattern in (
        # with a country code
        r"(?<![\w+])(?:\+|00)[1-9]\d{0,2}[ ./-]?(?:\(\d{1,5}\)[ ./-]?)?\d{1,5}(?:[ ./-]?\d{2,8}){1,5}(?!\w)",
        # North America
        r"(?<![\w.+-])(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[.-])[2-9]\d{2}[.-]\d{4}(?![\w-])",
        # a national number: a zero, an area code, a separator, the rest
        r"(?<![\w.,:+/-])\(?0[1-9]\d{1,4}\)?(?: |-|/| / )\d{3,8}(?:[ -]\d{2,5}){0,3}(?![\w/:-])",
        # five pairs, as in France
        r"(?<![\w.,:+/-])0[1-9](?:[ .]\d{2}){4}(?![\w/:-])",
    )
)
_CALLED = re.compile(
    r"\b(?:phone|telephone|mobile|cell|call|text|whatsapp|tel|fax|telefon|handy)\b[^\n\d]{0,24}"
    r"(\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}|\d{3}[ .-]\d{4}|\d{10,11})(?![\w-])",
    re.IGNORECASE,
)
_SSN = re.compile(r"(?<![\w.-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")

_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-])(?!\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
_VERSION = re.compile(r"(?:version|release|ver|v|section|chapter)[ .]?$", re.IGNORECASE)
_DIGITS = re.compile(r"\d[ ./()-]?\d[ ./()-]{0,3}\d[ ./()-]{0,3}\d")

Found = Iterator[tuple[int, int, str]]
"""Where a value begins and ends, and how it is shown."""


def personal_data(text: str, taken: Sequence[tuple[int, int]] = ()) -> Iterator[Hit]:
    """E-mail addresses, IBANs, payment cards, US social security numbers, phone numbers, IP addresses.

    Args:
        text: the text.
        taken: places of what is something else already.
    """
    finders = _WITH_DIGITS if _DIGITS.search(text) else _WITHOUT
    if finders is _WITHOUT and "@" not in text and text.count(":") < 3:
        return
    taken = list(taken)
    for kind, severity, find in finders:
        free = [f for f in find(text) if not any(f[0] < end and start < f[1] for start, end in taken)]
        taken += [(start, end) for start, end, _ in free]
        if free:
            yield Hit(kind, severity, free[0][2], len(free))


def _mails(text: str) -> Found:
    for found in _MAIL.finditer(text):
        if not _RESERVED.search(found[0].partition("@")[2]):
            yield *found.span(), masked_mail(found[0])


def _ibans(text: str) -> Found:
    for found in _IBAN.finditer(text):
        # The pattern may have run on into a word behind the number.
        end = found.start() + _spaced_length(found[0], _IBAN_LENGTHS.get(found[0][:2], 0))
        value = text[found.start() : end]
        if end > found.start() and is_iban(value):
            yield found.start(), end, f"{value[:2]} IBAN, {masked(value, end=2)}"


def _spaced_length(run: str, length: int) -> int:
    """How many characters hold so many that are no blanks; 0 when there are fewer."""
    places = [place for place, character in enumerate(run) if character != " "]
    return places[length - 1] + 1 if 0 < length <= len(places) else 0


def is_iban(value: str) -> bool:
    """Whether a text is an IBAN of its country's length with right check digits."""
    plain = value.replace(" ", "")
    if not plain.isalnum() or len(plain) != _IBAN_LENGTHS.get(plain[:2], 0):
        return False
    return int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


def _cards(text: str) -> Found:
    for found in _CARD.finditer(text):
        digits = re.sub(r"\D", "", found[0])
        if _ISSUERS.match(digits) and has_luhn_digit(digits):
            yield *found.span(), f"card number, {masked(found[0], end=2)}"


def has_luhn_digit(digits: str) -> bool:
    """Whether the last digit is right by Luhn's rule; a row of one and the same digit never is."""
    if len(set(digits)) == 1:
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def _social_security(text: str) -> Found:
    for found in _SSN.finditer(text):
        yield *found.span(), f"shaped as a US social security number, {masked(found[0], end=2)}"


def _phones(text: str) -> Found:
    spans: list[tuple[int, int]] = []
    for pattern in _PHONES:
        spans += [f.span() for f in pattern.finditer(text) if 8 <= sum(c.isdigit() for c in f[0]) <= 15]
    spans += [found.span(1) for found in _CALLED.finditer(text)]
    last = 0
    for start, end in sorted(spans):
        if start >= last:
            last = end
            yield start, end, masked(text[start:end], start=3 if text[start] == "+" else 0, end=2)


def _addresses(text: str) -> Found:
    for found in _IPV4.finditer(text):
        numbers = found[0].split(".")
        # Numbers of one digit throughout are versions and sections far more often than addresses.
        if all(len(number) == 1 for number in numbers) or _VERSION.search(text[: found.start()][-9:]):
            continue
        if _is_public(found[0]):
            yield *found.span(), f"IPv4 {numbers[0]}..."
    if text.count(":") >= 3:
        for found in _IPV6.finditer(text):
            groups = [group for group in found[0].split(":") if group]
            if len(groups) >= 3 and max(map(len, groups)) >= 3 and _is_public(found[0]):
                yield *found.span(), f"IPv6 {groups[0]}:..."


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


_Finder = tuple[str, Severity, Callable[[str], Found]]
_WITHOUT: Final[tuple[_Finder, ...]] = (
    ("personal/e-mail", "warning", _mails),
    ("personal/ip-address", "warning", _addresses),
)
_WITH_DIGITS: Final[tuple[_Finder, ...]] = (
    ("personal/iban", "error", _ibans),
    ("personal/card", "error", _cards),
    ("personal/social-security", "error", _social_security),
    *_WITHOUT,
    ("personal/phone", "warning", _phones),
)
