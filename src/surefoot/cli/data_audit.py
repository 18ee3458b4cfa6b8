"""``surefoot data audit``: the report as a table, as JSON, and as a summary beside the data. Loads no torch."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter, ValidationError

from surefoot.cli.table import aligned
from surefoot.config.yaml_text import read_yaml, write_yaml
from surefoot.data.audit.findings import AuditReport
from surefoot.data.audit.run import audit
from surefoot.data.audit.text_checks import AuditOptions
from surefoot.data.cards import audit_path
from surefoot.errors import ConfigError, DataError

SHOWN = 5
WIDTH = 110


class Where(NamedTuple):
    """What the audited data is compared with."""

    against: str | None
    scores: Path | None


def run_audit(file: str, settings: Sequence[str], where: Where, *, save: bool, as_json: bool) -> int:
    """Audit and print. Returns the exit code: 1 when there is a finding of severity error.

    Raises:
        UserError: something that was named cannot be used.
    """
    options = options_of(settings, where)
    report = audit(file, options)
    if save:
        _save(file, report)
    sys.stdout.write(json.dumps(report.as_json()) + "\n" if as_json else render(report))
    return 1 if report.has_errors else 0


def options_of(settings: Sequence[str], where: Where) -> AuditOptions:
    """Options from ``KEY=VALUE`` texts.

    Raises:
        ConfigError: a key is not known, or a value is not of its kind.
    """
    kinds: dict[str, Any] = {
        "column": str,
        "label": str,
        "tokenizer": str,
        "max_characters": int,
        "max_tokens": int,
        "names": str,
    }
    assert set(kinds) <= {field.name for field in fields(AuditOptions)}
    chosen: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in kinds:
            raise ConfigError("an audit has no such setting", got=setting, allowed=", ".join(f"{k}=..." for k in kinds))
        try:
            chosen[key] = text if kinds[key] is str else TypeAdapter(kinds[key]).validate_python(read_yaml(text))
        except (ValidationError, yaml.YAMLError):
            raise ConfigError(f"{key} is a whole number", got=setting, hint=f"{key}=2000") from None
    return AuditOptions(against=where.against, scores=where.scores, **chosen)


def _save(file: str, report: AuditReport) -> None:
    path = audit_path(file)
    if report.sha256 is None:
        raise DataError("only files and folders have a place for a summary", got=file, hint="leave --save out")
    text = write_yaml(report.summary(date=datetime.datetime.now(datetime.UTC).date().isoformat()))
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise DataError("the summary cannot be written", got=str(error), hint="leave --save out") from error
    sys.stderr.write(f"summary written to {path}\n")


def render(report: AuditReport) -> str:
    """The report as text: kinds with their numbers, then a few findings of each."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in report.kinds_of_rows.items())
    lines = [f"{report.source}: {report.rows} rows ({kinds or 'none readable'})\n"]
    counts = report.counts()
    if not counts:
        lines.append("nothing found\n")
    else:
        table = [(what["severity"], kind, str(what["rows"])) for kind, what in counts.items()]
        lines.append(aligned(("severity", "kind", "rows"), table, right=(2,)))
    for kind in counts:
        found = [finding for finding in report.findings if finding.kind == kind]
        lines.append(f"\n{kind}\n")
        lines += [
            f"  {f.file}:{f.row}  {_fitted(f.evidence)}{f' (x {f.count})' if f.count > 1 else ''}\n"
            for f in found[:SHOWN]
        ]
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN} more (--json has all)\n")
    if report.suspicions:
        lines.append("\nlabels that the scores contradict most\n")
        lines += [
            f"  {s.file}:{s.row}  margin {s.margin:.3g}, the label is right with probability {s.p_right:.2f}\n"
            for s in report.suspicions[:SHOWN]
        ]
    if report.against is not None:
        lines.append(f"\n{report.evaluation_rows} evaluation rows of {report.against} are repeated\n")
    lines += [f"note: {note}\n" for note in report.notes]
    return "".join(lines).encode("utf-8", "backslashreplace").decode("utf-8")


def _fitted(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= WIDTH else flat[: WIDTH - 3] + "..."
