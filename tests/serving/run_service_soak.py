"""One long toy run whose service and trainer are killed in turn at random moments, compared with one that nobody kills.

run_service_soak.py KILLS [SEED] [FOLDER]    prints what was found as JSON; the exit code is 0 when all was the same

A run that comes to its end before there were enough kills is compared, and another one begun.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.serving.parts import toy_config
from tests.serving.processes import KilledAgain, Process, Zygote
from tests.serving.whole_runs import ONE_BY_ONE, Outcome, Trial, differences

LONG: dict[str, Any] = {"run": {"steps": 40}, "checkpoint": {"every": 2, "keep": 2}, "track": {"samples_every": 10}}
PAUSES_S = (0.1, 2.4)
"""Shortest and longest time between two kills; a trainer needs half a second to its first step."""


class Soak:
    """The kills of one folder.

    Attributes:
        kills: of ``service`` and ``trainer`` so far.
        runs: brought to their end.
        problems: what was not the same.
    """

    def __init__(self, trial: Trial, expected: Outcome, *, count: int, seed: int) -> None:
        self.trial, self.expected, self.count, self.dice = trial, expected, count, random.Random(seed)
        self.kills = {"service": 0, "trainer": 0}
        self.runs = 0
        self.problems: list[str] = []

    @property
    def enough(self) -> bool:
        """Whether there were as many kills as asked for."""
        return sum(self.kills.values()) >= self.count

    def run(self, service: KilledAgain) -> None:
        """One run to its end, through kills as long as there are not enough."""
        self.runs += 1
        name, before = f"killed-{self.runs}", dict(self.kills)
        process = self._begin(name, service)
        while not self._ended(process, self.dice.uniform(*PAUSES_S)):
            if self.enough:
                continue
            if self.kills["service"] <= self.kills["trainer"]:
                with contextlib.suppress(ProcessLookupError):  # it is just being started again
                    service.process.send(signal.SIGKILL)
                    self.kills["service"] += 1
            else:
                process.kill()
                if process.wait() == 0:  # it had come to its end just before
                    break
                self.kills["trainer"] += 1
                process = self._begin(name, service)
        found = differences(self.trial.outcome(name), self.expected)
        self.problems += [f"{name}, killed from {before} to {self.kills}: {difference}" for difference in found]

    def _begin(self, name: str, service: KilledAgain) -> Process:
        return self.trial.train(name, service.url, **ONE_BY_ONE)

    def _ended(self, process: Process, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (code := process.poll()) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        if code != 0:
            raise SystemExit(f"a trainer ended with {code}: {process.stderr.read_text()[-3000:]}")
        return True


def soak(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Kill ``count`` times; what came of it."""
    zygote, begun = Zygote(), time.monotonic()
    toy_config(folder)
    trial = Trial(zygote, folder, folder / "soak", LONG)
    try:
        work = Soak(trial, trial.finish("untouched"), count=count, seed=seed)
        service = trial.serve_again()
        try:
            while not work.enough:
                work.run(service)
        finally:
            service.end()
    finally:
        zygote.close()
    ends = {str(code): service.codes.count(code) for code in sorted(set(service.codes))}
    steps = len(work.expected.metrics)
    found = {"kills": work.kills, "runs": work.runs, "steps": steps, "service": ends, "problems": work.problems}
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


if __name__ == "__main__":
    kills, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    shared = Path("/dev/shm")
    place = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    home = place or Path(tempfile.mkdtemp(prefix="surefoot-", dir=shared if shared.is_dir() else None))
    try:
        result = soak(home, kills, seed)
    finally:
        if place is None:
            shutil.rmtree(home)
    print(json.dumps(result))
    raise SystemExit(1 if result["problems"] else 0)
