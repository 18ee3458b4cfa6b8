"""Preference pairs whose label a reward model contradicts; its scores are read from a file.

Each pair must have been scored by a model that was not trained on it (cross-validation): one that was agrees with every
label, wrong ones too. The audit cannot see that; it is for whoever makes the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from surefoot.data.audit.findings import AuditFinding, Suspicion
from surefoot.data.formats import raw_rows
from surefoot.errors import DataError

P_RIGHT: Final = 0.1
"""A label is suspicious when it is right with a smaller probability than this."""
STEPS: Final = 50

Place = tuple[str, int]


def read_scores(path: Path) -> dict[str, float]:
    """Margins (score of chosen less that of rejected) by row, ``LINE`` or ``FILE:LINE``.

    Args:
        path: JSONL with ``row`` (the pair's line, or ``FILE:LINE``) and ``chosen`` and ``rejected``, or ``margin``.
    Raises:
        DataError: a line has none of these, or a row stands twice.
    """
    margins: dict[str, float] = {}
    for raw in raw_rows(str(path))[0]:
        value = raw.value or {}
        try:
            row, margin = str(value["row"]), _margin(value)
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{path} line {raw.line} is no score",
                got=raw.fault or str(dict(value))[:80],
                allowed='{"row": 17, "chosen": 1.2, "rejected": -0.3} or {"row": "pairs.jsonl:17", "margin": 1.5}',
                hint="write finite numbers, one pair a line",
            ) from None
        if row in margins:
            raise DataError(f"{path} line {raw.line} scores row {row} again", hint="one line a pair")
        margins[row] = margin
    return margins


def _margin(value: Mapping[str, Any]) -> float:
    number = value["margin"] if "margin" in value else float(value["chosen"]) - float(value["rejected"])
    if isinstance(number, bool) or not math.isfinite(float(number)):
        raise ValueError("not a finite number")
    return float(number)


def matched(pairs: Sequence[Place], margins: Mapping[str, float], path: Path) -> dict[Place, float]:
    """The margin of each pair that has one.

    Raises:
        DataError: a score is for a row that is no pair, or a bare line for one of several files.
    """
    files = {file for file, _ in pairs}
    by_name = {f"{file}:{line}": (file, line) for file, line in pairs}
    if len(files) == 1:
        by_name |= {str(line): (file, line) for file, line in pairs}
    unknown = [name for name in margins if name not in by_name]
    if unknown:
        raise DataError(
            f"{path} has scores for {len(unknown)} rows that are no preference pairs of the audited data",
            got=", ".join(unknown[:5]),
            hint="name a row by its line" if len(files) == 1 else "name a row FILE:LINE, since there are several files",
        )
    return {by_name[name]: margin for name, margin in margins.items()}


def slope_of(margins: Sequence[float]) -> float:
    """How fast a margin makes a label certain: ``p(label is right) = 1 / (1 + exp(-slope * margin))``.

    The maximum of the likelihood of all labels, by Newton's method; 0 when the scores agree with the labels no better
    than chance.
    """
    x = np.asarray(margins, np.float64)
    scale = float(np.abs(x).mean()) if len(x) else 0.0
    if scale == 0.0:
        return 0.0
    x = x / scale
    slope = 0.0
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-slope * x))
        # Without the second terms labels that are all right would drive the slope to infinity.
        gradient = float(((1 - p) * x).mean()) - 1e-3 * slope
        curvature = float((p * (1 - p) * x * x).mean()) + 1e-3
        slope += max(-2.0, min(2.0, gradient / curvature))
    return max(0.0, slope) / scale


def suspicions(margins: Mapping[Place, float]) -> list[Suspicion]:
    """All scored pairs, the most suspicious first."""
    slope = slope_of(list(margins.values()))
    ranked = sorted(margins.items(), key=lambda item: (item[1], item[0]))
    return [Suspicion(*place, margin, _logistic(slope * margin)) for place, margin in ranked]


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def contradicted(ranked: Sequence[Suspicion]) -> list[AuditFinding]:
    """The pairs whose scores contradict the label strongly."""
    return [
        AuditFinding(
            one.file,
            one.row,
            "label/contradicted",
            "warning",
            f"the label is right with probability {one.p_right:.2f} (margin {one.margin:.3g})",
        )
        for one in ranked
        if one.p_right < P_RIGHT
    ]
