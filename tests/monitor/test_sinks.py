"""Trackers are a side channel: they never stop training, and they show what happened (case DEP-06)."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from surefoot.errors import MissingExtra
from surefoot.monitor.sinks import SideChannel, TensorBoardTracker
from surefoot.protocols import Tracker
from surefoot.records import StepReport


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def texts(folder: Path, tag: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in read(folder).Tensors(tag)]


def test_reports_become_curves_that_tensorboard_reads(tmp_path: Path) -> None:
    tracker: Tracker = TensorBoardTracker(tmp_path)
    for step in (1, 2, 3):
        tracker.log(StepReport(step, {"score/mean": step / 4, "count": step}))
    tracker.close()
    assert curve(tmp_path, "score/mean") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert curve(tmp_path, "count") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_nan_is_an_event_and_a_gap(tmp_path: Path) -> None:
    """DEP-06: metrics 1.0, nan, 2.0: two points, one event, no error."""
    tracker = TensorBoardTracker(tmp_path)
    for step, value in enumerate([1.0, float("nan"), 2.0], start=1):
        tracker.log(StepReport(step, {"score/mean": value, "kl/late": None}))
    tracker.close()
    assert (tracker.points, tracker.not_finite, tracker.errors) == (2, 1, 0)
    assert curve(tmp_path, "score/mean") == [(1, 1.0), (3, 2.0)]
    assert texts(tmp_path, "not_finite") == ["score/mean was nan"]
    assert read(tmp_path).Tags()["scalars"] == ["score/mean"]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1e300])
def test_what_a_curve_cannot_hold_is_left_out(tmp_path: Path, value: float) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.log(StepReport(1, {"a": value, "b": 1.0}))
    tracker.close()
    assert read(tmp_path).Tags()["scalars"] == ["b"]
    assert (tracker.not_finite, tracker.errors) == (1, 0)


def test_each_step_is_on_the_disk_at_once(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.log(StepReport(1, {"a": 1.0}))
    assert curve(tmp_path, "a") == [(1, 1.0)]
    tracker.close()


def test_a_resumed_run_goes_on_with_one_curve(tmp_path: Path) -> None:
    first = TensorBoardTracker(tmp_path, parameters={"run.steps": 4})
    for step in (1, 2, 3, 4):
        first.log(StepReport(step, {"a": float(step)}))
    first.close()
    second = TensorBoardTracker(tmp_path, resume_step=2, parameters={"run.steps": 9})
    for step in (3, 4, 5):
        second.log(StepReport(step, {"a": 10.0 * step}))
    second.close()
    assert curve(tmp_path, "a") == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]
    # The changed parameter stands under a name of its own beside the first one.
    assert texts(tmp_path, "parameters") == ["    run.steps: 4"]
    assert texts(tmp_path, "parameters/from_step_3") == ["    run.steps: 9"]


def test_texts_are_shown_by_the_text_plugin(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path, parameters={"a": 1})
    tracker.log(StepReport(1, {"a": 1.0}))
    tracker.close()
    multiplexer = EventMultiplexer({"run": str(tmp_path)})
    multiplexer.Reload()
    assert "parameters" in multiplexer.PluginRunToTagToContent("text")["run"]


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    tracker = TensorBoardTracker(tmp_path / "file" / "tensorboard")
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        for step in (1, 2, 3):
            tracker.log(StepReport(step, {"a": 1.0}))
    tracker.close()
    assert tracker.errors == 3
    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text


def test_after_trouble_the_curve_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    tracker = TensorBoardTracker(folder, resume_step=0)
    tracker.log(StepReport(1, {"a": 1.0}))
    tracker.log(StepReport(2, {"a": object()}))  # type: ignore[dict-item]
    tracker.log(StepReport(3, {"a": 3.0}))
    tracker.close()
    tracker.close()
    assert tracker.errors == 1
    assert curve(folder, "a") == [(1, 1.0), (3, 3.0)]


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from surefoot.monitor.sinks import TensorBoardTracker
from surefoot.records import StepReport
tracker = TensorBoardTracker(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
for step in range(1, 200):
    tracker.log(StepReport(step, {"a": 1.0, "b": 2.0}))
tracker.close()
print(tracker.errors > 0, "torch" in sys.modules)
"""
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
    assert done.stderr.count("File too large") == 1
    assert len(done.stderr.splitlines()) == 1
    assert len(curve(tmp_path, "a")) > 150


def test_a_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(MissingExtra, match=r"tensorboard.*pip install 'surefoot\[track\]'"):
        TensorBoardTracker(tmp_path)


def test_any_tracker_of_this_kind_is_harmless(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SideChannel):
        def _write(self, report: StepReport) -> None:
            raise ConnectionError("no route")

        def _close(self) -> Any:
            raise OSError("gone")

    tracker = Broken()
    tracker.log(StepReport(1, {}))
    tracker.close()
    assert tracker.errors == 2
    assert caplog.text.count("no route") == 1
