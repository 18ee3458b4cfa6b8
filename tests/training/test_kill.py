"""Runs that are killed, signalled or run out of room, resumed, and held against a run that nobody touched.

What must be the same, bit for bit: every line of metrics but time, memory and throughput, the held-out records, the
rollout records, the last checkpoint, the model, and the reason why the run ended.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KILLER = Path(__file__).with_name("run_killer.py")


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is one: a kill does not care, and syncing costs nothing."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="surefoot-", dir=shared if os.access(shared, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


def run_killer(mode: str, folder: Path, *arguments: object) -> Any:
    command = [sys.executable, str(KILLER), mode, str(folder), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


Plan = tuple[tuple[str, int, int], ...]
"""(variant, number of kills, seed) of the runs of one process."""


def check_kills(folder: Path, plan: Plan) -> None:
    arguments = [argument for one in plan for argument in one]
    for (variant, kills, _), found in zip(plan, run_killer("kills", folder, *arguments).values(), strict=True):
        assert found["problems"] == [], variant
        assert found["kills"] == kills and found["runs"] >= 1
        assert len(found["moments"]) >= min(3, kills - 1), "the kills must not all fall at the same kind of moment"
        assert found["end"][0] == "FINISHED"
        expected = {"impatient": "no better held-out score", "budget": "passed its budget"}
        assert expected.get(variant, "all 6 steps are done") in found["end"][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [(("shared", 9, 1), ("impatient", 3, 2)), (("separate", 7, 3), ("budget", 3, 4))],
    ids=["shared", "separate"],
)
def test_killed_at_random_moments_a_run_repeats_the_untouched_one(memory_folder: Path, plan: Plan) -> None:
    check_kills(memory_folder, plan)


@pytest.mark.soak
@pytest.mark.parametrize("variant", ["shared", "separate", "impatient", "budget", "two-threads"])
def test_killed_forty_times_a_run_repeats_the_untouched_one(memory_folder: Path, variant: str) -> None:
    check_kills(memory_folder, ((variant, 40, 100),))


@pytest.mark.slow
def test_signals_end_a_run_with_a_checkpoint(memory_folder: Path) -> None:
    codes = {"SIGTERM": 143, "SIGINT": 130}
    for case in run_killer("signals", memory_folder):
        what, signals = f"{case['signals']} {case['moment']}", case["signals"]
        assert case["problems"] == [] and case["again"] == 0, what
        if case["moment"] in ("in the last step", "in the model"):
            # The end was due anyway: it is made, and nothing is left to resume.
            assert (case["code"], case["status"], case["model"]) == (0, "FINISHED", True), what
            assert case["step"] == case["metrics"] == case["checkpoint"] == 6, what
        elif len(signals) == 1:
            assert (case["code"], case["status"], case["model"]) == (codes[signals[0]], "KILLED", False), what
            assert case["reason"] == f"stopped by {signals[0]}", what
            assert case["step"] == case["metrics"] == case["checkpoint"], what
            assert (case["step"] == 0) is (case["moment"] == "in the first evaluation"), what
        else:
            assert (case["code"], case["status"], case["checkpoint"]) == (130, "KILLED", 0), f"{what}: not at once"


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_and_one_paragraph(memory_folder: Path) -> None:
    whole = {"the second checkpoint": 2, "metrics": 4, "a rollout record": 2, "the model": 6, "an evaluation": 2}
    cases = run_killer("disk", memory_folder)
    assert {case["moment"] for case in cases} == set(whole)
    for case in cases:
        what = case["moment"]
        assert (case["code"], case["status"], case["traceback"]) == (3, "FAILED", False), case["log"]
        assert case["checkpoint"] == whole[what], what
        assert not case["model"], what
        last = case["log"].strip().splitlines()[-2:]
        assert last[0].startswith("error: ") and "could not be written" in last[0], what
        assert last[1].startswith("hint: make room"), what
        assert case["problems"] == [] and case["again"] == 0, what


@pytest.mark.slow
def test_damage_is_passed_over_with_a_word(memory_folder: Path) -> None:
    said = {
        "a bit of the policy": "step-4 is not whole (policy.safetensors does not match its sha256); taking step-3",
        "the end of an optimizer": "step-4 is not whole (critic_optimizer.safetensors has",
        "the manifest": "step-4 is not whole (manifest.json is missing), step-3 is not whole",
        "all checkpoints": "none of the run's checkpoints can be read",
        "the records": "status.json cannot be read",
    }
    cases = run_killer("damage", memory_folder)
    assert {case["damage"] for case in cases} == set(said)
    for case in cases:
        assert said[case["damage"]] in case["log"], f"{case['damage']}: {case['log']}"
        if case["damage"] == "all checkpoints":
            # Starting over would write over the records of a run that had come further.
            assert case["again"] == 2, case["log"]
        else:
            assert case["problems"] == [] and case["again"] == 0, f"{case['damage']}: {case['log']}"
