"""What an audit finds, and evidence that shows what was found without giving it away."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Severity = Literal["info", "warning", "error"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "error")
RULES: Final = 1
"""Version of the rules; a summary names it, so that two summaries are compared only where it is the same."""
SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing found in one row.

    Attributes:
        file: the row's file as shown to users.
        row: its line, from 1.
        kind: ``family/kind``, as listed in docs/data.md.
        severity: ``error``: not to be trained on as it is; ``warning``: to be looked at; ``info``: worth knowing.
        evidence: what was seen, short; personal data and secrets are masked.
        count: how often in this row (of a phrase: in how many texts).
    """

    file: str
    row: int
    kind: str
    severity: Severity
    evidence: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Suspicion:
    """How much a pair's scores speak against its label.

    Attributes:
        file, row: the pair.
        margin: score of the chosen answer less that of the rejected one.
        p_right: probability that the label is right, from the margin, by a logistic fit to all pairs.
    """

    file: str
    row: int
    margin: float
    p_right: float


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that an audit found.

    Attributes:
        source: what was audited.
        sha256: its digest; None for a hub id.
        rows: rows read, unreadable ones among them.
        kinds_of_rows: how many prompts, demonstrations, preference pairs and others.
        findings: in the order of files and rows within each kind.
        notes: what was not looked at and why, and other things true of the whole.
        suspicions: every scored pair, the most suspicious first; empty without scores.
        against: the evaluation data compared with, None without.
        evaluation_rows: evaluation rows that training rows overlap with.
    """

    source: str
    sha256: str | None
    rows: int
    kinds_of_rows: Mapping[str, int]
    findings: tuple[AuditFinding, ...]
    notes: tuple[str, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    against: str | None = None
    evaluation_rows: int = 0

    @property
    def has_errors(self) -> bool:
        """Whether something must be put right before training."""
        return any(finding.severity == "error" for finding in self.findings)

    def counts(self) -> dict[str, dict[str, Any]]:
        """By kind, errors first: its worst ``severity``, and how many ``rows`` have it."""
        severity: dict[str, Severity] = {}
        places: dict[str, set[tuple[str, int]]] = {}
        for found in self.findings:
            severity[found.kind] = worst([severity.get(found.kind, "info"), found.severity])
            places.setdefault(found.kind, set()).add((found.file, found.row))
        ordered = sorted(places, key=lambda kind: (-SEVERITIES.index(severity[kind]), kind))
        return {kind: {"severity": severity[kind], "rows": len(places[kind])} for kind in ordered}

    def summary(self, *, date: str) -> dict[str, Any]:
        """What goes beside the data and into a run's lineage."""
        by_severity = Counter(found.severity for found in self.findings)
        return {
            "rules": RULES,
            "date": date,
            "sha256": self.sha256,
            "rows": self.rows,
            "against": self.against,
            "findings": {severity: by_severity[severity] for severity in reversed(SEVERITIES)},
            "kinds": self.counts(),
        }

    def as_json(self) -> dict[str, Any]:
        """The whole report as JSON has it."""
        return {**asdict(self), "counts": self.counts(), "rules": RULES}


def worst(severities: Sequence[Severity]) -> Severity:
    """The gravest of some severities."""
    return max(severities, key=SEVERITIES.index)


# ------------------------------------------------------------------------------------------------------ evidence

_LONG_TOKEN = re.compile(r"[A-Za-z0-9+/_=.-]{20,}")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_NUMBER = re.compile(r"\d(?:[ ./()-]*\d){5,}")


def masked(value: str, *, start: int = 0, end: int = 0) -> str:
    """A value with all but its first and last characters hidden, and its length: ``AKIA... (20 characters)``."""
    hidden = f"{value[:start]}...{value[len(value) - end :] if end else ''}"
    return f"{hidden} ({len(value)} characters)"


def masked_mail(address: str) -> str:
    """``m...@p....de``: enough to find it again in its row."""
    name, _, domain = address.partition("@")
    host, _, top = domain.rpartition(".")
    return f"{name[:1]}...@{host[:1]}....{top}"


def excerpt(text: str, at: int = 0, *, width: int = SHOWN_CHARACTERS) -> str:
    """A piece of a text around a place, on one line, with invisible characters written out and secrets masked."""
    start = max(0, at - width // 4)
    # Masked with what surrounds it: the piece alone may hold half of a number.
    window = text[max(0, start - 80) : start + width + 80]
    safe = _redacted(window)
    piece = text[start : start + width] if safe == window else safe[: 2 * width]
    shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in " ".join(piece.split()))
    return f"{'...' if start > 0 else ''}{shown}{'...' if start + width < len(text) else ''}"


def _redacted(text: str) -> str:
    text = _MAIL.sub(lambda found: masked_mail(found[0]), text)
    text = _LONG_TOKEN.sub(lambda found: masked(found[0], start=2), text)
    return _NUMBER.sub(lambda found: masked(found[0], end=2), text)
