"""Keys, tokens and passwords: those of known forms, and words that look like passwords beside one that says so."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from typing import Final, NamedTuple

from surefoot.data.audit.characters import Hit, has_any
from surefoot.data.audit.findings import masked


class _Form(NamedTuple):
    """A known form: the texts one of which must be there, and the pattern."""

    kind: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]


_FORMS: Final = tuple(
    _Form(f"secret/{kind}", marks, re.compile(pattern))
    for kind, marks, pattern in (
        ("aws-key", ("AKIA", "ASIA"), r"(?<![A-Za-z0-9])A(?:KIA|SIA)[0-9A-Z]{16}(?![A-Za-z0-9])"),
        (
            "github-token",
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})",
        ),
        (
            "slack-token",
            ("xox", "hooks.slack.com/"),
            r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
        ),
        ("google-key", ("AIza",), r"(?<![A-Za-z0-9])AIza[0-9A-Za-z_-]{35}"),
        ("stripe-key", ("k_live_",), r"(?<![A-Za-z0-9])[srp]k_live_[0-9A-Za-z]{16,}"),
        ("model-hub-token", ("hf_",), r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}"),
        ("package-token", ("npm_", "pypi-"), r"(?<![A-Za-z0-9])(?:npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,})"),
        ("api-key", ("sk-",), r"(?<![A-Za-z0-9])sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{20,}"),
        ("private-key", ("PRIVATE KEY-----",), r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"),
        ("url-password", ("://",), r"(?<=://)[^\s/:@]{1,64}:[^\s/@]{3,64}(?=@[\w.-]+)"),
    )
)
_JWT = re.compile(r"(?<![\w-])(eyJ[\w-]{8,})\.eyJ[\w-]{8,}\.[\w-]*")
_WORDS: Final = ("pass", "pwd", "secret", "key", "token", "credential", "kennwort")
_NAMED = re.compile(
    r"(?:pass(?:word|wd|code|phrase|wort)?|pwd|secret|api[_ -]?key|access[_ -]?key"
    r"|(?:(?:auth|access|bearer)[_ -]?)?token|credentials?|kennwort)\b[\"']?"
    r"(?:[^\n.;]{0,40}?\b(?:is|are|was|lautet|ist)\b|[^\n.;=:]{0,20}[=:]>?)\s*"
    r"[\"'`]?([^\s\"'`,;<>]{8,128})",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"your|example|placeholder|changeme|x{4,}|\*{3,}|\.{3}|[{}$]", re.IGNORECASE)
MIN_ENTROPY: Final = 2.75
"""Bits a character that a password beside its name has at least; ordinary words of its length have less."""


def credentials(text: str) -> tuple[list[Hit], list[tuple[int, int]]]:
    """Keys, tokens and passwords in a text, and where they begin and end."""
    hits: list[Hit] = []
    known: list[tuple[int, int]] = []
    for form in _FORMS:
        if has_any(text, form.marks):
            found = list(form.pattern.finditer(text))
            known += [one.span() for one in found]
            if found:
                shown = "begins a private key" if form.kind == "secret/private-key" else masked(found[0][0], start=4)
                hits.append(Hit(form.kind, "error", shown, len(found)))
    if "eyJ" in text:
        tokens = [found for found in _JWT.finditer(text) if _is_jwt_header(found[1])]
        known += [token.span() for token in tokens]
        if tokens:
            hits.append(Hit("secret/web-token", "error", masked(tokens[0][0], start=3), len(tokens)))
    lower = text.lower()
    if has_any(lower, _WORDS):
        named = [found for found in _NAMED.finditer(text) if _looks_random(found[1])]
        new = [found for found in named if not any(s < found.end(1) and found.start(1) < e for s, e in known)]
        if new:
            said = new[0][0][: new[0].start(1) - new[0].start()].split()[0][:20].rstrip("\"'`:=")
            known += [found.span(1) for found in new]
            hits.append(Hit("secret/password", "error", f"{said}: {masked(new[0][1])}", len(new)))
    return hits, known


def _is_jwt_header(part: str) -> bool:
    try:
        header = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return False
    return isinstance(header, dict) and "alg" in header


def _looks_random(value: str) -> bool:
    """Letters and digits, varied, and no stand-in for a password."""
    value = value.rstrip(".!?)")
    if len(value) < 8 or _PLACEHOLDER.search(value) or "://" in value:
        return False
    if not any(c.isdigit() for c in value) or not any(c.isalpha() for c in value):
        return False
    return entropy(value) >= MIN_ENTROPY


def entropy(value: str) -> float:
    """Bits a character, from how often each stands in the text."""
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
