"""``surefoot runs list`` and ``runs compare`` say what the run folders hold, whatever state those are in."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from surefoot.cli.run_summary import age
from surefoot.cli.table import aligned, number
from surefoot.training.folder_lock import FolderLock
from tests.cli.conftest import CONFIG, REWARD, Outcome, chats

STEPS = {"first": 3, "second": 12}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """A folder with two real runs of the same model and prompts."""
    from surefoot import load_config, train

    folder = tmp_path_factory.mktemp("runs")
    (folder / "prompts.jsonl").write_text(chats([f"Write about a {a} film ." for a in ("new", "old", "slow", "loud")]))
    (folder / "held-out.jsonl").write_text(chats([f"Write about a {a} story ." for a in ("new", "old", "slow")]))
    (folder / "reward.py").write_text(REWARD)
    for name, steps in STEPS.items():
        tree = {**CONFIG, "run": {"name": name, "dir": str(folder / "runs"), "steps": steps, "threads": 1}}
        tree |= {"model": {"policy": str(toy)}, "optim": {"policy_lr": 3e-3}, "checkpoint": {"every": 0}}
        (folder / "c.yaml").write_text(yaml.safe_dump(tree))
        train(load_config(folder / "c.yaml", [] if name == "first" else ["ppo.kl.coef=0.1"]))
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, in a folder of its own."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def listed(runs: Path, command: Callable[..., Outcome]) -> Callable[[], dict[str, dict[str, Any]]]:
    """``runs list --json`` by name."""

    def run() -> dict[str, dict[str, Any]]:
        outcome = command("runs", "list", str(runs), "--json")
        assert outcome.code == 0, outcome
        return {entry["name"]: entry for entry in json.loads(outcome.out)}

    return run


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------------------------------------------------ list


def test_a_run_is_listed_as_its_folder_says(runs: Path, listed: Callable[[], dict[str, dict[str, Any]]]) -> None:
    found = listed()
    assert set(found) == set(STEPS)
    last, held_out = records(runs / "first" / "metrics.jsonl")[-1], records(runs / "first" / "evaluations.jsonl")
    entry = found["first"]
    assert (entry["status"], entry["step"], entry["steps"]) == ("FINISHED", 3, 3)
    assert (entry["score"], entry["kl"]) == (last["score/mean"], last["kl/reference_k1"])
    assert entry["before"]["mean"] == held_out[0]["evaluate/score_mean"]
    assert entry["after"] == {
        "step": 3,
        **{key: held_out[-1][f"evaluate/score_{key}"] for key in ("mean", "low", "high")},
    }
    assert entry["reason"] == "all 3 steps are done"
    assert datetime.fromisoformat(entry["active"]) <= datetime.now(UTC)


def test_the_table_is_aligned_and_plain(runs: Path, command: Callable[..., Outcome]) -> None:
    outcome = command("runs", "list")
    assert outcome.code == 0
    head, *rows = outcome.out.splitlines()
    assert [row.split()[0] for row in rows] == ["first", "second"]
    assert "\x1b" not in outcome.out
    for column in ("status", "held-out", "age"):
        start = head.index(column)
        assert all(row[start - 2 : start] == "  " and row[start] != " " for row in (head, *rows)), column
    assert re.search(r"FINISHED +3/3 ", rows[0])
    assert " -> " in rows[0]


def test_a_run_whose_process_is_gone_was_killed(runs: Path, listed: Callable[[], dict[str, dict[str, Any]]]) -> None:
    file = runs / "first" / "status.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "status": "RUNNING", "reason": None, "ended": None}))
    assert listed()["first"]["status"] == "KILLED"
    assert "killed" in listed()["first"]["reason"]
    lock = FolderLock.take(runs / "first" / ".lock")
    try:
        assert listed()["first"]["status"] == "RUNNING"
        assert listed()["first"]["reason"] == ""
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.yaml", "run: [", "config.yaml cannot be read"),
        ("config.yaml", "- a", "config.yaml holds no sections"),
        ("config.yaml", None, "config.yaml is missing"),
        ("metrics.jsonl", '{"step": 1}\n{"ste\n{"step": 3}\n', "metrics.jsonl line 2 is not a JSON object"),
        ("evaluations.jsonl", "nonsense\n", "evaluations.jsonl line 1 is not a JSON object"),
        ("status.json", "{", "status.json cannot be read"),
        ("status.json", None, "status.json is missing"),
    ],
)
def test_a_damaged_folder_is_named_and_the_others_are_shown(
    file: str, text: str | None, words: str, runs: Path, listed: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    (runs / "first" / file).unlink()
    if text is not None:
        (runs / "first" / file).write_text(text)
    found = listed()
    assert found["first"]["status"] == "DAMAGED"
    assert words in found["first"]["reason"]
    assert found["second"]["status"] == "FINISHED"


def test_a_line_that_is_being_written_is_no_damage(runs: Path, listed: Callable[[], dict[str, dict[str, Any]]]) -> None:
    with (runs / "first" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "score/me')
    assert listed()["first"]["status"] == "FINISHED"
    assert listed()["first"]["step"] == 3


def test_what_is_no_run_is_left_out(runs: Path, listed: Callable[[], dict[str, dict[str, Any]]]) -> None:
    (runs / "notes").mkdir()
    (runs / ".cache").mkdir()
    (runs / ".cache" / "config.yaml").write_text("")
    (runs / "file").write_text("")
    assert set(listed()) == set(STEPS)


def test_one_run_and_none(runs: Path, command: Callable[..., Outcome]) -> None:
    assert len(json.loads(command("runs", "list", str(runs / "first"), "--json").out)) == 1
    (runs / "empty").mkdir()
    assert json.loads(command("runs", "list", str(runs / "empty"), "--json").out) == []
    outcome = command("runs", "list", str(runs / "empty"))
    assert (outcome.code, outcome.out) == (0, "")
    assert "no runs in" in outcome.err


def test_listing_and_comparing_load_no_torch_and_write_nothing(runs: Path) -> None:
    before = {str(p): p.stat().st_mtime_ns for p in runs.rglob("*")}
    code = (
        "import sys; from pathlib import Path; from surefoot.cli import runs;"
        "runs.list_runs(Path('runs'), as_json=False); runs.compare_runs(Path('first'), Path('second'), as_json=False);"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=runs.parent, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert {str(p): p.stat().st_mtime_ns for p in runs.rglob("*")} == before


# --------------------------------------------------------------------------------------------------------- compare


@pytest.fixture
def compared(runs: Path, command: Callable[..., Outcome]) -> Iterator[Callable[[], dict[str, Any]]]:
    """``runs compare --json`` of the two."""

    def run() -> dict[str, Any]:
        outcome = command("runs", "compare", str(runs / "first"), str(runs / "second"), "--json")
        assert outcome.code == 0, outcome
        found: dict[str, Any] = json.loads(outcome.out)
        return found

    yield run


def test_only_what_differs_is_shown(compared: Callable[[], dict[str, Any]]) -> None:
    found = compared()
    assert found["config"] == {"run.steps": [3, 12], "ppo.kl.coef": [0.05, 0.1]}
    assert found["inputs"] == {}
    assert found["packages"] == {}


def test_metrics_are_means_over_the_last_steps_that_both_have(
    runs: Path, compared: Callable[[], dict[str, Any]]
) -> None:
    found = compared()
    assert found["averaged_over"] == 3
    for name in ("score/mean", "score/tone", "kl/reference_k1", "response/tokens_mean"):
        expected = [
            statistics.fmean(line[name] for line in records(runs / run / "metrics.jsonl")[-3:]) for run in STEPS
        ]
        assert found["metrics"][name] == pytest.approx(expected)


def test_other_inputs_and_packages_are_seen(runs: Path, compared: Callable[[], dict[str, Any]]) -> None:
    file = runs / "second" / "lineage.json"
    lineage = json.loads(file.read_text())
    lineage["inputs"]["prompts"]["sha256"] = "0" * 64
    lineage["packages"]["torch"] = "1.0"
    lineage["packages"]["rich"] = "0.0"
    lineage["machine"]["threads"] = 64
    file.write_text(json.dumps(lineage))
    found = compared()
    assert set(found["inputs"]) == {"prompts"}
    assert found["inputs"]["prompts"][1]["sha256"] == "0" * 64
    assert set(found["packages"]) == {"torch", "threads"}, "rich changes no result"
    assert found["packages"]["torch"][1] == "1.0"


def held_out(run: Path, mean: float, low: float, high: float, **others: Any) -> None:
    file = run / "evaluations.jsonl"
    lines = records(file)
    lines[-1] |= {"evaluate/score_mean": mean, "evaluate/score_low": low, "evaluate/score_high": high, **others}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_held_out_intervals_overlap_or_do_not(
    runs: Path, compared: Callable[[], dict[str, Any]], command: Callable[..., Outcome]
) -> None:
    held_out(runs / "first", 0.5, 0.4, 0.6)
    held_out(runs / "second", 0.7, 0.6, 0.8)
    assert compared()["held_out"]["overlap"] is True
    held_out(runs / "second", 0.7, 0.601, 0.8)
    found = compared()["held_out"]
    assert found["overlap"] is False
    assert found["after"][1] == {"step": 12, "mean": 0.7, "low": 0.601, "high": 0.8}
    assert "0.7 (0.601 to 0.8) after step 12" in command("runs", "compare", "first", "second").out
    assert "do not overlap: the difference is clear" in command("runs", "compare", "first", "second").out


@pytest.mark.parametrize("what", ["prompts", "sampling"])
def test_scores_on_other_prompts_or_settings_are_not_compared(
    what: str, runs: Path, command: Callable[..., Outcome]
) -> None:
    """EVL-06: numbers made under other conditions look comparable and are not."""
    if what == "prompts":
        file = runs / "second" / "lineage.json"
        lineage = json.loads(file.read_text())
        lineage["inputs"]["evaluate"]["sha256"] = "1" * 64
        file.write_text(json.dumps(lineage))
    else:
        settings = records(runs / "second" / "evaluations.jsonl")[-1]["settings"]
        held_out(runs / "second", 0.5, 0.4, 0.6, settings={**settings, "temperature": 0.5})
    out = command("runs", "compare", "first", "second").out
    assert f"not comparable: other {'held-out prompts' if what == 'prompts' else 'sampling settings'}" in out


def test_a_run_without_steps_or_evaluations_is_compared_as_far_as_it_goes(
    runs: Path, command: Callable[..., Outcome]
) -> None:
    for name in ("metrics.jsonl", "evaluations.jsonl", "lineage.json"):
        (runs / "first" / name).unlink()
    outcome = command("runs", "compare", "first", "second")
    assert outcome.code == 0, outcome
    assert "no held-out scores of both runs" in outcome.out
    assert re.search(r"score/mean +- +\S", outcome.out)


def test_runs_that_cannot_be_compared(runs: Path, command: Callable[..., Outcome]) -> None:
    (runs / "first" / "metrics.jsonl").write_text("nonsense\n")
    outcome = command("runs", "compare", "first", "second")
    assert (outcome.code, outcome.out) == (2, "")
    assert "metrics.jsonl line 1 is not a JSON object" in outcome.err
    Path("empty").mkdir()
    outcome = command("runs", "compare", "empty", "second")
    assert outcome.code == 2
    assert "not a run folder" in outcome.err


# ------------------------------------------------------------------------------------------------------ plain text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "60 min"), (3600, "1 h"), (200000, "2 d")]
)
def test_ages(seconds: int, shown: str) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert age((now - timedelta(seconds=seconds)).isoformat(), now=now) == shown
    assert age(None) == "-"


def test_a_table_has_one_line_a_row_and_columns_that_line_up() -> None:
    text = aligned(("a", "b"), [("long one", "1"), ("x", "22\n33")], right=(1,), indent=1)
    assert text == "a              b\n long one      1\n x         22 33\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0"), (0.123456, "0.1235"), (1e-6, "1e-06"), (123456.0, "1.23e+05"), (-2.5, "-2.5")],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown
