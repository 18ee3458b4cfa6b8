"""The journal loses nothing that it said it has, whatever kills its writer and however full the disk is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surefoot.serving.journal import Journal
from tests.training.full_disk import run_on_tiny_disk, run_with_file_limit, tiny_disk_available

KILLER = Path(__file__).with_name("journal_killer.py")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "journal")
    for step in (1, 2, 3):
        journal.write(step, b"request %d" % step)
        journal.write_result(step, {"step": step})
    return journal


def test_requests_and_results_come_back_as_they_were(journal: Journal) -> None:
    again = Journal(journal.folder)
    assert again.steps() == [1, 2, 3]
    assert again.read(2) == b"request 2"
    assert again.result(2) == {"step": 2}
    assert again.size() == sum(path.stat().st_size for path in journal.folder.iterdir()) > 0


def test_an_empty_journal_needs_no_folder(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none")
    journal.clean()
    journal.drop_after(0)
    journal.drop_through(9)
    assert (journal.steps(), journal.steps_after(0), journal.size(), journal.result(1)) == ([], [], 0, None)
    assert not journal.folder.exists()


def test_what_a_new_request_finds_of_an_old_one_is_thrown_away(journal: Journal) -> None:
    (journal.folder / "step-3.request").unlink()
    journal.write(3, b"another")
    assert journal.result(3) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"a": NaN}'])
def test_a_damaged_result_counts_as_none(journal: Journal, text: bytes) -> None:
    (journal.folder / "step-2.result").write_bytes(text)
    assert journal.result(2) is None


def test_steps_behind_a_gap_cannot_be_applied(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    journal.write(5, b"request 5")
    assert journal.steps_after(1) == [2, 3]
    assert "step 4 is missing" in caplog.text
    assert journal.steps_after(4) == [5]


def test_dropping_takes_one_side(journal: Journal) -> None:
    journal.drop_through(1)
    assert (journal.steps(), journal.result(1)) == ([2, 3], None)
    journal.drop_after(2)
    assert (journal.steps(), journal.result(3), journal.result(2)) == ([2], None, {"step": 2})


def test_what_is_not_the_journals_is_left_alone(journal: Journal) -> None:
    for name in ("notes.txt", ".step-1.request.tmp-1-zz", "step-01.request", "step-x.request"):
        (journal.folder / name).write_text("mine")
    (journal.folder / ".step-4.request.tmp-17-0a1b2c3d").write_text("half")
    journal.clean()
    assert journal.steps() == [1, 2, 3]
    assert {p.name for p in journal.folder.iterdir() if p.read_bytes() == b"mine"} == {
        "notes.txt",
        ".step-1.request.tmp-1-zz",
        "step-01.request",
        "step-x.request",
    }
    assert not list(journal.folder.glob(".step-4*"))


# ------------------------------------------------------------------------------------------------------- kills


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    command = [sys.executable, str(KILLER), str(tmp_path_factory.mktemp("kills"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def test_a_kill_leaves_nothing_half_written(killed: dict[str, list[dict[str, Any]]]) -> None:
    for work, seen in killed.items():
        assert len(seen) > 3, work
        for found in seen:
            assert found["left"] == 0
            assert all(body == f"request {step}" for step, body in found["bodies"].items())
    assert any(found["hidden"] for found in killed["write"]), "no kill fell into the writing"


def test_a_request_is_there_or_not_and_touches_no_other(killed: dict[str, list[dict[str, Any]]]) -> None:
    steps = [list(found["bodies"]) for found in killed["write"]]
    assert sorted(map(tuple, {tuple(s) for s in steps})) == [("1", "2", "3"), ("1", "2", "3", "4")]
    assert steps[-1] == ["1", "2", "3", "4"]
    assert all(found["results"]["3"] == {"step": 3} for found in killed["write"])


def test_an_old_result_stays_until_the_new_one_is_whole(killed: dict[str, list[dict[str, Any]]]) -> None:
    results = [found["results"]["3"] for found in killed["result"]]
    assert results[0] == {"step": 3}
    assert results[-1] == {"step": 3, "again": True}
    assert all(result in (results[0], results[-1]) for result in results)


def test_steps_go_in_an_order_that_leaves_the_rest_usable(killed: dict[str, list[dict[str, Any]]]) -> None:
    after = [list(map(int, found["bodies"])) for found in killed["drop_after"]]
    assert {tuple(steps) for steps in after} == {(1, 2, 3), (1, 2), (1,)}
    through = [list(map(int, found["bodies"])) for found in killed["drop_through"]]
    assert {tuple(steps) for steps in through} == {(1, 2, 3), (2, 3), (3,)}
    for work in ("drop_after", "drop_through"):
        for found in killed[work]:
            kept = [step for step, result in found["results"].items() if result is not None]
            assert set(kept) <= set(found["bodies"]), "a result without its request"


# --------------------------------------------------------------------------------------------------- full disks

FULL = """
import errno, sys
from pathlib import Path
from surefoot.serving.journal import Journal

journal = Journal(Path(sys.argv[1]) / "journal")
journal.write(1, b"small")
try:
    journal.write(2, bytes(500_000))
except OSError as error:
    print(errno.errorcode[error.errno])
journal.write(2, b"small again")
print(journal.steps(), journal.read(2), [p.name for p in journal.folder.iterdir() if p.name.startswith(".")])
"""


@pytest.mark.parametrize("kind", ["disk", "limit"])
def test_a_full_disk_refuses_a_request_and_keeps_the_others(tmp_path: Path, kind: str) -> None:
    if kind == "limit":
        printed = run_with_file_limit(tmp_path, 100_000, FULL)
    elif tiny_disk_available():
        printed = run_on_tiny_disk(tmp_path, 200, FULL)
    else:
        pytest.skip("nothing can be mounted here")
    assert printed.splitlines() == ["EFBIG" if kind == "limit" else "ENOSPC", "[1, 2] b'small again' []"]
