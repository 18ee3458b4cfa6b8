"""The clock, the busy share and the peak that both sides are measured with."""

from __future__ import annotations

import mmap
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.measuring import CpuTime, StepMeter
from benchmarks.work import step_result


def test_other_cores_are_the_machines_busy_time_without_our_own() -> None:
    before, after = CpuTime(at=100.0, machine=50.0, own=20.0), CpuTime(at=110.0, machine=68.0, own=36.0)
    assert after.other_cores(before) == pytest.approx(0.2)
    # Ticks are coarse: ours may seem to be more than the machine's.
    assert CpuTime(110.0, 60.0, 31.0).other_cores(before) == 0.0


def test_our_own_work_is_counted_as_ours() -> None:
    before, start = CpuTime.now(), time.process_time()
    while time.process_time() < start + 0.2:
        pass
    after = CpuTime.now()
    assert after.own - before.own >= 0.19
    assert after.machine - before.machine >= 0.15


def test_a_phase_within_a_phase_belongs_to_the_outer_one() -> None:
    meter = StepMeter()
    calls: Any = SimpleNamespace(read=lambda: time.sleep(0.01), reference=lambda: calls.read())
    meter.stand_in(calls, "read", "policy_read")
    meter.stand_in(calls, "reference", lambda: "reference")
    meter.start()
    calls.reference()
    time.sleep(0.01)
    step = meter.stop()
    assert set(step["phases"]) == {"reference", "other"}
    assert step["phases"]["reference"] >= 0.01
    assert sum(step["phases"].values()) == pytest.approx(step["step_s"])
    meter.start()
    calls.read()
    assert set(meter.stop()["phases"]) == {"policy_read", "other"}


def test_the_peak_is_of_the_step_and_not_of_what_was_before() -> None:
    meter = StepMeter()
    meter.start()
    # Mapped by hand: whether an allocator gives memory back depends on what ran before in this process.
    with mmap.mmap(-1, 200_000_000) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        high = meter.stop()["peak_gb"]
    meter.start()
    low = meter.stop()["peak_gb"]
    assert high - low > 0.15


def test_warm_up_steps_count_for_nothing() -> None:
    steps = [{"other_cores": 0.9}, {"other_cores": 0.02}, {"other_cores": 0.05}]
    result = step_result(steps, 1, side="trl")
    assert (result["other_cores"], result["steps"], result["warmup_steps"]) == (0.05, steps[1:], steps[:1])
