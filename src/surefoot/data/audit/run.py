"""``audit(source)``: every check on every row, read once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from surefoot.data.audit.characters import Hit, is_decomposed
from surefoot.data.audit.findings import SEVERITIES, AuditFinding, AuditReport, Suspicion, excerpt
from surefoot.data.audit.labels import contradicted, matched, read_scores, suspicions
from surefoot.data.audit.overlap import Side, overlaps
from surefoot.data.audit.passages import AuditRow, read_row
from surefoot.data.audit.repeated import Repeats
from surefoot.data.audit.telling import Sayings
from surefoot.data.audit.text_checks import AuditOptions, TextChecks
from surefoot.data.audit.words import Vocabulary
from surefoot.data.fingerprint import fingerprint_source
from surefoot.data.formats import RawRow, raw_rows
from surefoot.errors import DataError


def audit(source: str, options: AuditOptions | None = None) -> AuditReport:
    """Look through prompts, demonstrations or preference pairs.

    Args:
        source: a JSONL or Parquet file, a folder of them, or a hub id.
        options: what to look at.
    Raises:
        DataError: something that was named cannot be read. What is wrong with a row is a finding.
        MissingExtra: names were asked for and spaCy is not installed.
    """
    options = options or AuditOptions()
    work = _Audit(options)
    for raw in raw_rows(source)[0]:
        work.add(raw)
    if not work.read:
        raise DataError("there are no rows to audit", got=source)
    findings, notes, ranked, repeated = work.finish()
    findings.sort(key=lambda f: (-SEVERITIES.index(f.severity), f.kind, f.file, f.row))
    return AuditReport(
        source=source,
        sha256=fingerprint_source(source),
        rows=work.read,
        kinds_of_rows=dict(work.kinds),
        findings=tuple(findings),
        notes=tuple(notes),
        suspicions=tuple(ranked),
        against=options.against,
        evaluation_rows=repeated,
    )


class _Audit:
    """Checks that see one row at a time, and what those need that see all."""

    def __init__(self, options: AuditOptions) -> None:
        self.options = options
        self.read = 0
        self.kinds: Counter[str] = Counter()
        self.side = Side(Vocabulary())
        self._texts = TextChecks.of(options)
        self._findings: list[AuditFinding] = []
        self._repeats = Repeats(self.side)
        self._sayings = Sayings(self.side.vocabulary)
        self._decomposed: list[AuditFinding] = []
        self._accented = 0

    def add(self, raw: RawRow) -> None:
        """Check one row."""
        self.read += 1
        if raw.value is None:
            self._find(raw, Hit("row/unreadable", "error", raw.fault or ""))
            return
        row = read_row(raw.file, raw.line, raw.value, column=self.options.column, label=self.options.label)
        self.kinds[row.kind] += 1
        if row.kind == "unknown":
            shown = ", ".join(map(str, raw.value))[:80]
            self._find(
                raw, Hit("row/unknown", "error", f"no {self.options.column}, messages or pair; columns: {shown}")
            )
        for hit in self._texts.of_row(row):
            self._find(raw, hit)
        self._note_accents(row)
        if row.kind != "unknown":
            words = self.side.add(row)
            self._repeats.add(row, words)
            self._sayings.add(row, words)

    def _find(self, raw: RawRow, hit: Hit) -> None:
        self._findings.append(AuditFinding(raw.file, raw.line, *hit))

    def _note_accents(self, row: AuditRow) -> None:
        apart = [p for p in row.passages if is_decomposed(p.text)]
        self._accented += any(not p.text.isascii() for p in row.passages)
        if apart:
            evidence = f"{apart[0].place}: letters and accents apart: {excerpt(apart[0].text)}"
            found = AuditFinding(row.file, row.line, "encoding/mixed-forms", "warning", evidence, len(apart))
            self._decomposed.append(found)

    def finish(self) -> tuple[list[AuditFinding], list[str], list[Suspicion], int]:
        """All findings, notes, ranked pairs, and how many evaluation rows are repeated."""
        found, notes = self._findings, []
        if 2 * len(self._decomposed) > self._accented:
            notes.append("letters and accents stand apart in most rows with any (normal form D): no mixture")
        else:
            found += self._decomposed
        found += self._repeats.findings()
        notes += self._repeats.notes()
        repeated = 0
        if self.options.against is not None:
            overlapping, repeated = overlaps(self.side, self._evaluation(self.options.against))
            found += overlapping
        ranked: list[Suspicion] = []
        if self.options.scores is not None:
            ranked, more = self._scored(self.options.scores)
            notes += more
            found += contradicted(ranked)
        found += self._sayings.findings(ranked)
        notes += self._sayings.notes()
        if self.options.names is None:
            notes.append("names of people were not looked for (names=PIPELINE)")
        return found, notes, ranked, repeated

    def _evaluation(self, source: str) -> Side:
        side = Side(self.side.vocabulary)
        for raw in raw_rows(source)[0]:
            if raw.value is not None:
                row = read_row(raw.file, raw.line, raw.value, column=self.options.column)
                if row.kind != "unknown":
                    side.add(row)
        if not side.places:
            raise DataError("the evaluation data has no rows to compare with", got=source)
        return side

    def _scored(self, path: Path) -> tuple[list[Suspicion], list[str]]:
        pairs = self._repeats.pairs
        if not pairs:
            raise DataError("scores are of preference pairs, and there are none in the audited data", got=str(path))
        margins = matched(pairs, read_scores(path), path)
        ranked = suspicions(margins)
        agreed = sum(one.margin > 0 for one in ranked)
        notes = [f"scores agree with {agreed} of {len(ranked)} labels; {len(pairs) - len(ranked)} pairs have no score"]
        return ranked, notes
