"""Spoiled runs are repeated, finished ones kept; with real processes whose results are written down beforehand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.parts import Job, Rules, obtain, process_environment

# Stands where an interpreter does: each call takes the next line of `results` and writes it where `--out` says.
SCRIPT = """#!/bin/sh
cd "$(dirname "$0")"
echo "said by the process, GLIBC_TUNABLES=$GLIBC_TUNABLES"
line=$(head -n 1 results)
[ -n "$line" ] || exit 3
sed -i 1d results
printf '%s' "$line" > "$4"
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    python = tmp_path / "python"
    python.write_text(SCRIPT, encoding="ascii")
    python.chmod(0o755)
    return Job("one", python, "anything", ("--steps", "2"))


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(tmp_path / "out" / "parts", attempts=3, quiet_wait_s=0.0)


def will_find(folder: Path, *other_cores: float) -> None:
    lines = [json.dumps({"other_cores": cores}) + "\n" for cores in other_cores]
    (folder / "results").write_text("".join(lines), encoding="ascii")


def test_up_to_a_tenth_of_a_core_spoils_nothing(rules: Rules) -> None:
    assert [rules.spoiled({"other_cores": cores}) for cores in (0.0, 0.1, 0.11, 1.0)] == [False, False, True, True]
    assert not dataclasses.replace(rules, allowed_other_cores=None).spoiled({"other_cores": 2.0})


def test_a_spoiled_run_is_repeated_and_the_good_one_kept(job: Job, rules: Rules, tmp_path: Path) -> None:
    will_find(tmp_path, 0.5, 0.3, 0.05)
    part = obtain(job, rules)
    assert (part["other_cores"], part["spoiled"], part["attempts"]) == (0.05, False, [0.5, 0.3, 0.05])
    # Nothing is left to be found: a second run would fail.
    assert obtain(job, rules) == part


def test_what_stays_spoiled_says_so_and_is_measured_again_the_next_time(job: Job, rules: Rules, tmp_path: Path) -> None:
    will_find(tmp_path, 0.5, 0.2, 0.3, 0.0)
    part = obtain(job, rules)
    assert (part["other_cores"], part["spoiled"], part["attempts"]) == (0.2, True, [0.5, 0.2, 0.3])
    assert not obtain(job, rules)["spoiled"]


def test_a_part_is_kept_only_for_the_same_settings_sources_and_files(job: Job, rules: Rules, tmp_path: Path) -> None:
    source, made = tmp_path / "source.py", tmp_path / "made.npz"
    source.write_text("a = 1\n", encoding="ascii")
    job = dataclasses.replace(job, sources=(source,), produces=(made,))
    will_find(tmp_path, 0.01, 0.02, 0.03, 0.04)
    assert obtain(job, rules)["other_cores"] == 0.01
    # The file that it should have written is not there.
    assert obtain(job, rules)["other_cores"] == 0.02
    made.touch()
    assert obtain(job, rules)["other_cores"] == 0.02
    source.write_text("a = 2\n", encoding="ascii")
    assert obtain(job, rules)["other_cores"] == 0.03
    assert obtain(dataclasses.replace(job, arguments=("--steps", "3")), rules)["other_cores"] == 0.04


def test_a_process_that_fails_ends_the_benchmark_and_shows_what_it_said(
    job: Job, rules: Rules, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    will_find(tmp_path)
    with pytest.raises(SystemExit):
        obtain(job, rules)
    said = capsys.readouterr().err
    assert "one failed with exit code 3" in said
    assert "said by the process" in said


def test_allocator_settings_reach_only_the_process_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLIBC_TUNABLES", "SUREFOOT_ALLOCATOR"):
        monkeypatch.setenv(name, "x")
        assert name not in process_environment({})
    assert process_environment({"GLIBC_TUNABLES": "y"})["GLIBC_TUNABLES"] == "y"
