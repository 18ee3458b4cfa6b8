"""A path that nothing can be called by is one paragraph in every command, whatever key it stands under."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from surefoot.config.paths import shown
from tests.cli.conftest import Workspace
from tests.cli.test_user_mistakes import check_refusal, refused

COMMANDS = ("train", "check", "plan")
PATHS = {
    "a NUL": ("a\0b", "it holds a NUL"),
    "a name of 5000 characters": ("x" * 5000, "File name too long"),
    "5100 characters in folders": ("ab/" * 1700 + "c", "File name too long"),
    "a link to itself": ("loop", "Too many levels of symbolic links"),
    "the home of nobody": ("~nobody-is-called-this/x", "Could not determine home directory"),
    "nothing": ("", "it is empty"),
    "half a character": ("\ud800", "half a character"),
}
KEYS = ("data.prompts", "evaluate.prompts", "model.policy", "model.reference", "critic.init", "reward.terms.0.target")


def with_path(space: Workspace, key: str, value: str) -> None:
    """The config with this path in it; JSON is YAML that can say it all."""
    (space.path / "loop").symlink_to("loop")
    tree = json.loads(json.dumps(CONFIG_BASE))
    *sections, last = key.split(".")
    node = tree
    for section in sections:
        node = node[int(section)] if isinstance(node, list) else node.setdefault(section, {})
    node[last] = value
    space.write("c.yaml", json.dumps(tree))


CONFIG_BASE = {
    "run": {"dir": "runs", "steps": 1},
    "model": {"policy": "toy"},
    "critic": {"kind": "separate"},
    "reward": {"terms": [{"name": "tone", "target": "reward.py:tone"}]},
    "data": {"prompts": "prompts.jsonl"},
    "rollout": {"prompts_per_step": 4},
}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("key", [*KEYS, "run.dir", "model.chat_template"])
def test_a_path_in_the_config(key: str, name: str, bare: Workspace) -> None:
    value, words = PATHS[name]
    with_path(bare, key, value)
    for command in COMMANDS:
        said = refused(bare, command, "c.yaml")
        assert words in said
        assert key in said or "half" in words
        assert len(said) < 400


@pytest.mark.parametrize("value", ["a\0b.py:f", "x" * 5000 + ".py:f", "loop.py:f"])
def test_a_path_in_a_functions_target(value: str, bare: Workspace) -> None:
    (bare.path / "loop.py").symlink_to("loop.py")
    with_path(bare, "reward.terms.0.target", value)
    assert "reward.terms.0.target cannot be used as a path" in refused(bare)


def test_a_name_that_no_folder_can_have(bare: Workspace) -> None:
    assert "run.name cannot be used as a path: File name too long" in refused(
        bare, "train", "c.yaml", f"run.name={'a' * 5000}"
    )


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("x" * 5000, "cannot be read; got: xxx"),
        ("ab/" * 1700 + "c", "File name too long"),
        ("loop", "Too many levels of symbolic links"),
        ("reward.py/c.yaml", "Not a directory"),
        ("folder", "the config is a folder"),
        ("", "the config is a folder"),
        ("gone.yaml", "does not exist"),
    ],
)
def test_the_config_itself(verb: str, path: str, words: str, bare: Workspace) -> None:
    (bare.path / "loop").symlink_to("loop")
    (bare.path / "folder").mkdir()
    said = refused(bare, verb, path)
    assert words in said
    assert len(said) < 400


FOLDERS: dict[str, tuple[str, str]] = {
    "data.prompts": ("folder.jsonl", "the folder holds no data files"),
    "model.policy": ("folder.jsonl", "the model folder has no"),
    "reward.terms.0.target": ("folder.py:tone", "Is a directory"),
}


@pytest.mark.parametrize("key", FOLDERS)
def test_a_folder_where_a_file_or_a_model_is_expected(key: str, space: Workspace) -> None:
    value, words = FOLDERS[key]
    for name in ("folder.jsonl", "folder.py"):
        (space.path / name).mkdir()
    assert words in refused(space, "train", "c.yaml", f"{key}={value}")
    checked = space.check(f"{key}={value}")
    assert checked.code == 2
    assert any(words in finding["message"] for finding in checked.findings.values())


def test_a_file_where_a_folder_is_expected(space: Workspace) -> None:
    assert "must be a folder, not a file" in refused(space, "train", "c.yaml", "model.policy=reward.py")
    assert "cannot be used: Not a directory" in refused(space, "train", "c.yaml", "run.dir=reward.py/runs")


LOOKERS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "runs list": lambda path: ("runs", "list", path),
    "runs compare": lambda path: ("runs", "compare", path, path),
}


@pytest.mark.parametrize("verb", LOOKERS)
@pytest.mark.parametrize("path", ["x" * 5000, "loop", "reward.py", "~nobody-is-called-this/x", "gone"])
def test_run_folders_that_cannot_be(verb: str, path: str, bare: Workspace) -> None:
    (bare.path / "loop").symlink_to("loop")
    check_refusal(bare.run(*LOOKERS[verb](path)))


@pytest.mark.parametrize("path", ["x" * 5000, "loop", "reward.py"])
def test_a_quickstart_where_no_folder_can_be(path: str, bare: Workspace) -> None:
    (bare.path / "loop").symlink_to("loop")
    outcome = bare.run("quickstart", "--size", "tiny", "--dir", path)
    assert outcome.code == 2
    assert "error: the folder for the quickstart cannot be made" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("path", "fault"), [("metrics.jsonl", None), ("evaluations.jsonl", None), ("config.yaml", b"\xff")]
)
def test_a_run_folder_with_something_else_in_a_files_place(path: str, fault: bytes | None, space: Workspace) -> None:
    assert space.run("train", "c.yaml", "run.steps=1").code == 0
    file = space.path / "runs" / "c" / path
    file.unlink()
    if fault is None:
        file.mkdir()
    else:
        file.write_bytes(fault)
    outcome = space.run("train", "c.yaml", "run.steps=2", "--resume")
    assert outcome.code == 2
    assert path in outcome.err
    assert "Traceback" not in outcome.err


def test_what_is_shown_is_short_and_printable() -> None:
    assert shown("runs/a b") == "runs/a b"
    assert shown("a\nb\0") == "'a\\nb\\x00'"
    assert shown("x" * 5000) == "x" * 100 + "... (5000 characters)"
    assert Path(shown("ä/文")) == Path("ä/文")
