"""Digests that name data by what it says."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.data.fingerprint import fingerprint_file, fingerprint_rows
from surefoot.data.reading import Row
from surefoot.errors import DataError


def test_a_files_digest_is_its_sha256_whatever_its_size(tmp_path: Path) -> None:
    for content in (b"", b"abc", bytes(range(256)) * 5000):
        (tmp_path / "f").write_bytes(content)
        assert fingerprint_file(tmp_path / "f") == hashlib.sha256(content).hexdigest()
    with pytest.raises(DataError, match="No such file"):
        fingerprint_file(tmp_path / "missing")


def test_rows_are_named_by_prompt_columns_and_order_not_by_place() -> None:
    first = Row("a:1", 0, "x", {"n": 1, "m": "é"})
    second = Row("a:2", 1, ({"role": "user", "content": "y"},), {"when": datetime.date(2024, 1, 2)})
    known = fingerprint_rows([first, second])
    moved = [replace(first, id="b:7", index=5, columns={"m": "é", "n": 1}), second]
    assert fingerprint_rows(moved) == known
    others = [
        [second, first],
        [first],
        [replace(first, prompt="x "), second],
        [replace(first, columns={"n": 2, "m": "é"}), second],
        [first, replace(second, columns={"when": datetime.date(2024, 1, 3)})],
        [first, replace(second, prompt="y")],
    ]
    assert len({known, *map(fingerprint_rows, others)}) == len(others) + 1
