"""``make quickstart`` and ``make test`` set themselves up on a machine with python3, venv and make alone.

The real scripts run in a small tree with a project that needs nothing from the network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

# The least a build backend must do for `pip install -e`: a wheel with a path file and one command.
BACKEND = """
import pathlib, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name, info = "surefoot-0-py3-none-any.whl", "surefoot-0.dist-info"
    extras = "Provides-Extra: dev\\nProvides-Extra: quickstart\\n"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("surefoot.pth", str(pathlib.Path("src").resolve()))
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: surefoot\\nVersion: 0\\n" + extras)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\nsurefoot = tiny_command:main\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
COMMAND = """
import sys
def main(): print("surefoot", *sys.argv[1:])
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    (tree / "src").mkdir()
    shutil.copy(ROOT / "Makefile", tree)
    shutil.copy(ROOT / "scripts" / "setup", tree / "scripts")
    (tree / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tree / "constraints.txt").write_text("", encoding="utf-8")
    (tree / "backend.py").write_text(BACKEND, encoding="utf-8")
    (tree / "src" / "tiny_command.py").write_text(COMMAND, encoding="utf-8")
    return tree


def run(tree: Path, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    hidden = ("VIRTUAL_ENV", "PYTHON", "SIZE", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {"PIP_NO_INDEX": "1", **(env or {})}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_first_time_installs_and_the_second_does_nothing(tree: Path) -> None:
    first = run(tree, "make", "quickstart", "SIZE=tiny")
    assert first.stdout == "surefoot quickstart --size tiny\n", first
    assert "setup: making .venv" in first.stderr
    assert "setup: installing surefoot[quickstart]" in first.stderr

    second = run(tree, "make", "quickstart")
    assert second.stdout == "surefoot quickstart\n"
    assert second.stderr == ""

    # What dev installed holds what quickstart needs, not the other way round.
    assert "installing surefoot[dev]" in run(tree, "make", "setup").stderr
    (tree / ".venv" / "surefoot-setup-quickstart").unlink()
    assert run(tree, "make", "quickstart").stderr == ""

    # Either file changed: installed again, into the same environment.
    for name in ("constraints.txt", "pyproject.toml"):
        with (tree / name).open("a", encoding="utf-8") as file:
            file.write("# another version\n")
        again = run(tree, "scripts/setup", "dev")
        assert again.stderr == "setup: installing surefoot[dev] into .venv (a minute or two the first time)\n"
        assert run(tree, "scripts/setup", "dev").stderr == ""

    # A moved tree: its commands named the old place, so the environment is made anew.
    moved = tree.rename(tree.with_name("moved"))
    assert run(moved, "make", "quickstart").stdout == "surefoot quickstart\n"


@pytest.mark.slow
def test_a_failed_installation_says_so_and_is_tried_again(tree: Path) -> None:
    backend = tree / "backend.py"
    backend.write_text(
        BACKEND.replace('Version: 0\\n"', 'Version: 0\\nRequires-Dist: no-such-package\\n"'), encoding="utf-8"
    )
    for _ in range(2):
        failed = run(tree, "make", "quickstart")
        assert failed.returncode == 2
        assert "no-such-package" in failed.stderr
        assert "setup: pip could not install surefoot[quickstart]; hint: " in failed.stderr
        assert failed.stdout == ""
    backend.write_text(BACKEND, encoding="utf-8")
    assert run(tree, "make", "quickstart").stdout == "surefoot quickstart\n"


def test_an_old_python_is_refused_in_one_line(tree: Path, tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo Python 3.9.1; else exit 1; fi\n', encoding="utf-8")
    old.chmod(0o755)
    refused = run(tree, "scripts/setup", env={"PYTHON": str(old)})
    assert refused.returncode == 2
    assert refused.stderr.startswith("setup: Python 3.11 or later is needed, got Python 3.9.1; hint: ")
    assert not (tree / ".venv").exists()
    assert "was not found; hint: " in run(tree, "scripts/setup", env={"PYTHON": "no-such-python"}).stderr


def test_make_alone_lists_every_target(tree: Path) -> None:
    listed = {line.split()[1] for line in run(tree, "make").stdout.splitlines()}
    declared = (ROOT / "Makefile").read_text(encoding="utf-8").split(".PHONY:")[1].splitlines()[0].split()
    assert listed == set(declared)
    assert {"quickstart", "test", "check"} <= listed


def test_ci_runs_make_test_and_nothing_else(tree: Path) -> None:
    (tree / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tree / ".ci")
    (tree / "Makefile").write_text("%:\n\t@echo made $@; exit 3\n", encoding="utf-8")
    done = run(tree.parent, str(tree / ".ci" / "run"))
    assert done.stdout == "made test\n"
    assert done.returncode != 0


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def extra(name: str) -> set[str]:
    """Requirements of an extra, with those of the extras that it names."""
    found: set[str] = set()
    for line in project()["optional-dependencies"][name]:
        own = re.fullmatch(r"surefoot\[(.+)\]", line)
        found |= {line} if own is None else set().union(*map(extra, own[1].split(",")))
    return found


COMPILED = {"tasks"}
"""Extras that build C when they are installed: nobody needs a compiler to run the tests."""


def test_what_dev_installs_is_enough_for_every_extra() -> None:
    extras = set(project()["optional-dependencies"])
    assert extras >= COMPILED
    for name in extras - COMPILED:
        assert extra(name) <= extra("dev"), name
    assert not any(extra(name) <= extra("dev") for name in COMPILED)


def test_every_requirement_that_set_up_installs_has_an_exact_version() -> None:
    wanted = {package(line) for line in [*project()["dependencies"], *extra("dev")]}
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert {"torch", "pytest-xdist", "fastapi"} <= wanted
    assert wanted - {package(line) for line in pins if "==" in line} == set()


def package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-").replace(".", "-")
