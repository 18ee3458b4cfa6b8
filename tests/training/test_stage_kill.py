"""Stages that are killed by SIGKILL and resumed repeat the untouched run: metrics, evaluations, findings, the model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

KILLER = Path(__file__).with_name("stage_killer.py")


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is one: a kill does not care, and syncing costs nothing."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="surefoot-", dir=shared if os.access(shared, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


def check(folder: Path, command: str, kills: int, seed: int) -> None:
    arguments = [sys.executable, str(KILLER), str(folder), command, str(kills), str(seed)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["kills"] == kills and found["runs"] >= 1
    assert len(found["moments"]) >= min(3, kills - 1), "the kills must not all fall at the same kind of moment"
    assert found["end"][0] == "FINISHED"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "seed"), [("sft", 1), ("reward-model", 2)])
def test_killed_at_random_moments_a_stage_repeats_the_untouched_one(
    memory_folder: Path, command: str, seed: int
) -> None:
    check(memory_folder, command, 10, seed)


@pytest.mark.soak
@pytest.mark.parametrize("command", ["sft", "reward-model"])
def test_killed_forty_times_a_stage_repeats_the_untouched_one(memory_folder: Path, command: str) -> None:
    check(memory_folder, command, 40, 100)
