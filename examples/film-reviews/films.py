"""The whole example: ``python films.py [--size full|quick] [--seeds 0 1 2]``. Run again, it goes on where it was.

First the judges (``judges.yaml``), then each seed (``films.yaml``: fine-tuning, reward model, its tests, PPO, verdict),
then the seeds pooled.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

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
            "tests.shift=10",
        ],
    ),
}
"""What is set in the two files; the short form holds its reward model to no test of its surface."""


def run(*command: str) -> None:
    """Run to the end, output as it comes; ends this program with the command's exit code when that is not 0."""
    program = subprocess.Popen([sys.executable, *command])
    signal.signal(signal.SIGTERM, lambda number, frame: program.send_signal(number))
    while True:
        try:
            code = program.wait()
            break
        except KeyboardInterrupt:  # the program was told as well, and saves what it has
            continue
    if code:
        sys.exit(code if code > 0 else 128 - code)


def surefoot(*arguments: str) -> None:
    """A command of Surefoot's."""
    run("-c", "from surefoot.cli.main import main; main()", *arguments)


def main(arguments: Sequence[str]) -> int:
    """Run what has not been run; returns the exit code."""
    parser = argparse.ArgumentParser(description="Demonstrations and ratings to a policy, measured on held-out films.")
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--dir", type=Path, default=Path("runs"))
    asked = parser.parse_args(arguments)
    folder = asked.dir / ("film-reviews" if asked.size == "full" else f"film-reviews-{asked.size}")
    judges, films = SIZES[asked.size]
    try:
        shared = [f"pipeline.dir={folder}", f"defaults.model.policy={smollm2()}"]
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    surefoot("pipeline", str(HERE / "judges.yaml"), *shared, *judges)
    verdicts = []
    for seed in asked.seeds:
        own = [f"pipeline.name=seed-{seed}", f"defaults.run.seed={seed}"]
        surefoot("pipeline", str(HERE / "films.yaml"), *shared, *own, *films)
        verdicts.append(folder / f"seed-{seed}" / "verdict")
    run(str(HERE / "evaluate.py"), "pool", str(folder), *map(str, verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
