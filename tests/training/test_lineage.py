"""Lineage: digests that see every change, and resumes that are held to them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import surefoot
from surefoot.config import Config, build_config
from surefoot.data.formats import raw_rows
from surefoot.errors import DataError, RunError, RunFolderError
from surefoot.records import Lineage
from surefoot.training import lineage as subject
from surefoot.training.lineage import (
    build_lineage,
    code,
    describe_function,
    describe_input,
    digest_folder,
    lineage_warnings,
    machine,
    package_versions,
    read_lineage,
    write_lineage,
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    files = ("model.safetensors", "config.json", "tokenizer.json", "merges.txt", "spiece.model", "chat_template.jinja")
    for name in files:
        (folder / name).write_text(f"this is {name}")
    return folder


def test_a_folders_digest_is_that_of_its_sorted_files(model: Path) -> None:
    found = digest_folder(model)
    names = sorted(path.name for path in model.iterdir())
    listing = "".join(f"{sha256(f'this is {name}'.encode())}  {name}\n" for name in names)
    assert found == {
        "sha256": sha256(listing.encode()),
        "files": {name: sha256(f"this is {name}".encode()) for name in names},
    }


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "merges.txt", "spiece.model", "chat_template.jinja"]
)
def test_a_change_of_any_file_that_makes_the_model_changes_the_digest(model: Path, name: str) -> None:
    before = digest_folder(model)["sha256"]
    data = (model / name).read_bytes()
    (model / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    changed = digest_folder(model)["sha256"]
    (model / name).rename(model / f"a{name}")
    assert len({before, changed, digest_folder(model)["sha256"]}) == 3


def test_what_does_not_make_the_model_does_not_change_the_digest(model: Path) -> None:
    before = digest_folder(model)
    (model / "README.md").write_text("x")
    (model / "checkpoint-5").mkdir()
    (model / "checkpoint-5" / "model.safetensors").write_text("x")
    assert digest_folder(model) == before


def test_a_file_behind_a_link_counts_with_what_it_holds(model: Path, tmp_path: Path) -> None:
    """The hub's cache is made of links."""
    before = digest_folder(model)
    (model / "model.safetensors").rename(tmp_path / "blob")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    assert digest_folder(model) == before


def test_inputs_are_files_folders_or_hub_ids(model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}\n")
    assert describe_input(prompts, "data") == {"kind": "data", "path": str(prompts), "sha256": sha256(b"{}\n")}
    assert describe_input(model, "model")["files"]["config.json"] == sha256(b"this is config.json")
    assert describe_input("org/name", "model") == {"kind": "model", "path": "org/name", "sha256": None}
    (tmp_path / "empty").mkdir()
    for kind, fault in (("data", "holds no data files"), ("model", "nothing to take a digest of")):
        with pytest.raises(DataError, match=fault):
            describe_input(tmp_path / "empty", kind)


def test_a_data_folders_digest_covers_what_reading_reads(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name in ("a.jsonl", "sub/b.jsonl", "c.ndjson", ".ipynb_checkpoints/a.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"prompt": "x"}\n')
    before = describe_input(folder, "data")
    assert list(before["files"]) == ["a.jsonl", "c.ndjson", "sub/b.jsonl"]
    assert [file.relative_to(folder).as_posix() for file in raw_rows(str(folder))[1]] == list(before["files"])
    (folder / "sub/b.jsonl").write_text('{"prompt": "y"}\n')
    assert describe_input(folder, "data")["sha256"] != before["sha256"]


def test_a_module_in_the_working_directory_has_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text("def score(): ...")
    monkeypatch.chdir(tmp_path)
    assert describe_function("my_rewards:score")["sha256"] == sha256(b"def score(): ...")


def test_a_reward_function_has_the_digest_of_its_source(tmp_path: Path) -> None:
    source = tmp_path / "reward.py"
    source.write_text("def score(): ...")
    target = f"{source}:score"
    assert describe_function(target) == {
        "kind": "code",
        "path": str(source),
        "sha256": sha256(b"def score(): ..."),
        "target": target,
    }
    found = describe_function("surefoot.records:plain_number")
    assert found["sha256"] == sha256((Path(surefoot.__file__).parent / "records.py").read_bytes())
    assert describe_function("no_such_package.here:f")["sha256"] is None


def test_versions_machine_and_code_are_the_real_ones() -> None:
    packages = package_versions()
    assert packages["torch"] == version("torch")
    assert packages["numpy"] == version("numpy")
    here = machine(threads=3, device="cpu")
    assert (here["threads"], here["device"], here["cores"]) == (3, "cpu", os.cpu_count())
    assert here["python"] == sys.version.split()[0]
    assert here["memory_bytes"] > 2**28
    assert here["cpu"]
    assert code()["version"] == surefoot.__version__


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_the_one_that_git_names(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert subject._git_commit(tmp_path / ".git") is None
    git("init")
    assert subject._git_commit(tmp_path / ".git") is None
    git("commit", "--allow-empty", "-m", "x")
    commit = git("rev-parse", "HEAD")
    assert subject._git_commit(tmp_path / ".git") == commit
    git("pack-refs", "--all")
    assert not (tmp_path / ".git" / "refs" / "heads" / "main").exists()
    assert subject._git_commit(tmp_path / ".git") == commit
    git("checkout", "--detach")
    assert subject._git_commit(tmp_path / ".git") == commit


def test_the_codes_digest_changes_with_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "surefoot"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("a = 1")
    monkeypatch.setattr(surefoot, "__file__", str(package / "__init__.py"))
    first = code()
    (package / "sub").mkdir()
    (package / "sub" / "b.py").write_text("")
    second = code()
    (package / "__init__.py").write_text("a = 2")
    assert len({first["sha256"], second["sha256"], code()["sha256"]}) == 3
    assert first["commit"] is None


def config() -> Config:
    return build_config({"run": {"name": "tiny", "seed": 3, "steps": 5}})


def make(model: Path) -> Lineage:
    source = model.parent / "reward.py"
    source.write_text("def score(): ...")
    inputs = {
        "policy": describe_input(model, "model"),
        "reward/good": describe_function(f"{source}:score"),
        "prompts": describe_input("org/prompts", "data"),
    }
    return build_lineage(config(), inputs=inputs, threads=1, device="cpu")


def test_a_lineage_comes_back_from_its_file(model: Path, tmp_path: Path) -> None:
    made = make(model)
    write_lineage(tmp_path / "lineage.json", made)
    back = read_lineage(tmp_path / "lineage.json")
    assert back == made
    assert (back.run, back.seed) == ("tiny", 3)
    assert lineage_warnings(back, made) == []


def test_a_lineage_that_cannot_be_written_is_a_clear_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"lineage\.json could not be written: No such file.*hint:"):
        write_lineage(tmp_path / "nowhere" / "lineage.json", make(model))


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"run": "a"'])
def test_a_lineage_that_cannot_be_read_is_a_clear_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "lineage.json").write_text(text)
    with pytest.raises(RunFolderError, match="lineage cannot be read"):
        read_lineage(tmp_path / "lineage.json")


def with_input(lineage: Lineage, name: str, **changes: Any) -> Lineage:
    inputs = {**lineage.inputs, name: {**lineage.inputs[name], **changes}}
    return replace(lineage, inputs=inputs)


def test_other_weights_or_data_stop_a_resume(model: Path) -> None:
    old = make(model)
    (model / "model.safetensors").write_text("other weights")
    with pytest.raises(RunFolderError, match=r"other inputs: policy .*hint:") as caught:
        lineage_warnings(old, make(model))
    assert old.inputs["policy"]["sha256"] in str(caught.value)
    for changes in ({"path": "org/other"}, {"sha256": "00"}, {"revision": "v2"}):
        with pytest.raises(RunFolderError, match="prompts"):
            lineage_warnings(old, with_input(old, "prompts", **changes))
    fewer = replace(old, inputs={"policy": old.inputs["policy"]})
    for pair in ((old, fewer), (fewer, old)):
        with pytest.raises(RunFolderError, match="prompts was"):
            lineage_warnings(*pair)


def test_the_same_files_elsewhere_are_the_same_inputs(model: Path) -> None:
    old = make(model)
    moved = with_input(with_input(old, "policy", path="/moved/model"), "reward/good", path="/moved/reward.py")
    assert lineage_warnings(old, moved) == []


def test_an_edited_reward_is_warned_of_and_another_one_refused(model: Path) -> None:
    old = make(model)
    edited = with_input(old, "reward/good", sha256="00")
    (warning,) = lineage_warnings(old, edited)
    assert "reward/good" in warning
    with pytest.raises(RunFolderError, match="reward/good"):
        lineage_warnings(old, with_input(edited, "reward/good", path="/another.py"))


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("machine", "cpu", "another"),
        ("machine", "isa", []),
        ("machine", "threads", 2),
        ("machine", "python", "3.99"),
        ("machine", "device", "cuda"),
        ("packages", "torch", "9.9"),
        ("packages", "transformers", "9.9"),
        ("code", "sha256", "00"),
    ],
)
def test_what_may_change_the_last_bits_is_warned_of(model: Path, part: str, key: str, value: Any) -> None:
    old = make(model)
    new = replace(old, **{part: {**getattr(old, part), key: value}})
    (warning,) = lineage_warnings(old, new)
    assert f"is {value}" in warning


def test_what_changes_nothing_is_not_warned_of(model: Path) -> None:
    old = make(model)
    new = replace(old, packages={**old.packages, "pytest": "99"}, machine={**old.machine, "memory_bytes": 1})
    assert lineage_warnings(old, new) == []
