"""Service and trainer killed in turn at random moments, again and again: the run is the one that nobody touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
def test_thirty_kills_of_service_and_trainer_in_turn_change_nothing() -> None:
    script = Path(__file__).with_name("run_service_soak.py")
    done = subprocess.run([sys.executable, str(script), "30", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["kills"] == {"service": 15, "trainer": 15}
    assert found["service"] == {"-9": 15, "0": 1}, "a service ended by itself"
