"""Checkpoints: whole or not there, through kills, full disks and damage (case CKP-05)."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import CheckpointError
from surefoot.training.checkpoint import CheckpointStore, verify
from tests.training.full_disk import run_on_tiny_disk, run_with_file_limit, tiny_disk_available

KILLER = Path(__file__).with_name("checkpoint_killer.py")
FILES = {"policy/model.safetensors": b"weights" * 300, "trainer.json": b'{"cursor": 4}'}


def write_files(folder: Path) -> None:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def saved(folder: Path, *steps: int, keep: int = 9) -> CheckpointStore:
    store = CheckpointStore(folder, keep=keep)
    for step in steps:
        store.save(step, write_files, meta={"seed": 1})
    return store


def step_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is one: a kill does not care, and syncing costs nothing."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="surefoot-", dir=shared if os.access(shared, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------------- what is written


def test_what_is_saved_is_found_with_its_meta(tmp_path: Path) -> None:
    meta = {"metrics": {"score/mean": 0.1, "kl": float("nan")}, "rng": [1, 2**63 - 1], "text": "über\u2028"}
    path = CheckpointStore(tmp_path / "checkpoints", keep=1).save(10, write_files, meta=meta)
    found = CheckpointStore(tmp_path / "checkpoints", keep=1).latest()
    assert found is not None
    assert (found.step, found.path, path.name) == (10, path, "step-10")
    assert found.meta == {"metrics": {"score/mean": 0.1, "kl": None}, "rng": [1, 2**63 - 1], "text": "über\u2028"}
    for name, data in FILES.items():
        assert (path / name).read_bytes() == data
        assert found.manifest["files"][name] == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert set(found.manifest["files"]) == set(FILES)


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nowhere", keep=1).latest() is None
    (tmp_path / "step-x").mkdir()
    (tmp_path / "notes.txt").touch()
    assert CheckpointStore(tmp_path, keep=1).latest() is None


def test_the_newest_is_by_number_not_by_name(tmp_path: Path) -> None:
    found = saved(tmp_path, 9, 100, 20).latest()
    assert found is not None
    assert found.step == 100


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        events.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        real_fsync(descriptor)

    def rename(source: Path, target: Path) -> None:
        events.append(("rename", Path(target).name))
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    (tmp_path / "checkpoints").mkdir()
    saved(tmp_path / "checkpoints", 1)
    published = events.index(("rename", "step-1"))
    synced_before = [name for kind, name in events[:published] if kind == "sync"]
    for name in ("model.safetensors", "trainer.json", "policy"):
        assert name in synced_before
    # The manifest is written aside as well, and comes after the files it speaks for.
    manifest = next(i for i, name in enumerate(synced_before) if "manifest.json" in name)
    assert manifest > max(synced_before.index(name) for name in ("model.safetensors", "trainer.json"))
    assert any(name.startswith(".step-1.tmp") for name in synced_before[manifest:])
    assert ("sync", "checkpoints") in events[published:]


# ---------------------------------------------------------------------------------------------------- killed


def run_killer(*arguments: str) -> Any:
    done = subprocess.run([sys.executable, str(KILLER), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_before_any_call_of_a_save_a_whole_checkpoint_is_there(memory_folder: Path) -> None:
    for step, result in run_killer("points", str(memory_folder)).items():
        assert result["problems"] == []
        assert result["points"] > 30
        # Both sides were met: killed before the new one was in place, and after.
        assert set(result["seen"]) == {"1old", f"{step}new"}


def test_killed_at_random_moments_what_was_saved_is_there(memory_folder: Path) -> None:
    result = run_killer("moments", str(memory_folder), "10")
    assert result["problems"] == []
    assert len(result["steps"]) == 10
    assert result["steps"][-1] > 3


# -------------------------------------------------------------------------------------------------- full disk

FILL = """
import sys
from pathlib import Path
from surefoot.errors import CheckpointError
from surefoot.training.checkpoint import CheckpointStore

folder = Path(sys.argv[1]) / "checkpoints"
store = CheckpointStore(folder, keep=3)
write = lambda size: lambda staged: (staged / "weights").write_bytes(b"x" * size)
store.save(10, write(300_000), meta={})
try:
    store.save(20, write(900_000), meta={})
except CheckpointError as error:
    print(error, "| exit", error.exit_code)
print(sorted(path.name for path in folder.iterdir()), store.latest().step)
store.save(30, write(200_000), meta={})
print(store.latest().step)
"""


@pytest.mark.skipif(not tiny_disk_available(), reason="mounting a file system is not permitted here")
def test_a_full_disk_leaves_the_previous_checkpoint_and_says_so(tmp_path: Path) -> None:
    printed = run_on_tiny_disk(tmp_path, 1000, FILL).splitlines()
    assert len(printed) == 3
    assert "step 20 could not be written" in printed[0]
    assert "No space left on device" in printed[0]
    assert "kB free" in printed[0]
    assert "kB needed" in printed[0]
    assert "the last whole checkpoint is step-10" in printed[0]
    assert "hint: make room" in printed[0]
    assert printed[0].endswith("| exit 3")
    assert printed[1:] == ["['step-10'] 10", "30"]


def test_a_file_that_may_not_grow_leaves_the_previous_checkpoint_and_says_so(tmp_path: Path) -> None:
    printed = run_with_file_limit(tmp_path, 500_000, FILL).splitlines()
    assert "File too large" in printed[0]
    assert "the last whole checkpoint is step-10" in printed[0]
    assert printed[1:] == ["['step-10'] 10", "30"]


SAFETENSORS = """
import sys
from pathlib import Path
import numpy
from safetensors.numpy import save_file
from surefoot.errors import CheckpointError
from surefoot.training.checkpoint import CheckpointStore

store = CheckpointStore(Path(sys.argv[1]), keep=3)
write = lambda n: lambda staged: save_file({"w": numpy.ones(n, "float32")}, staged / "weights.safetensors")
store.save(1, write(1000), meta={})
try:
    store.save(2, write(1_000_000), meta={})
except CheckpointError as error:
    print(error)
print(store.latest().step, len(list(Path(sys.argv[1]).iterdir())))
"""


def test_a_full_disk_told_by_a_library_in_its_own_words_is_the_same(tmp_path: Path) -> None:
    printed = run_with_file_limit(tmp_path, 500_000, SAFETENSORS).splitlines()
    assert "File too large" in printed[0]
    assert "hint: make room" in printed[0]
    assert printed[1] == "1 1"


@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "rename", "replace"])
def test_an_error_of_the_disk_at_any_call_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)
    for number in range(1, 100):
        store = saved(tmp_path, 9, 10)
        store.keep, count = 1, 0

        def failing(*args: Any, number: int = number, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, failing)
        try:
            store.save(20, write_files, meta={})
            error = None
        except CheckpointError as caught:
            error = str(caught)
        monkeypatch.setattr(os, call, real)
        found = store.latest()
        assert found is not None
        if error is not None:
            assert "Input/output error" in error
            assert "hint: put that right" in error
            assert step_names(tmp_path) >= {"step-9", "step-10"}
        else:
            assert found.step == 20
        store.clean()
        assert not [name for name in step_names(tmp_path) if name.startswith(".")]
        if count < number:  # the call was made fewer times than that: nothing failed
            assert number > 1
            return
        shutil.rmtree(tmp_path / "step-20", ignore_errors=True)
    pytest.fail("a save never came to its end")


def test_a_save_that_fails_removes_nothing(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 2)
    store.keep = 1

    def fail(folder: Path) -> None:
        write_files(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match="No space left"):
        store.save(3, fail, meta={})
    assert step_names(tmp_path) == {"step-1", "step-2"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TypeError("a bug"), RuntimeError("a bug")])
def test_what_is_no_trouble_with_the_disk_is_not_called_so(tmp_path: Path, error: BaseException) -> None:
    store = saved(tmp_path, 1)

    def fail(folder: Path) -> None:
        write_files(folder)
        raise error

    with pytest.raises(type(error)) as caught:
        store.save(2, fail, meta={})
    assert caught.value is error
    assert step_names(tmp_path) == {"step-1"}


def test_the_first_checkpoint_of_a_run_can_fail_too(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(CheckpointError, match="there is no earlier checkpoint"):
        saved(blocked / "checkpoints", 1)


# ----------------------------------------------------------------------------------------------------- damage


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def damaged_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Changes a manifest and makes its own digest fit again, as somebody who means harm would."""

    def damage(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["sha256"]
        change(manifest)
        text = json.dumps(dict(sorted(manifest.items())), ensure_ascii=False) + "\n"
        manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return damage


def renamed_entry(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["files"].update({name: manifest["files"].pop("trainer.json")})


def link(folder: Path) -> None:
    (folder / "trainer.json").rename(folder.parent / "elsewhere")
    (folder / "trainer.json").symlink_to(folder.parent / "elsewhere")


def link_folder(folder: Path) -> None:
    (folder / "policy").rename(folder.parent / "elsewhere")
    (folder / "policy").symlink_to(folder.parent / "elsewhere")


def replace_by_folder(folder: Path) -> None:
    (folder / "trainer.json").unlink()
    (folder / "trainer.json").mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the weights flipped": (
        lambda f: flip(f / "policy/model.safetensors", 1234),
        "policy/model.safetensors does not match its sha256",
    ),
    "a small file's last bit flipped": (lambda f: flip(f / "trainer.json", -1), "trainer.json does not match"),
    "truncated": (lambda f: os.truncate(f / "policy/model.safetensors", 2099), "has 2099 bytes instead of 2100"),
    "emptied": (lambda f: os.truncate(f / "trainer.json", 0), "has 0 bytes instead of 13"),
    "grown": (lambda f: os.truncate(f / "trainer.json", 14), "has 14 bytes instead of 13"),
    "a file removed": (lambda f: (f / "trainer.json").unlink(), "trainer.json is missing"),
    "a folder removed": (lambda f: shutil.rmtree(f / "policy"), "policy/model.safetensors is missing"),
    "the manifest removed": (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
    "the manifest truncated": (lambda f: os.truncate(f / "manifest.json", 50), "manifest.json cannot be read"),
    "the manifest emptied": (lambda f: os.truncate(f / "manifest.json", 0), "manifest.json cannot be read"),
    "the manifest not an object": (lambda f: (f / "manifest.json").write_text("[]"), "not an object"),
    "the manifest too deep": (lambda f: (f / "manifest.json").write_text("[" * 10**5), "nested too deeply"),
    "the manifest in binary": (lambda f: (f / "manifest.json").write_bytes(b"\xff\x00" * 99), "cannot be read"),
    "a file became a link": (link, "trainer.json is a link"),
    "a folder became a link": (link_folder, "policy/model.safetensors is a link"),
    "a file became a folder": (replace_by_folder, "trainer.json is not a file"),
    "a way out of the folder": (damaged_manifest(renamed_entry("../step-1/trainer.json")), "not a path inside"),
    "a way out in the middle": (damaged_manifest(renamed_entry("policy/../../x")), "not a path inside"),
    "an absolute path": (damaged_manifest(renamed_entry("/etc/hostname")), "not a path inside"),
    "the folder itself": (damaged_manifest(renamed_entry(".")), "not a path inside"),
    "a name with a zero byte": (damaged_manifest(renamed_entry("a\0b")), "not a path inside"),
    "another step's": (damaged_manifest(lambda m: m.update(step=3)), "its manifest is of step 3"),
    "without the step": (damaged_manifest(lambda m: m.pop("step")), "lacks the step"),
    "without files": (damaged_manifest(lambda m: m.pop("files")), "lacks files or meta"),
    "of a later format": (damaged_manifest(lambda m: m.update(format=2)), "reads up to 1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_the_reason(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = saved(tmp_path, 1, 2)
    harm, reason = DAMAGES[damage]
    assert verify(tmp_path / "step-2") == []
    harm(tmp_path / "step-2")
    problems = verify(tmp_path / "step-2")
    assert len(problems) == 1
    assert reason in problems[0]
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        found = store.latest()
    assert found is not None
    assert found.step == 1
    assert "step-2 is not whole" in caplog.text
    assert reason in caplog.text
    assert "taking step-1 instead" in caplog.text


def test_any_flipped_bit_of_the_manifest_is_noticed_or_without_effect(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    path = store.save(7, write_files, meta={"kl_coef": 0.05, "metrics": {"score/mean": 0.5}})
    whole, found = (path / "manifest.json").read_bytes(), store.latest()
    assert found is not None
    noticed = 0
    for position in range(len(whole)):
        flip(path / "manifest.json", position)
        now = store.latest()
        # A flipped space is still a space to JSON at times; what was read is the same then.
        assert now is None or now.manifest == found.manifest
        noticed += now is None
        (path / "manifest.json").write_bytes(whole)
    assert noticed > 0.9 * len(whole)


def test_half_written_folder_is_passed_over_and_replaced_by_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CKP-05: step_10 complete, step_20 with the policy written, critic and state missing."""
    store = saved(tmp_path, 10)
    (tmp_path / "step-20" / "policy").mkdir(parents=True)
    (tmp_path / "step-20" / "policy" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-20" / "stale").touch()
    found = store.latest()
    assert found is not None
    assert found.step == 10
    assert "step-20 is not whole (manifest.json is missing); taking step-10 instead" in caplog.text
    store.save(20, write_files, meta={})
    found = store.latest()
    assert found is not None
    assert found.step == 20
    assert not (tmp_path / "step-20" / "stale").exists()
    assert step_names(tmp_path) == {"step-10", "step-20"}


def test_nothing_whole_is_said_and_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = saved(tmp_path, 1)
    (tmp_path / "step-1" / "trainer.json").unlink()
    (tmp_path / "step-2").touch()
    (tmp_path / "step-3").symlink_to(tmp_path / "step-1")
    assert store.latest() is None
    assert "there is no whole checkpoint" in caplog.text
    assert caplog.text.count("it is not a folder") == 2
    store.save(2, write_files, meta={})
    found = store.latest()
    assert found is not None
    assert found.step == 2


def test_files_the_manifest_does_not_name_change_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "step-1" / ".DS_Store").touch()
    assert verify(tmp_path / "step-1") == []


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, opened, real = saved(tmp_path, 1, 2), [], Path.open

    def count(path: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", count)
    store.latest()
    assert sorted(opened) == sorted(tmp_path / "step-2" / name for name in ("manifest.json", *FILES))


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_link_among_the_files_is_refused(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    outside = tmp_path / "outside"
    outside.write_text("can change later")
    store = saved(tmp_path / "checkpoints", 1)
    with pytest.raises(CheckpointError, match="not a file of its own"):
        store.save(2, lambda folder: make(outside, folder / "weights"), meta={})
    assert step_names(tmp_path / "checkpoints") == {"step-1"}


# ------------------------------------------------------------------------------------------------- what is kept


def rated(folder: Path, scores: dict[int, Any], *, keep: int) -> CheckpointStore:
    store = CheckpointStore(folder, keep=keep, best_by="score/held_out")
    for step, score in scores.items():
        store.save(step, write_files, meta={"metrics": {"score/held_out": score}})
    return store


def test_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 9, 10, 11, keep=2)
    assert step_names(tmp_path) == {"step-10", "step-11"}


def test_the_best_is_kept_as_well(tmp_path: Path) -> None:
    store = rated(tmp_path, {1: 0.1, 2: 0.9, 3: 0.5, 4: 0.6, 5: -1.0}, keep=2)
    assert step_names(tmp_path) == {"step-2", "step-4", "step-5"}
    best = store.best()
    assert best is not None
    assert best.step == 2


def test_the_best_among_the_newest_takes_no_place_of_its_own(tmp_path: Path) -> None:
    rated(tmp_path, {1: 0.1, 2: 0.2, 3: 0.5, 4: 0.6}, keep=2)
    assert step_names(tmp_path) == {"step-3", "step-4"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None, "0.9", True])
def test_what_is_no_number_is_never_the_best(tmp_path: Path, bad: Any) -> None:
    rated(tmp_path, {1: -5.0, 2: bad, 3: -6.0, 4: bad}, keep=1)
    assert step_names(tmp_path) == {"step-1", "step-4"}


def test_a_misspelt_best_by_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path, keep=1, best_by="score/mean")
    for step in (1, 2):
        store.save(step, write_files, meta={"metrics": {"score/men": 1.0}})
    assert caplog.text.count("'score/mean'") == 1
    assert store.best() is None


def test_damaged_ones_do_not_count_among_the_kept(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 2, 3, keep=3)
    os.truncate(tmp_path / "step-2" / "trainer.json", 3)
    os.truncate(tmp_path / "step-3" / "trainer.json", 3)
    store.keep = 2
    store.save(4, write_files, meta={})
    assert verify(tmp_path / "step-1") == []
    assert verify(tmp_path / "step-4") == []


def test_the_one_just_saved_is_kept_below_a_later_one(tmp_path: Path) -> None:
    """After a resume from 10 with a damaged 20 of the right sizes on the disk, 11 must survive its own save."""
    store = saved(tmp_path, 10, 20, keep=3)
    flip(tmp_path / "step-20" / "trainer.json", 0)
    store.keep = 1
    store.save(11, write_files, meta={})
    found = store.latest()
    assert found is not None
    assert found.step == 11


def test_clean_removes_what_killed_writers_left_and_nothing_else(tmp_path: Path) -> None:
    store = saved(tmp_path, 1)
    for name in (".step-2.tmp-17-ab12cd34", ".step-1.deleted-17-ab12cd34", ".step-1.replaced-17-ab12cd34"):
        shutil.copytree(tmp_path / "step-1", tmp_path / name)
    (tmp_path / ".keep").touch()
    (tmp_path / "step-5").mkdir()
    store.clean()
    assert step_names(tmp_path) == {"step-1", "step-5", ".keep"}
    assert verify(tmp_path / "step-1") == []


def test_one_set_aside_while_it_was_replaced_is_found_and_put_back(tmp_path: Path) -> None:
    store = saved(tmp_path, 3)
    (tmp_path / "step-3").rename(tmp_path / ".step-3.replaced-17-ab12cd34")
    (tmp_path / "step-3").mkdir()
    found = store.latest()
    assert found is not None
    assert (found.step, found.path.name) == (3, ".step-3.replaced-17-ab12cd34")
    store.clean()
    assert step_names(tmp_path) == {"step-3"}
    assert verify(tmp_path / "step-3") == []
