"""The whole example: ``python films.py [--size full|quick] [--seeds 0 1 2]``. Run again, it goes on where it was.

First the judges (``judges.yaml``), then each seed (``films.yaml``: fine-tuning, reward model, its tests, PPO, verdict),
then the seeds pooled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evaluate import pool, table

from surefoot.cli.pipeline import run_pipeline_file
from surefoot.data.smollm2 import smollm2
from surefoot.errors import UserError

HERE: Final = Path(__file__).resolve().parent
SIZES: Final = {
    "full": ([], []),
    "quick": (
        ["judge.reward_model.steps=30"],
        [
            "sft.sft.steps=40",
            "reward.reward_model.steps=40",
            "ppo.run.steps=6",
            "ppo.evaluate.max_prompts=40",
            "tests.max_pairs=30",
            "tests.accuracy=0",
            "tests.segment_accuracy=0",
            "tests.shift=10",
            "tests.shift.praise_words=10",
            "tests.shift.flattery=10",
        ],
    ),
}
"""What is set in the two files; the short form holds its reward model to nothing: 30 pairs would say nothing."""
GATE: Final = 1
"""Exit code of a seed whose reward model did not pass its tests."""


def pipeline(file: str, settings: Sequence[str]) -> int:
    """Run one of the two files; gives its exit code."""
    try:
        return run_pipeline_file(HERE / file, settings, start=None, dry_run=False, as_json=False)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def main(arguments: Sequence[str]) -> int:
    """Run what has not been run; returns the exit code."""
    parser = argparse.ArgumentParser(description="Demonstrations and ratings to a policy, measured on held-out films.")
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--dir", type=Path, default=Path("runs"))
    asked = parser.parse_args(arguments)
    folder = asked.dir / ("film-reviews" if asked.size == "full" else f"film-reviews-{asked.size}")
    for_judges, for_films = SIZES[asked.size]
    try:
        shared = [f"pipeline.dir={folder}", f"defaults.model.policy={smollm2()}"]
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if code := pipeline("judges.yaml", [*shared, *for_judges]):
        return code
    codes = {}
    for seed in dict.fromkeys(asked.seeds):
        own = [f"pipeline.name=seed-{seed}", f"defaults.run.seed={seed}"]
        codes[seed] = pipeline("films.yaml", [*shared, *own, *for_films])
        if codes[seed] not in (0, GATE):
            return codes[seed]
    passed = [seed for seed, code in codes.items() if code == 0]
    if passed:
        sys.stdout.write(table(pool(folder, [folder / f"seed-{seed}" / "verdict" for seed in passed])))
    for seed in (seed for seed in codes if seed not in passed):
        sys.stdout.write(f"seed {seed}: its reward model did not pass its tests, so there was no PPO\n")
    return 0 if len(passed) == len(codes) else GATE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
