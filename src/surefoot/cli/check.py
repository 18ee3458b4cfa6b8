"""``surefoot check``: prints what :func:`surefoot.assembly.preflight.preflight` found; writes nothing."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from surefoot.config import Config, load_config, require
from surefoot.errors import ConfigError
from surefoot.records import Finding
from surefoot.training.durable import plain

PROBLEM_EXIT = 2
LABELS = {"warning": "warning", "error": "problem"}


def run_check(config: Path, overrides: Sequence[str], *, as_json: bool) -> int:
    """Check a config. Returns the exit code: 0 without a problem, 2 with one."""
    start = time.monotonic()
    try:
        cfg = _complete(config, overrides)
    except ConfigError as error:
        if not as_json:
            raise
        # A program that reads the findings finds this one too.
        found = [
            Finding("config/keys", "error", str(error).removesuffix(f"; hint: {error.hint}"), {}, error.hint or "")
        ]
    else:
        logging.getLogger("surefoot").setLevel(logging.ERROR)  # what is logged on the way is found, and said, here
        from surefoot.assembly.preflight import preflight

        found = preflight(cfg)
    if as_json:
        sys.stdout.write(json.dumps(plain([asdict(finding) for finding in found])) + "\n")
    else:
        sys.stdout.write(render(found, time.monotonic() - start))
    return PROBLEM_EXIT if any(finding.severity == "error" for finding in found) else 0


def _complete(config: Path, overrides: Sequence[str]) -> Config:
    cfg = load_config(config, overrides)
    require(cfg, "train")
    return cfg


def label(finding: Finding) -> str:
    """``ok``, ``note`` (in order, and worth knowing), ``warning`` or ``problem``."""
    return LABELS.get(finding.severity) or ("note" if finding.advice else "ok")


def render(findings: Sequence[Finding], seconds: float) -> str:
    """One line a check under the name of its group, a hint under what is not in order, and the sum."""
    lines: list[str] = []
    group = None
    for finding in findings:
        here, _, name = finding.name.partition("/")
        if here != group:
            lines += [here] if group is None else ["", here]
            group = here
        lines.append(f"  {label(finding):<8} {name.replace('_', ' ')}: {finding.message}")
        if finding.advice:
            lines.append(f"  {'':<8} hint: {finding.advice}")
    counts = Counter(label(finding) for finding in findings)
    total = ", ".join(f"{counts[kind]} {kind}{'s' if counts[kind] != 1 and kind != 'ok' else ''}" for kind in _ORDER)
    return "\n".join([*lines, "", f"{len(findings)} checks in {seconds:.0f} s: {total}"]) + "\n"


_ORDER = ("ok", "note", "warning", "problem")
