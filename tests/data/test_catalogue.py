"""The catalogue: a version is written once, whole, and found again; two versions are compared by their rows."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from surefoot.data.catalogue import data_of, find_versions, read_version, register
from surefoot.data.difference import card_changes, difference, read_digests
from surefoot.errors import DataError
from tests.data.test_cards import data, with_card


def test_a_version_is_registered_once(tmp_path: Path) -> None:
    file, catalogue = with_card(data(tmp_path / "p.jsonl")), tmp_path / "catalogue"
    version, new = register(str(file), catalogue)
    assert new and str(version) == "films@1.10"
    stored = catalogue / "films" / "1.10.json"
    assert read_version(stored) == version
    before = stored.read_bytes()
    assert register(str(file), catalogue) == (version, False)
    assert stored.read_bytes() == before
    assert stored.stat().st_mode & 0o222 == 0
    assert sorted(p.name for p in stored.parent.iterdir()) == ["1.10.json"]
    assert data_of(version, catalogue) == file.resolve()


def test_a_version_never_changes(tmp_path: Path) -> None:
    file, catalogue = with_card(data(tmp_path / "p.jsonl")), tmp_path / "catalogue"
    register(str(file), catalogue)
    with_card(file, owner="somebody else")
    with pytest.raises(DataError, match=r"films@1\.10 is registered already.*another owner"):
        register(str(file), catalogue)
    with_card(data(file, '{"prompt": "b"}\n'))
    with pytest.raises(DataError, match="another sha256"):
        register(str(file), catalogue)
    with_card(file, version="2")
    assert register(str(file), catalogue)[1]
    assert [v.version for v in find_versions("films", catalogue)] == ["1.10", "2"]
    assert [v.version for v in find_versions("films@2", catalogue)] == ["2"]


def test_only_data_with_a_fitting_card_is_registered(tmp_path: Path) -> None:
    file = data(tmp_path / "p.jsonl")
    with pytest.raises(DataError, match="only data with a card"):
        register(str(file), tmp_path / "catalogue")
    with_card(file)
    data(file, '{"prompt": "b"}\n')
    with pytest.raises(DataError, match="changed after"):
        register(str(file), tmp_path / "catalogue")
    assert not (tmp_path / "catalogue").exists()


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_copy_outlives_the_data(as_folder: bool, tmp_path: Path) -> None:
    place = data(tmp_path / "d" / "p.jsonl")
    place = with_card(place.parent if as_folder else place)
    kept, _ = register(str(place), tmp_path / "kept", keep_copy=True)
    bare, _ = register(str(place), tmp_path / "bare")
    data(tmp_path / "d" / "p.jsonl", '{"prompt": "b"}\n')
    copy = data_of(kept, tmp_path / "kept")
    assert (copy / "p.jsonl" if as_folder else copy).read_text(encoding="utf-8") == '{"prompt": "a"}\n'
    with pytest.raises(DataError, match="no copy was kept"):
        data_of(bare, tmp_path / "bare")


def test_of_many_who_register_at_once_one_is_first(tmp_path: Path) -> None:
    file, catalogue = with_card(data(tmp_path / "p.jsonl")), tmp_path / "catalogue"
    begin, news = threading.Barrier(8), list[bool]()

    def one() -> None:
        begin.wait()
        news.append(register(str(file), catalogue)[1])

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(news) == [False] * 7 + [True]
    assert [p.name for p in (catalogue / "films").iterdir()] == ["1.10.json"]


def test_what_is_not_registered_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="allowed: nothing"):
        find_versions("films", tmp_path / "none")
    register(str(with_card(data(tmp_path / "p.jsonl"))), tmp_path / "c")
    for wrong, known in (("film", "allowed: films"), ("films@3", r"allowed: films@1\.10"), ("../c", "allowed: films")):
        with pytest.raises(DataError, match=known):
            find_versions(wrong, tmp_path / "c")
    (tmp_path / "c" / "films" / "1.10.json").unlink()
    (tmp_path / "c" / "films" / "9.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read"):
        find_versions("films", tmp_path / "c")


# ---------------------------------------------------------------------------------------------------------- difference


def rows(path: Path, *values: dict[str, Any]) -> Any:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return read_digests(str(path))


def test_rows_are_told_by_their_prompt(tmp_path: Path) -> None:
    old = rows(tmp_path / "a.jsonl", {"prompt": "1", "x": 1}, {"prompt": "2", "x": 2}, {"prompt": "3", "x": 3})
    new = rows(tmp_path / "b.jsonl", {"prompt": "4", "x": 4}, {"prompt": "3", "x": 9, "y": 0}, {"x": 1, "prompt": "1"})
    found = difference(old, new)
    assert (found.key, found.rows) == ("prompt", (3, 3))
    assert (found.added, found.removed, found.changed) == (("b.jsonl:1",), ("a.jsonl:2",), {"b.jsonl:2": ("x", "y")})
    assert (found.new_columns, found.lost_columns) == (("y",), ())
    assert not found.none and difference(new, new).none


def test_rows_without_a_key_are_told_by_all_they_hold(tmp_path: Path) -> None:
    old = rows(tmp_path / "a.jsonl", {"prompt": "1", "x": 1}, {"prompt": "1", "x": 1}, {"prompt": "1", "x": 2})
    new = rows(tmp_path / "b.jsonl", {"prompt": "1", "x": 2}, {"prompt": "1", "x": 1}, {"prompt": "1", "x": 3})
    found = difference(old, new)
    assert (found.key, found.added, found.removed, found.changed) == (None, ("b.jsonl:3",), ("a.jsonl:2",), {})


def test_a_key_can_be_chosen(tmp_path: Path) -> None:
    old = rows(tmp_path / "a.jsonl", {"prompt": "1", "k": "a"}, {"prompt": "2", "k": "b"})
    new = rows(tmp_path / "b.jsonl", {"prompt": "2", "k": "a"}, {"prompt": "1", "k": "b"})
    assert difference(old, new, key="k").changed == {"b.jsonl:1": ("prompt",), "b.jsonl:2": ("prompt",)}
    twice = rows(tmp_path / "c.jsonl", {"prompt": "1", "k": "a"}, {"prompt": "2", "k": "a"})
    with pytest.raises(DataError, match=r"does not tell the rows of .*c\.jsonl apart"):
        difference(old, twice, key="k")
    with pytest.raises(DataError, match="does not tell"):
        difference(old, new, key="nothing")


def test_an_id_is_a_better_key_than_a_prompt(tmp_path: Path) -> None:
    old = rows(tmp_path / "a.jsonl", {"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b"})
    new = rows(tmp_path / "b.jsonl", {"id": 1, "prompt": "a, better"}, {"id": 2, "prompt": "b"})
    assert difference(old, new).changed == {"b.jsonl:1": ("prompt",)}


def test_rows_that_cannot_be_read_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl line 2"):
        read_digests(str(data(tmp_path / "a.jsonl", '{"prompt": "a"}\n[]\n')))


def test_fields_of_cards() -> None:
    assert card_changes({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": (1, None), "b": (2, 3), "c": (None, 4)}
