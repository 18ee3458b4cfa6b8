"""The run folder: who may write, what a resume cuts off, how a run is said to have ended (case DEP-06)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from surefoot.errors import RunError, RunFolderError
from surefoot.records import Finding, StepReport
from surefoot.training.run_folder import RunFolder
from surefoot.training.run_status import RunStatus
from tests.training.full_disk import run_on_tiny_disk, run_with_file_limit, tiny_disk_available

CONFIG = "run:\n  name: tiny\n  steps: 10\n"


def create(folder: Path, *, resume: bool = False, config: str = CONFIG) -> RunFolder:
    return RunFolder.create(folder, "tiny", resume=resume, config_text=config)


def run_of(folder: Path, steps: int) -> None:
    """A run that went through some steps and was let go of without a word, as by a kill."""
    with_lock = create(folder)
    for step in range(1, steps + 1):
        with_lock.append_metrics(StepReport(step, {"score/mean": step / 10}))
        with_lock.samples.mkdir(exist_ok=True)
        with_lock.samples_file(step).write_text("{}\n")
        with_lock.append_finding(Finding("kl", "warning", "high", step=step))
    with_lock.close()


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, the lock file's text aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and path.name != ".lock" else None
        for path in folder.rglob("*")
    }


# ----------------------------------------------------------------------------------------------- making and taking up


def test_a_new_folder_holds_the_config_and_says_running(tmp_path: Path) -> None:
    with create(tmp_path / "not" / "there") as folder:
        assert folder.path == tmp_path / "not" / "there" / "tiny"
        assert folder.config.read_text() == CONFIG
        assert not folder.resumed
        state = RunFolder.open(folder.path).last_status()
        assert state is not None
        assert (state.status, state.pid, state.step) == (RunStatus.RUNNING, os.getpid(), 0)


def test_an_existing_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    run_of(tmp_path, 2)
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"tiny exists.*hint: add --resume") as caught:
        create(tmp_path)
    assert caught.value.exit_code == 2
    assert contents(tmp_path) == before


def test_resuming_where_nothing_is_starts_afresh(tmp_path: Path) -> None:
    with create(tmp_path, resume=True) as folder:
        assert not folder.resumed
        assert folder.begin(0) == []
        folder.append_metrics(StepReport(1, {}))
    assert folder.read_metrics() == [{"step": 1}]


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".config.yaml.tmp-17-ab12cd34"]])
def test_a_folder_whose_maker_was_killed_at_once_can_be_taken_up(tmp_path: Path, left: list[str]) -> None:
    (tmp_path / "tiny").mkdir()
    for name in left:
        (tmp_path / "tiny" / name).touch()
    with pytest.raises(RunFolderError, match="exists"):
        create(tmp_path)
    with create(tmp_path, resume=True) as folder:
        assert folder.config.read_text() == CONFIG


def test_a_folder_of_something_else_is_never_taken_up(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match=r"not a run folder.*got: thesis\.tex.*hint:"):
        create(tmp_path, resume=True)
    assert set(contents(tmp_path)) == {"tiny", "tiny/thesis.tex"}
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunFolder.open(tmp_path / "tiny")


def test_a_resume_with_another_config_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run_of(tmp_path, 2)
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"run\.seed was 0"):
        create(tmp_path, resume=True, config=CONFIG + "  seed: 7\n")
    assert contents(tmp_path) == before
    create(tmp_path, resume=True).close()  # the lock was let go
    assert contents(tmp_path) == before


def test_a_resume_writes_nothing_before_it_begins_and_then_keeps_the_new_config(tmp_path: Path) -> None:
    run_of(tmp_path, 3)
    before = contents(tmp_path)
    longer = CONFIG.replace("10", "20")
    with create(tmp_path, resume=True, config=longer) as folder:
        assert folder.resumed
        assert folder.changed == {"run.steps": (10, 20)}
        assert contents(tmp_path) == before
        with pytest.raises(AssertionError, match="begin"):
            folder.append_metrics(StepReport(3, {}))
        assert folder.begin(2, warnings=["torch was 2.12, is 2.13"]) == []
        assert folder.config.read_text() == longer
        state = folder.last_status()
    assert state is not None
    (entry,) = state.resumes
    assert (entry["step"], entry["status"], entry["changed"]) == (2, "KILLED", {"run.steps": [10, 20]})
    assert entry["warnings"] == ["torch was 2.12, is 2.13"]


def test_resumes_add_up(tmp_path: Path) -> None:
    run_of(tmp_path, 3)
    for step in (2, 1):
        with create(tmp_path, resume=True) as folder:
            folder.begin(step)
            folder.finish(RunStatus.FAILED, f"at {step}")
    state = RunFolder.open(tmp_path / "tiny").last_status()
    assert state is not None
    assert [(entry["step"], entry["status"], entry["reason"]) for entry in state.resumes][1] == (1, "FAILED", "at 2")
    assert len(state.resumes) == 2


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "-x", ".hidden", "a\n", "ü"])
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="plain file name"):
        RunFolder.create(tmp_path / "runs", name, resume=False, config_text=CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_where_no_folder_can_be_made_a_hint_is_given(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot be used: .*hint: choose a run\.dir"):
        create(tmp_path / "file")
    (tmp_path / "tiny").touch()
    with pytest.raises(RunFolderError, match="there is a file where"):
        create(tmp_path, resume=True)


@pytest.mark.skipif(not tiny_disk_available(), reason="mounting a file system is not permitted here")
def test_a_run_that_finds_the_disk_full_leaves_no_folder(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from surefoot.errors import RunFolderError
from surefoot.training.run_folder import RunFolder
place = Path(sys.argv[1])
(place / "big").write_bytes(b"x" * 4096 * (16 - 6))
try:
    RunFolder.create(place, "tiny", resume=False, config_text="run: {name: tiny}" + " " * 100_000)
except RunFolderError as error:
    print(error)
print([path.name for path in place.iterdir()])
"""
    printed = run_on_tiny_disk(tmp_path, 64, program).splitlines()
    assert "No space left" in printed[0]
    assert printed[1] == "['big']"


def test_two_processes_never_write_in_one_folder(tmp_path: Path) -> None:
    with create(tmp_path) as folder:
        program = (
            "import sys\nfrom surefoot.errors import RunFolderError\n"
            "from surefoot.training.run_folder import RunFolder\n"
            "try: RunFolder.create(sys.argv[1], 'tiny', resume=True, config_text=sys.argv[2])\n"
            "except RunFolderError as error: print(error)"
        )
        command = [sys.executable, "-c", program, str(tmp_path), CONFIG]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"is in use by process {os.getpid()}" in printed
        assert "hint:" in printed
        state = folder.last_status()
        assert state is not None
        assert state.pid == os.getpid()


# --------------------------------------------------------------------------------------------------------- records


def test_metrics_are_a_line_a_step_and_what_is_undefined_is_null(tmp_path: Path, caplog: Any) -> None:
    with create(tmp_path) as folder:
        for step, value in enumerate([1.0, float("nan"), 2.0, float("nan")], start=1):
            folder.append_metrics(StepReport(step, {"score/mean": value, "a/b": None}), sync=True)
    lines = folder.metrics.read_text().splitlines()
    assert lines[0] == '{"step": 1, "a/b": null, "score/mean": 1.0}'
    assert [line["score/mean"] for line in folder.read_metrics()] == [1.0, None, 2.0, None]
    assert caplog.text.count("not finite") == 1
    assert "step 2: not finite, written as null from now on: score/mean" in caplog.text


def test_a_line_still_being_written_is_not_read(tmp_path: Path) -> None:
    run_of(tmp_path, 2)
    folder = RunFolder.open(tmp_path / "tiny")
    with folder.metrics.open("a") as stream:
        stream.write('{"step": 3}')
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]


def test_a_resume_cuts_off_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    run_of(tmp_path, 5)
    view = RunFolder.open(tmp_path / "tiny")
    with view.metrics.open("a") as stream:
        stream.write('{"step": 6, "score/')
    with view.findings.open("a") as stream:
        stream.write('{"name": "preflight", "step": null}\n{"na')
    (view.samples / "notes.txt").touch()
    view.evaluations.mkdir()
    for step in (0, 3, 5):
        (view.evaluations / f"step-{step}.jsonl").touch()
    kept = b"".join(line for line in view.metrics.read_bytes().splitlines(keepends=True)[:3])
    with create(tmp_path, resume=True) as folder:
        assert folder.begin(3) == []
    assert folder.metrics.read_bytes() == kept
    assert [f["step"] for f in folder.read_findings()] == [1, 2, 3, None]
    assert {path.name for path in folder.samples.iterdir()} == {
        "step-1.jsonl",
        "step-2.jsonl",
        "step-3.jsonl",
        "notes.txt",
    }
    assert {path.name for path in folder.evaluations.iterdir()} == {"step-0.jsonl", "step-3.jsonl"}


def test_a_resume_from_the_start_keeps_no_step(tmp_path: Path) -> None:
    run_of(tmp_path, 2)
    with create(tmp_path, resume=True) as folder:
        folder.begin(0)
        assert folder.read_metrics() == []
        assert list(folder.samples.iterdir()) == []


def test_a_step_without_a_line_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_of(tmp_path, 2)
    with create(tmp_path, resume=True) as folder:
        assert folder.begin(4) == [3, 4]
    assert "no line for 2 step(s)" in caplog.text


def test_damage_among_the_lines_to_keep_stops_the_resume_with_its_place(tmp_path: Path) -> None:
    run_of(tmp_path, 3)
    view = RunFolder.open(tmp_path / "tiny")
    view.metrics.write_text(view.metrics.read_text().replace('{"step": 2', '{"st"p": 2'))
    with create(tmp_path, resume=True) as folder, pytest.raises(RunFolderError, match=r"metrics\.jsonl line 2"):
        folder.begin(3)


def test_a_resume_that_finds_no_room_ends_in_order_and_can_be_tried_again(tmp_path: Path) -> None:
    run_of(tmp_path, 40)
    program = """
import sys
from surefoot.errors import RunError
from surefoot.training.run_folder import RunFolder
folder = RunFolder.create(sys.argv[1], "tiny", resume=True, config_text=CONFIG)
try:
    folder.begin(39)
except RunError as error:
    print(error)
"""
    before = RunFolder.open(tmp_path / "tiny").metrics.read_bytes()
    printed = run_with_file_limit(tmp_path, 500, f"CONFIG = {CONFIG!r}\n{program}")
    assert "File too large" in printed
    assert "hint: make room" in printed
    assert RunFolder.open(tmp_path / "tiny").metrics.read_bytes() == before
    with create(tmp_path, resume=True) as folder:
        assert folder.begin(39) == []
    assert len(folder.read_metrics()) == 39


def test_only_the_holder_of_the_lock_writes(tmp_path: Path) -> None:
    run_of(tmp_path, 1)
    with pytest.raises(AssertionError, match="create"):
        RunFolder.open(tmp_path / "tiny").append_metrics(StepReport(2, {}))


def test_a_full_disk_costs_the_line_and_not_the_ones_before(tmp_path: Path) -> None:
    program = """
import sys
from surefoot.errors import RunError
from surefoot.records import StepReport
from surefoot.training.run_folder import RunFolder
with RunFolder.create(sys.argv[1], "tiny", resume=False, config_text="run: {name: tiny}") as folder:
    step = 0
    try:
        while step < 1000:
            folder.append_metrics(StepReport(step + 1, {"score/mean": step / 7}))
            step += 1
    except RunError as error:
        print(error, "| exit", error.exit_code)
    print(len(folder.read_metrics()) == step, folder.metrics.read_bytes().endswith(b"}\\n"))
    folder.finish("FAILED", "disk full")
print(folder.last_status().status, folder.last_status().step == step)
"""
    printed = run_with_file_limit(tmp_path, 2000, program).splitlines()
    assert "metrics.jsonl could not be written: File too large" in printed[0]
    assert printed[0].endswith("| exit 3")
    assert printed[1:] == ["True True", "FAILED True"]


# ------------------------------------------------------------------------------------------------------------ the end

RUN = """
import os, signal, sys
from surefoot.records import StepReport
from surefoot.training.run_folder import RunFolder
def end(*_):
    raise SystemExit("SIGTERM")
signal.signal(signal.SIGTERM, end)
with RunFolder.create(sys.argv[1], "tiny", resume=False, config_text="run: {name: tiny}") as folder:
    folder.append_metrics(StepReport(1, {}))
    folder.append_metrics(StepReport(2, {}))
    match sys.argv[2]:
        case "exception":
            raise ValueError("a bug")
        case "interrupt":
            raise KeyboardInterrupt
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        case "stop":
            folder.finish("FINISHED", "score 0.9 reached")
"""


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("exception", "FAILED", "ValueError: a bug"),
        ("SIGTERM", "KILLED", "SystemExit"),
        ("interrupt", "KILLED", "KeyboardInterrupt"),
        ("kill", "KILLED", "without a word"),
        ("clean", "FINISHED", "done"),
        ("stop", "FINISHED", "score 0.9 reached"),
    ],
)
def test_the_status_says_how_the_process_ended(tmp_path: Path, end: str, status: str, reason: str) -> None:
    """DEP-06: an exception, SIGTERM and a clean end are FAILED, KILLED and FINISHED."""
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path), end], capture_output=True, check=False)
    state = RunFolder.open(tmp_path / "tiny").last_status()
    assert state is not None
    assert state.status == status
    assert reason in str(state.reason)
    assert state.step == 2
    assert (state.ended is None) == (end == "kill")


def test_a_status_that_cannot_be_read_is_not_finished(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_of(tmp_path, 1)
    folder = RunFolder.open(tmp_path / "tiny")
    for damage in ("", '{"status": "FINISHED"', '{"status": "GOOD"}', "[]", '{"status": "FINISHED", "x": 1}'):
        folder.status.write_text(damage)
        state = folder.last_status()
        assert state is not None
        assert state.status == RunStatus.KILLED
    assert "cannot be read" in caplog.text
    folder.status.unlink()
    assert folder.last_status() is None


@pytest.mark.skipif(not tiny_disk_available(), reason="mounting a file system is not permitted here")
def test_a_run_that_failed_on_a_full_disk_says_failed(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from surefoot.training.run_folder import RunFolder
place = Path(sys.argv[1])
try:
    with RunFolder.create(place, "tiny", resume=False, config_text="run: {name: tiny}") as folder:
        with (place / "big").open("wb") as stream:
            while True:
                stream.write(b"x" * 1000)
                stream.flush()
except OSError as error:
    print(error.strerror)
print(folder.last_status().status, folder.last_status().reason)
"""
    printed = run_on_tiny_disk(tmp_path, 64, program).splitlines()
    assert printed[0] == "No space left on device"
    assert printed[1].startswith("FAILED OSError")


def test_a_status_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path, caplog: Any) -> None:
    with pytest.raises(ValueError, match="the real one"), create(tmp_path) as folder:
        folder.status.unlink()
        folder.status.mkdir()
        raise ValueError("the real one")
    assert "could not write" in caplog.text


# ---------------------------------------------------------------------------------------------------------- the model


def test_the_model_is_put_in_place_whole(tmp_path: Path) -> None:
    with create(tmp_path) as folder:

        def write(staged: Path) -> None:
            assert not folder.model.exists()
            (staged / "config.json").write_text("{}")

        assert folder.publish_model(write) == folder.model
        assert folder.model.is_dir()

        def fail(staged: Path) -> None:
            (staged / "config.json").write_text("half")
            raise OSError(28, os.strerror(28))

        with pytest.raises(RunError, match=r"No space left.*hint:"):
            folder.publish_model(fail)
    assert (folder.model / "config.json").read_text() == "{}"
    assert not [path.name for path in folder.path.iterdir() if path.name.startswith(".model")]


def test_a_resume_clears_what_killed_writers_left_and_restores_a_model_set_aside(tmp_path: Path) -> None:
    run_of(tmp_path, 1)
    path = tmp_path / "tiny"
    for name in (".metrics.jsonl.tmp-17-ab12cd34", "samples/.step-1.jsonl.tmp-17-ab12cd34"):
        (path / name).touch()
    (path / ".model.tmp-17-ab12cd34").mkdir()
    (path / ".model.replaced-17-ab12cd34").mkdir()
    (path / ".model.replaced-17-ab12cd34" / "whole").touch()
    with create(tmp_path, resume=True) as folder:
        folder.begin(1)
    assert [p.name for p in path.rglob(".*")] == [".lock"]
    assert (folder.model / "whole").exists()


def test_killed_at_any_moment_of_a_run_the_folder_can_be_taken_up(tmp_path: Path) -> None:
    """Starts a run, kills it a little later each time, resumes; no line is lost, torn or there twice."""
    program = """
import sys
from surefoot.records import StepReport
from surefoot.training.run_folder import RunFolder
print("ready", flush=True)
with RunFolder.create(sys.argv[1], "tiny", resume=True, config_text="run: {name: tiny}") as folder:
    step = len(folder.read_metrics())
    folder.begin(step)
    while True:
        step += 1
        folder.append_metrics(StepReport(step, {f"a/{n}": step for n in range(200)}))
        print(step, flush=True)
"""
    promised = 0
    for attempt in range(4):
        command = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            told = [process.stdout.readline() for _ in range(attempt * 20)]
            os.kill(process.pid, signal.SIGKILL)
            told += process.stdout.read().split()
        steps = []
        if (tmp_path / "tiny" / "config.yaml").exists():
            steps = [line["step"] for line in RunFolder.open(tmp_path / "tiny").read_metrics()]
        promised = max([promised, *(int(step) for step in told)])
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= promised
    assert promised > 40
    with create(tmp_path, resume=True, config="run: {name: tiny}") as folder:
        assert folder.begin(10) == []
        assert len(folder.read_metrics()) == 10
    assert yaml.safe_load(folder.config.read_text()) == {"run": {"name": "tiny"}}
    assert json.loads(folder.status.read_text())["status"] == "FINISHED"
