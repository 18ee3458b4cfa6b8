"""What each term of the reward does: ``python table.py HELD-OUT.jsonl OUT.json RUN RUN ...``, the first with all terms.

Of held-out reviews: people's agreement with the digit (0 for an answer that is none), whether it is one digit, whether
it is clean; each as a mean with its interval over films, and as the paired difference to the run with all terms. A run
is one training with one seed: the intervals know nothing of what another seed would have done. ``shuffled`` is the
share of random orders of a run's answers that agree at least as well: near 0 where answers have to do with the reviews.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from surefoot.errors import DataError, UserError
from surefoot.evals.clustered import clustered_mean
from surefoot.training.durable import json_bytes, read_records, write_file

MEASURED: Final = ("agreement", "one_digit", "clean")
SHUFFLES: Final = 2000


def measured(rows: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Of each held-out review what its answer is worth.

    Raises:
        DataError: the evaluation is of other prompts.
    """
    same = [row["prompt"][-1]["content"] in record["prompt"] for row, record in zip(rows, records, strict=False)]
    if not (len(rows) == len(records) and all(same)):
        raise DataError(
            "the evaluation is not of these prompts",
            got=f"{len(records)} responses to {len(rows)} prompts, {sum(same)} of them the same",
            hint="name the file that the runs were evaluated on",
        )
    return {
        "agreement": [row["agreement"].get(r["response"], 0.0) for row, r in zip(rows, records, strict=True)],
        **{name: [r["score_terms"][name] for r in records] for name in MEASURED[1:]},
    }


def shuffled(rows: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> float:
    """The share of random orders of the answers in which people agree at least as much, the given order one of them."""
    kinds = sorted(set(answers))
    worth = np.array([[row["agreement"].get(kind, 0.0) for kind in kinds] for row in rows])
    said, every = np.array([kinds.index(answer) for answer in answers]), np.arange(len(rows))
    dice = np.random.default_rng(0)
    given = worth[every, said].sum()
    found = [worth[every, dice.permutation(said)].sum() for _ in range(SHUFFLES)]
    return float((1 + sum(one >= given - 1e-9 for one in found)) / (1 + SHUFFLES))


def table(rows: Sequence[Mapping[str, Any]], runs: Sequence[Path]) -> dict[str, Any]:
    """A line a run, and one for the policy before training."""
    films = [row["film"] for row in rows]
    found: dict[str, Any] = {}
    whole: dict[str, list[float]] = {}
    for run in runs:
        steps = [line["step"] for line in read_records(run / "evaluations.jsonl")]
        records = {step: read_records(run / "evaluations" / f"step-{step}.jsonl") for step in (steps[0], steps[-1])}
        at = {step: measured(rows, found_then) for step, found_then in records.items()}
        if not found:
            found["before"] = {name: clustered_mean(at[steps[0]][name], films).as_json() for name in MEASURED}
            whole = at[steps[-1]]
        last = at[steps[-1]]
        found[run.name] = {
            name: clustered_mean(last[name], films).as_json()
            | {
                "difference": clustered_mean(
                    [a - b for a, b in zip(last[name], whole[name], strict=True)], films
                ).as_json()
            }
            for name in MEASURED
        }
        found[run.name]["shuffled"] = shuffled(rows, [record["response"] for record in records[steps[-1]]])
    return found


def main(held_out: Path, out: Path, *runs: Path) -> int:
    """Write the table and print it; returns the exit code."""
    try:
        found = table(read_records(held_out), runs)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    write_file(out, json_bytes(found, indent=1))
    sys.stdout.write(f"{'':20}" + "".join(f"{name:>12}{'difference to all':>30}" for name in MEASURED) + "  shuffled\n")
    for name, line in found.items():
        cells = ""
        for part in (line[name] for name in MEASURED):
            gap = part.get("difference")
            shown = f"{gap['mean']:+.3f} ({gap['low']:+.3f} to {gap['high']:+.3f})" if gap else ""
            cells += f"{part['mean']:12.3f}{shown:>30}"
        by_chance = f"{line['shuffled']:10.3f}" if "shuffled" in line else ""
        sys.stdout.write(f"{name:20}{cells}{by_chance}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
