"""``surefoot plan``: prints what :func:`surefoot.assembly.plan.plan` worked out; loads no weights, writes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.cli.table import aligned
from surefoot.config import load_config, require

if TYPE_CHECKING:
    from surefoot.assembly.plan import MemoryPlan

DOES_NOT_FIT = 1
SHOWN = 5 * 10**6  # bytes: less is 0.00 GB
PARTS = ("parameters", "gradients", "optimizer")


def run_plan(config: Path, overrides: Sequence[str], *, as_json: bool) -> int:
    """Plan a run's memory. Returns the exit code: 0 it fits, 1 it does not."""
    cfg = load_config(config, overrides)
    require(cfg, "train")
    from surefoot.assembly.plan import plan

    found = plan(cfg)
    sys.stdout.write(json.dumps(as_dict(found)) + "\n" if as_json else render(found))
    return 0 if found.fits else DOES_NOT_FIT


def as_dict(found: MemoryPlan) -> dict[str, Any]:
    """What the text says, in bytes."""
    return {
        "fits": found.fits,
        **found.estimate.as_json(),
        "device": str(found.device),
        "free": found.free,
        "machine": found.machine,
        "notes": list(found.notes),
        "advice": [{"settings": list(a.settings), "peak": a.peak, "fits": a.peak <= found.free} for a in found.advice],
    }


def render(found: MemoryPlan) -> str:
    """Roles and parts, phases, the peak, and the verdict."""
    estimate = found.estimate
    sizes = estimate.sizes
    roles = [(name, *(gigabytes(getattr(role, part)) for part in PARTS)) for name, role in estimate.roles.items()]
    totals = [sum(getattr(role, part) for role in estimate.roles.values()) for part in PARTS]
    roles.append(("in all", *map(gigabytes, totals)))
    phases = []
    for name, phase in estimate.phases.items():
        passing = [f"{part.replace('_', ' ')} {gigabytes(size)}" for part, size in phase.parts.items() if size >= SHOWN]
        who = f"{name}: {phase.who}" if phase.who else name
        phases.append((who, gigabytes(estimate.peak((name,))), ", ".join(passing)))
    lines = [
        "What each role needs, in GB of 10^9 bytes; gradients are there in updates only:\n",
        aligned(("role", *PARTS), roles, right=(1, 2, 3)),
        "\nWhat comes and goes, at the fullest moment of each phase:\n",
        aligned(("phase", "peak", "of which pass"), phases, right=(1,)),
        f"\nAlways there: the process {gigabytes(estimate.process)}, parameters {gigabytes(totals[0])},"
        f" optimizer {gigabytes(totals[2])}.\n",
        f"The heaviest step decodes {sizes.rows} rows at once, after prompts of at most {sizes.longest} tokens, and"
        f" trains {sizes.training.tokens} tokens at a time.\n",
        *(f"note: {note}\n" for note in found.notes),
        f"\n{verdict(found)}",
    ]
    return "".join(lines)


def verdict(found: MemoryPlan) -> str:
    """Whether it fits, and what helps where it does not."""
    estimate = found.estimate
    need = f"{gigabytes(estimate.total)} GB at most, in the phase {estimate.fullest!r}"
    have = f"{gigabytes(found.free)} of {gigabytes(found.machine)} GB are free on {found.device}"
    if found.fits:
        return f"It fits: {need}; {have}.\n"
    elsewhere = "; ending what else runs here would make room" if estimate.total <= found.machine else ""
    lines = [f"It does not fit: {need}; {have}{elsewhere}.\n"]
    for place, advice in enumerate(found.advice):
        fits = "fits" if advice.peak <= found.free else "does not fit yet"
        first = "helps most" if place == 0 else "together" if len(advice.settings) > 1 else "helps too"
        lines.append(f"hint: {first}: {' '.join(advice.settings)}, {gigabytes(advice.peak)} GB, which {fits}\n")
    return "".join(lines)


def gigabytes(size: int) -> str:
    """Two figures behind the point; a dash for what would be 0.00."""
    return f"{size / 1e9:.2f}" if size >= SHOWN else "-"
