"""Prompt files: bad rows named by file and physical line, nothing skipped silently, ids that last."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surefoot.data.reading import Row, read_rows
from surefoot.errors import DataError

CHAT = [{"role": "user", "content": "hi"}]


def written(path: Path, *lines: str | bytes, end: bytes = b"\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + end for line in lines))
    return path


def refusal(source: Path | str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_rows(source, **options)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ bad rows

REPORTED = (
    '{"prompt":"a"}',
    "",
    '{"prompt": ',
    "[]",
    '{"prompt":""}',
    '{"messages":[{"role":"assistant","content":"x"}]}',
    '{"prompt":"b"}',
)


def test_bad_rows_are_refused_with_file_physical_line_and_reason_all_at_once(tmp_path: Path) -> None:
    message = refusal(written(tmp_path / "p.jsonl", *REPORTED))
    assert "4 of 6 rows" in message
    for part in (
        "p.jsonl line 3: not JSON",
        "p.jsonl line 4: an array",
        "p.jsonl line 5: prompt: is empty",
        "p.jsonl line 6: no user turn",
        "data.bad_rows: skip",
    ):
        assert part in message
    assert "line 2" not in message and "line 1" not in message


def test_skipping_is_asked_for_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        found = read_rows(written(tmp_path / "p.jsonl", *REPORTED), bad_rows="skip")
    assert [(row.id, row.index, row.prompt) for row in found.rows] == [("p.jsonl:1", 0, "a"), ("p.jsonl:7", 1, "b")]
    assert [bad.line for bad in found.skipped] == [3, 4, 5, 6]
    assert (found.read, found.kept) == (6, 2)
    assert "6 rows read, 2 kept, 4 skipped" in caplog.text and "p.jsonl line 4" in caplog.text


BAD: tuple[tuple[str | bytes, str], ...] = (
    ('{"prompt":"a"', "not JSON"),
    ('{"prompt":"a"} {"prompt":"b"}', "not JSON (Extra data"),
    ("prompt: a", "not JSON"),
    ('"a"', "a bare str"),
    ("7", "a bare int"),
    ("null", "a bare NoneType"),
    ('{"prompt":null}', "prompt: is null"),
    ('{"prompt":7}', "not int"),
    ('{"prompt":true}', "not bool"),
    ('{"prompt":" \\n\\t"}', "prompt: is empty"),
    ('{"prompt":[]}', "the list of messages is empty"),
    ('{"prompt":["a"]}', "message 1: must be an object"),
    ('{"prompt":{"role":"user","content":"a"}}', "a single object"),
    ('{"prompt":[{"role":"system","content":"a"}]}', "no user turn"),
    ('{"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}', "remove it"),
    ('{"prompt":"a","prompt":"b"}', "the key 'prompt' stands twice"),
    ('{"prompt":"a","x":{"y":1,"y":2}}', "the key 'y' stands twice"),
    (b'{"prompt":"caf\xe9"}', "not UTF-8 (byte 0xe9 at byte 15 of the line)"),
    (b'{"prompt":"a\x00b"}', "it holds NUL bytes"),
    ('{"prompt":"a\\u0000b"}', "NUL character"),
    ('{"prompt":"a\\ud83d"}', "half of a surrogate pair"),
    ('{"prompt":[{"role":"user","content":"a\\ud83d"}]}', "half of a surrogate pair"),
    ('{"question":"a"}', "no column 'prompt' (columns: question)"),
    ("{}", "no column 'prompt', nor any other"),
    ('{"prompt":"a","n":' + "1" * 5000 + "}", "not usable JSON"),
    ('{"prompt":' + "[" * 100_000, "nested too deeply"),
)


@pytest.mark.parametrize(("line", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_each_kind_of_bad_row_has_its_reason(tmp_path: Path, line: str | bytes, reason: str) -> None:
    file = written(tmp_path / "p.jsonl", '{"prompt":"a"}', line, '{"prompt":"b"}')
    message = refusal(file)
    assert "1 of 3 rows" in message and "p.jsonl line 2: " in message and reason in message
    assert [bad.line for bad in read_rows(file, bad_rows="skip").skipped] == [2]


def test_only_the_first_bad_rows_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    message = refusal(written(tmp_path / "p.jsonl", '{"prompt":"a"}', *["x"] * 40))
    assert "40 of 41 rows" in message and "line 6:" in message and "line 7:" not in message and "35 more" in message


def test_a_file_without_any_usable_row_is_refused_even_when_skipping(tmp_path: Path) -> None:
    message = refusal(written(tmp_path / "p.jsonl", "x", "[]"), bad_rows="skip")
    assert "2 of 2 rows" in message and "one JSON object a line" in message and "bad_rows" not in message
    assert "empty" in refusal(written(tmp_path / "q.jsonl"))
    assert "empty" in refusal(written(tmp_path / "r.jsonl", "", "  "))


ARRAYS = (("", "[", '  {"prompt": "a"}', "]"), ('[{"prompt": "a"},', '{"prompt": "b"}]'), ("[]",))


@pytest.mark.parametrize("lines", ARRAYS)
def test_a_json_array_over_lines_gets_the_right_hint(tmp_path: Path, lines: tuple[str, ...]) -> None:
    message = refusal(written(tmp_path / "p.json", *lines))
    assert "p.json line " in message and "without an array around" in message


# ------------------------------------------------------------------------------------------------------- columns


def test_a_wrong_column_names_the_existing_ones_and_the_nearest(tmp_path: Path) -> None:
    file = written(tmp_path / "p.jsonl", '{"question":"a","answer":"b"}', '{"question":"c","answer":"d"}')
    message = refusal(file, column="questions")
    assert "no row of" in message and "question, answer" in message and "data.column: question" in message
    assert "data.column" in refusal(file)
    assert [row.prompt for row in read_rows(file, column="question").rows] == ["a", "c"]


def test_messages_are_named_when_another_column_was_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path / "p.jsonl", json.dumps({"messages": CHAT, "id": 1}))
    assert "data.column: messages" in refusal(file, column="text")
    assert read_rows(file, column="messages").rows[0].prompt == tuple(CHAT)


def test_without_the_default_column_messages_are_the_prompt_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = json.dumps({"prompt": "a", "messages": CHAT})
    file = written(tmp_path / "p.jsonl", json.dumps({"messages": CHAT, "film": "x"}), both)
    with caplog.at_level(logging.INFO, logger="surefoot"):
        rows = read_rows(file).rows
    assert rows[0] == Row("p.jsonl:1", 0, tuple(CHAT), {"film": "x"})
    assert rows[1] == Row("p.jsonl:2", 1, "a", {"messages": CHAT})
    assert "1 rows have no column 'prompt'" in caplog.text


def test_other_columns_come_along_whatever_they_hold(tmp_path: Path) -> None:
    line = {"prompt": "a", "title": "Heat", "n": 3, "tags": ["x", {"y": None}], "none": None}
    row = read_rows(written(tmp_path / "p.jsonl", json.dumps(line))).rows[0]
    assert row.columns == {key: value for key, value in line.items() if key != "prompt"}


# ------------------------------------------------------------------------------------------------ bytes and lines


def test_byte_order_mark_and_windows_line_ends_are_no_part_of_the_text(tmp_path: Path) -> None:
    lines = [b"\xef\xbb\xbf" + b'{"prompt":"a"}', b"", b'{"prompt":" b "}', b"x"]
    message = refusal(written(tmp_path / "p.jsonl", *lines, end=b"\r\n"))
    assert "1 of 3 rows" in message and "line 4" in message
    rows = read_rows(tmp_path / "p.jsonl", bad_rows="skip").rows
    assert [(row.id, row.prompt) for row in rows] == [("p.jsonl:1", "a"), ("p.jsonl:3", " b ")]


def test_line_separators_inside_a_string_end_no_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d"
    lines = [json.dumps({"prompt": text}, ensure_ascii=False), '{"prompt":"b"}']
    rows = read_rows(written(tmp_path / "p.jsonl", *lines)).rows
    assert [(row.id, row.prompt) for row in rows] == [("p.jsonl:1", text), ("p.jsonl:2", "b")]


def test_a_last_line_without_line_end_counts(tmp_path: Path) -> None:
    file = written(tmp_path / "p.jsonl", '{"prompt":"a"}\n{"prompt":"b"}', end=b"")
    assert [row.prompt for row in read_rows(file).rows] == ["a", "b"]


def test_a_utf_16_file_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt":"a"}\n', encoding="utf-16")
    assert "UTF-16" in refusal(file)


def test_compressed_jsonl_and_a_torn_one(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"prompt":"a"}\n\n{"prompt":"b"}\n' * 50)
    (tmp_path / "p.jsonl.gz").write_bytes(whole)
    assert [row.id for row in read_rows(tmp_path / "p.jsonl.gz").rows[:2]] == ["p.jsonl.gz:1", "p.jsonl.gz:3"]
    (tmp_path / "p.jsonl.gz").write_bytes(whole[:-20])
    assert "could not be read" in refusal(tmp_path / "p.jsonl.gz")
    (tmp_path / "p.jsonl.gz").write_bytes(b'{"prompt":"a"}\n')
    assert "could not be read" in refusal(tmp_path / "p.jsonl.gz")


# ------------------------------------------------------------------------------------------ Parquet, folders, hub


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def test_parquet_rows_count_over_row_groups(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "n": n} for n in range(5)]
    found = read_rows(parquet(tmp_path / "p.parquet", rows))
    assert [(row.id, row.prompt, row.columns["n"]) for row in found.rows] == [
        (f"p.parquet:{n + 1}", f"p{n}", n) for n in range(5)
    ]
    rows[2]["prompt"], rows[4]["prompt"] = None, ""
    message = refusal(parquet(tmp_path / "p.parquet", rows))
    assert "p.parquet line 3: prompt: is null" in message and "line 5: prompt: is empty" in message


def test_parquet_messages_lose_the_nulls_that_columns_put_in(tmp_path: Path) -> None:
    chats = [{"prompt": CHAT}, {"prompt": [{"role": "user", "content": "x", "name": "Ann"}]}]
    rows = read_rows(parquet(tmp_path / "p.parquet", chats)).rows
    assert [row.prompt for row in rows] == [tuple(CHAT), ({"role": "user", "content": "x", "name": "Ann"},)]


def test_parquet_faults_are_those_of_the_file(tmp_path: Path) -> None:
    assert "data.column: text" in refusal(parquet(tmp_path / "p.parquet", [{"text": "a"}]), column="texts")
    written(tmp_path / "q.parquet", "no parquet")
    assert "q.parquet" in (message := refusal(tmp_path / "q.parquet")) and "could not be read" in message
    whole = parquet(tmp_path / "r.parquet", [{"prompt": "a"}]).read_bytes()
    (tmp_path / "r.parquet").write_bytes(whole[: len(whole) // 2])
    assert "could not be read" in refusal(tmp_path / "r.parquet")


def test_a_folder_is_read_in_the_order_of_its_names_and_ids_say_which_file(tmp_path: Path) -> None:
    written(tmp_path / "b.jsonl", '{"prompt":"b"}')
    written(tmp_path / "sub/a.jsonl", '{"prompt":"sub"}')
    parquet(tmp_path / "a.parquet", [{"prompt": "a"}])
    written(tmp_path / "README.md", "not read")
    found = read_rows(tmp_path)
    assert [row.id for row in found.rows] == ["a.parquet:1", "b.jsonl:1", "sub/a.jsonl:1"]
    assert [row.index for row in found.rows] == [0, 1, 2]
    assert found.files == (tmp_path / "a.parquet", tmp_path / "b.jsonl", tmp_path / "sub/a.jsonl")
    written(tmp_path / "sub/a.jsonl", "x")
    assert "sub/a.jsonl line 1" in refusal(tmp_path)


def test_what_is_no_prompt_file_is_refused_with_what_is(tmp_path: Path) -> None:
    assert ".jsonl" in refusal(written(tmp_path / "p.csv", "prompt,a"))
    assert "README.md" in refusal(written(tmp_path / "empty/README.md", "x").parent)
    written(tmp_path / "prompts.jsonl", '{"prompt":"a"}')
    assert "did you mean" in (message := refusal(tmp_path / "prompt.jsonl")) and "prompts.jsonl" in message
    assert "no folder" in refusal(tmp_path / "missing/prompts.jsonl")
    assert "does not exist" in refusal("prompts.jsonl.missing.parquet")


@pytest.mark.filterwarnings("ignore")
def test_a_hub_id_that_cannot_be_loaded_says_how_to_go_on() -> None:
    message = refusal("no-such-org/no-such-set:train")
    assert "no-such-org/no-such-set:train is no file here" in message and "hub id NAME or NAME:SPLIT" in message


@pytest.mark.filterwarnings("ignore")
def test_rows_of_a_hub_data_set_have_lasting_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub itself is out of reach of tests; everything behind its answer is real."""
    import datasets

    asked: list[tuple[str, str]] = []

    def load(name: str, *, split: str) -> datasets.Dataset:
        asked.append((name, split))
        return datasets.Dataset.from_list([{"prompt": "a", "n": 1}, {"prompt": "b", "n": 2}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    rows = [read_rows(source).rows for source in ("org/set", "org/set:test[:10]")]
    assert asked == [("org/set", "train"), ("org/set", "test[:10]")]
    assert rows[0] == (Row("org/set:train:1", 0, "a", {"n": 1}), Row("org/set:train:2", 1, "b", {"n": 2}))
    assert rows[1][0].id == "org/set:test[:10]:1"
