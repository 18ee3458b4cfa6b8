"""Parquet columns of every type: prompts that are none are refused with their place, other columns go along."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surefoot.data.formats import DEEPEST
from surefoot.data.reading import read_rows
from surefoot.errors import DataError

PROMPTS = ["Say yes .", "Say no ."]
DAY = datetime.date(2024, 1, 1)
NOON = datetime.datetime(2024, 1, 1, 12)
YEAR_11104 = 2**58  # in microseconds since 1970


def message(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def broken_text() -> pa.Array:
    """Two texts, the first of them no UTF-8; nothing checks that when it is written."""
    offsets = pa.py_buffer(np.array([0, 2, 4], np.int32))
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfeab")])


def written(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "p.parquet")
    return folder / "p.parquet"


NO_PROMPTS: dict[str, tuple[Any, str]] = {
    "bytes": (pa.array([b"a", b"\xff"]), "prompt: must be a text or a list of chat messages, not bytes"),
    "dates": (pa.array([DAY] * 2), "not date"),
    "times": (pa.array([NOON] * 2), "not datetime"),
    "numbers": (pa.array([1, 2]), "not int"),
    "decimals": (pa.array([decimal.Decimal("1.5")] * 2), "not Decimal"),
    "nulls": (pa.nulls(2), "prompt: is null"),
    "an object": (pa.array(message("x") * 2), "is a single object"),
    "texts in a list": (pa.array([["a"], ["b"]]), "message 1: must be an object with role and content, not str"),
    "bytes in a list": (pa.array([[b"a"], [b"b"]]), "not bytes"),
    "null in a list": (pa.array([[None], [None]], pa.list_(pa.string())), "not NoneType"),
    "empty lists": (pa.array([[], []], pa.list_(pa.string())), "the list of messages is empty"),
    "lists in lists": (pa.array([[["a"]], [["b"]]]), "not list"),
    "a map": (pa.array([[("role", "user")]] * 2, pa.map_(pa.string(), pa.string())), "not tuple"),
    "bytes as content": (pa.array([message(b"x")] * 2), "content must be text, not bytes"),
    "a date as content": (pa.array([message(DAY)] * 2), "content must be text, not date"),
    "parts as content": (pa.array([message([{"type": "text", "text": "x"}])] * 2), "content must be text, not list"),
    "bytes as role": (pa.array([[{"role": b"user", "content": "x"}]] * 2), "is none of system"),
}


@pytest.mark.parametrize("name", NO_PROMPTS)
def test_a_column_that_holds_no_prompts(name: str, tmp_path: Path) -> None:
    column, words = NO_PROMPTS[name]
    with pytest.raises(DataError, match=r"2 of 2 rows of .*p\.parquet line 1: ") as caught:
        read_rows(written(tmp_path, prompt=column))
    assert words in str(caught.value)
    assert caught.value.hint


PROMPT_TYPES = {
    "large text": pa.array(PROMPTS, pa.large_string()),
    "views": pa.array(PROMPTS, pa.string_view()),
    "a dictionary": pa.array(PROMPTS).dictionary_encode(),
}


@pytest.mark.parametrize("name", PROMPT_TYPES)
def test_texts_however_they_are_stored(name: str, tmp_path: Path) -> None:
    assert [row.prompt for row in read_rows(written(tmp_path, prompt=PROMPT_TYPES[name])).rows] == PROMPTS


OTHERS: dict[str, tuple[Any, list[Any]]] = {
    "bytes": (pa.array([b"a", b"\xff"]), [b"a", b"\xff"]),
    "dates": (pa.array([DAY, None]), [DAY, None]),
    "times": (pa.array([NOON] * 2), [NOON] * 2),
    "decimals": (pa.array([decimal.Decimal("1.5")] * 2), [decimal.Decimal("1.5")] * 2),
    "nested": (pa.array([{"a": [b"x"]}] * 2), [{"a": [b"x"]}] * 2),
    "nulls": (pa.nulls(2), [None, None]),
    "the largest": (pa.array([2**64 - 1, 1], pa.uint64()), [2**64 - 1, 1]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_columns_go_along(name: str, tmp_path: Path) -> None:
    column, values = OTHERS[name]
    rows = read_rows(written(tmp_path, prompt=PROMPTS, x=column)).rows
    assert [row.columns["x"] for row in rows] == values


TOO_MUCH: dict[str, tuple[Any, str]] = {
    "a year to come": (pa.array([YEAR_11104, 1], pa.timestamp("us")), "x: "),
    "a day to come": (pa.array([2**31 - 1, 1], pa.date32()), "x: "),
    "in a list": (pa.array([[YEAR_11104], [1]], pa.list_(pa.timestamp("us"))), "x: "),
    "broken UTF-8": (broken_text(), "x: 'utf-8' codec can't decode byte 0xff"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_value_that_python_cannot_hold_is_a_fault_of_its_row(name: str, tmp_path: Path) -> None:
    column, words = TOO_MUCH[name]
    file = written(tmp_path, prompt=PROMPTS, x=column)
    with pytest.raises(DataError, match=r"1 of 2 rows of .*p\.parquet line 1: ") as caught:
        read_rows(file)
    assert words in str(caught.value)
    kept = read_rows(file, bad_rows="skip")
    assert [row.id for row in kept.rows] == ["p.parquet:2"]
    assert [(bad.line, bad.reason.partition(":")[0]) for bad in kept.skipped] == [(1, "x")]


def test_broken_utf8_in_the_prompt_itself(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: prompt: 'utf-8' codec"):
        read_rows(written(tmp_path, prompt=broken_text()))


@pytest.mark.parametrize("damage", ["empty", "cut", "garbled", "text"])
def test_a_file_that_is_no_whole_parquet(damage: str, tmp_path: Path) -> None:
    texts = [f"{n:x}" * 10 for n in range(5000)]
    file = tmp_path / "p.parquet"
    pq.write_table(pa.table({"prompt": texts}), file, compression="gzip")
    data = file.read_bytes()
    garbled = data[:200] + bytes(255 - b for b in data[200:2000]) + data[2000:]
    file.write_bytes(
        {"empty": b"", "cut": data[: len(data) // 2], "garbled": garbled, "text": b'{"prompt": "a"}\n'}[damage]
    )
    with pytest.raises(DataError, match="the Parquet file could not be read"):
        read_rows(file)


@pytest.mark.parametrize(("depth", "bad"), [(DEEPEST, 0), (DEEPEST + 1, 1), (900, 1), (100_000, 1)])
def test_json_within_json_within_json(depth: int, bad: int, tmp_path: Path) -> None:
    """Rows go to the rewards' process, and what is nested deeper than that cannot."""
    file = tmp_path / "p.jsonl"
    # The row itself is the first level.
    file.write_text(f'{{"prompt": "a", "x": {"[" * (depth - 1)}{"]" * (depth - 1)}}}\n{{"prompt": "b"}}\n')
    found = read_rows(file, bad_rows="skip")
    assert [row.reason for row in found.skipped] == ["nested too deeply"] * bad


def test_many_brackets_are_not_deep(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "' + "[" * 500 + '", "x": [' + ",".join(["[]"] * 500) + "]}\n")
    assert read_rows(tmp_path / "p.jsonl").kept == 1
