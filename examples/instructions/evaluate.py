"""Instructions followed before and after PPO, by group and kind: ``python evaluate.py RUN HELD-OUT.jsonl [OUT.json]``.

What is compared is the share of a prompt's constraints that hold, before and after on the same prompt; intervals are
over draws of whole topics.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.errors import DataError, UserError
from surefoot.evals.clustered import clustered_mean
from surefoot.training.durable import json_bytes, read_records, write_file

TERM = "followed"


def scores_of(run: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of each held-out prompt the share of its constraints that hold.

    Raises:
        DataError: the evaluation is of other prompts, or a score is missing.
    """
    records = read_records(run / "evaluations" / f"step-{step}.jsonl")
    found = [record["score_terms"].get(TERM) for record in records]
    same = [row["prompt"][-1]["content"] in record["prompt"] for row, record in zip(rows, records, strict=False)]
    if not (len(records) == len(rows) and all(same)) or None in found:
        raise DataError(
            "the run's evaluation is not of these prompts, one response each",
            got=f"{len(records)} responses to {len(rows)} prompts, {sum(same)} of them the same",
            hint="name the file that the run was evaluated on",
        )
    return found


def compared(
    rows: Sequence[Mapping[str, Any]], before: Sequence[float], after: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """By group and by kind: before, after, and the gain with its interval."""
    parts: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        parts.setdefault(row["group"], []).append(number)
    for number, row in enumerate(rows):
        if len(row["kinds"]) == 1:
            parts.setdefault(f"{row['group']}: {row['kinds'][0]}", []).append(number)
    return {
        name: {
            "prompts": len(own),
            "before": sum(before[n] for n in own) / len(own),
            "after": sum(after[n] for n in own) / len(own),
            **clustered_mean([after[n] - before[n] for n in own], [rows[n]["topic"] for n in own]).as_json("gain"),
        }
        for name, own in parts.items()
    }


def main(run: Path, held_out: Path, out: Path | None = None) -> int:
    """Compare, print, and write if asked; returns the exit code."""
    rows, steps = read_records(held_out), [record["step"] for record in read_records(run / "evaluations.jsonl")]
    try:
        if len(steps) < 2:
            raise DataError("the run has no evaluation before and after training", got=str(run))
        found = compared(rows, *(scores_of(run, step, rows) for step in (steps[0], steps[-1])))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if out is not None:
        write_file(out, json_bytes(found, indent=1))
    sys.stdout.write(
        f"{'constraints that hold':30}{'prompts':>8}{'before':>8}{'after':>8}{'gain':>8}   95 % interval\n"
    )
    for name, part in found.items():
        numbers = f"{part['before']:8.2f}{part['after']:8.2f}{part['gain']:+8.2f}"
        sys.stdout.write(f"{name:30}{part['prompts']:8}{numbers}   {part['low']:+.2f} to {part['high']:+.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
