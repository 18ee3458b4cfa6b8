"""Files written whole or not at all, lines that are never torn, JSON that every reader can read."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefoot.errors import RunFolderError
from surefoot.training.durable import (
    append_line,
    disk_trouble,
    json_bytes,
    keep_lines,
    parse_json,
    publish_folder,
    read_records,
    write_file,
)
from tests.training.full_disk import run_with_file_limit


def test_what_is_undefined_is_null_wherever_it_stands() -> None:
    value = {"a": float("nan"), "b": [1.0, float("-inf")], "c": {"d": np.array([np.nan, 2.0])}, "e": np.float32("inf")}
    assert json.loads(json_bytes(value)) == {"a": None, "b": [1.0, None], "c": {"d": [None, 2.0]}, "e": None}


def test_float32_comes_back_exactly() -> None:
    numbers = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    back = np.array(parse_json(json_bytes(numbers)))
    assert (back.astype(np.float32) == numbers).all()
    assert (back == numbers.astype(np.float64)).all()


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\u2028b\u2029c\u0085d", "half \ud83d a pair", "日本", "\x00\x1f"])
def test_any_text_stays_on_one_line_and_comes_back(text: str) -> None:
    data = json_bytes({"response": text})
    assert len(data.decode().splitlines()) == 1
    assert parse_json(data) == {"response": text}


@pytest.mark.parametrize("text", [b"NaN", b'{"a": Infinity}', b"[-Infinity]", b"{", b"", b"[" * 10**5])
def test_what_is_not_strict_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from surefoot.training.durable import append_line, write_file
page, lines = Path(sys.argv[1]) / "page", Path(sys.argv[1]) / "lines"
write_file(page, b"before")
append_line(lines, b"x" * 700 + b"\\n")
for write in (lambda: write_file(page, b"after" * 300), lambda: append_line(lines, b"y" * 700 + b"\\n")):
    try:
        write()
    except OSError as error:
        print(error.strerror, page.stat().st_size, lines.stat().st_size)
append_line(lines, b"z\\n")
print(page.read_text(), lines.read_text() == "x" * 700 + "\\nz\\n", sorted(p.name for p in page.parent.iterdir()))
"""
    printed = run_with_file_limit(tmp_path, 1000, program).splitlines()
    assert printed == ["File too large 6 701", "File too large 6 701", "before True ['lines', 'page']"]


@pytest.mark.parametrize("torn", ['{"step": 3', "\x00" * 200_000, '{"step": 3}'])
def test_a_torn_end_is_cut_before_the_next_line(tmp_path: Path, torn: str) -> None:
    file = tmp_path / "lines"
    file.write_text('{"step": 1}\n{"step": 2}\n' + torn)
    assert read_records(file) == [{"step": 1}, {"step": 2}]
    append_line(file, b'{"step": 4}\n')
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 4}\n'


def test_a_file_that_is_one_torn_line_is_emptied(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"step"')
    append_line(file, b"{}\n")
    assert file.read_text() == "{}\n"


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(RunFolderError, match=r"lines line 2 is not a JSON object.*hint:"):
        read_records(file)
    with pytest.raises(RunFolderError, match="line 2"):
        keep_lines(file, lambda record: True)
    assert file.read_text() == '{"step": 1}\n{"step"\n{"step": 3}\n'


def test_damage_behind_what_is_kept_goes_with_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"step": 1}\n{"step": 2}\n[3]\n{"step": 4}\n{"st')
    assert keep_lines(file, lambda record: record["step"] <= 2) == [{"step": 1}, {"step": 2}]
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_keeping_lines_of_no_file_makes_none(tmp_path: Path) -> None:
    assert keep_lines(tmp_path / "lines", lambda record: True) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_put_in_place_gives_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    (tmp_path / "staged").mkdir()
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if Path(source).name == "staged":
            raise OSError(errno.EIO, "no")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError):
        publish_folder(tmp_path / "staged", tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["old"]
    assert {path.name for path in tmp_path.iterdir()} == {"model", "staged"}


def test_trouble_with_the_disk_is_known_in_any_wrapping() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    wrapped = RuntimeError("could not save")
    wrapped.__cause__ = full
    foreign = Exception("Error while serializing: I/O error: Input/output error (os error 5)")
    assert all(disk_trouble(error) for error in (full, wrapped, foreign))
    assert not any(disk_trouble(error) for error in (TypeError("os"), KeyboardInterrupt(), AssertionError("os error")))


def test_a_replaced_file_keeps_the_usual_permissions(tmp_path: Path) -> None:
    write_file(tmp_path / "page", b"x")
    (tmp_path / "other").touch()
    assert (tmp_path / "page").stat().st_mode == (tmp_path / "other").stat().st_mode
