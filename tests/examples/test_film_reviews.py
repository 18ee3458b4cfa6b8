"""The film example's data, on made-up reviews in the packages' own forms."""

from __future__ import annotations

import importlib.util
import io
import random
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from surefoot.data.cards import check_cards
from surefoot.data.film_reviews import Review
from surefoot.errors import DataError
from surefoot.training.durable import read_records

FOLDER = Path(__file__).parents[2] / "examples" / "film-reviews"


def module(name: str) -> ModuleType:
    """A script of the example."""
    spec = importlib.util.spec_from_file_location(f"film_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


prepare = module("prepare")
FILMS = [f"Film {n}" for n in range(40)]


def made_up() -> tuple[list[Review], str, str]:
    """Reviews, and the two rating files, quotes and line ends as untidy as the real ones."""
    dice = random.Random(0)
    reviews, means, raw = [], [], []
    for film in FILMS:
        for number in range(6):
            fresh = number % 2 == 0
            text = f'{film}: it\'s number {number}, "{"good" if fresh else "bad"}".'
            ratings = [max(-4, min(4, (2 if fresh else -2) + dice.randint(-1, 1))) for _ in range(5)]
            mean = sum(ratings) / 5
            reviews.append(Review(film, text, fresh))
            means.append(f"{film}{number}\t{mean}\t{text.replace(chr(34), chr(39) * 2).upper()}\r\n")
            raw.append(f"{film}{number}\t{mean}\t0.5\t{ratings}\r\n")
    return reviews, "".join(means), "".join(raw)


@pytest.fixture(scope="module")
def rated() -> list[Any]:
    reviews, means, raw = made_up()
    again = [*reviews, reviews[0], Review("Film 0", "a plot", None), Review("Film 0", "nobody rated it", True)]
    found: list[Any] = prepare.join(again, prepare.parse_ratings(means, raw))
    assert len(found) == len(reviews), "each text once, plots and unrated ones left out"
    return found


def test_no_film_is_on_two_sides(rated: list[Any]) -> None:
    files = prepare.files_of(rated)
    films = {name: {row["film"] for row in rows} for name, rows in files.items()}
    trained = films["demonstrations.jsonl"] | films["pairs-train.jsonl"]
    judged = films["pairs-judge.jsonl"] | films["verdicts-judge.jsonl"]
    measured = films["pairs-held-out.jsonl"] | films["verdicts-held-out.jsonl"] | films["prompts-held-out.jsonl"]
    groups = [trained, judged, measured, films["prompts-train.jsonl"]]
    assert all(groups) and sum(map(len, groups)) == len(set().union(*groups)) == len(FILMS)
    counts = {name: list(prepare.part(FILMS).values()).count(name) for name in prepare.SHARES}
    assert counts == {name: pytest.approx(40 * share, abs=1) for name, share in prepare.SHARES.items()}


def test_demonstrations_lean_to_neither_verdict(rated: list[Any]) -> None:
    rows = prepare.demonstrations([r for r in rated if not (r.film == "Film 1" and r.fresh)])
    texts = [row["messages"][-1]["content"] for row in rows]
    assert sum("good" in text for text in texts) == sum("bad" in text for text in texts) == len(rows) / 2
    assert "Film 1" not in {row["film"] for row in rows}, "it has no fresh review any more"
    assert rows[0]["messages"][0] == {
        "role": "user",
        "content": f'Write a one-sentence review of the film "{rows[0]["film"]}".',
    }


def test_pairs_are_of_one_film_and_far_apart(rated: list[Any]) -> None:
    rows = prepare.preferences(rated, 5)
    mean = {r.text: r.mean for r in rated}
    film = {r.text: r.film for r in rated}
    for row in rows:
        assert film[row["chosen"]] == film[row["rejected"]] == row["film"]
        assert row["margin"] == pytest.approx(mean[row["chosen"]] - mean[row["rejected"]], abs=1e-3)
        assert row["margin"] >= prepare.GAP and 0.5 < row["single_rater"] <= 1
    assert max(sum(row["film"] == name for row in rows) for name in FILMS) == 5


def test_a_single_rater_by_hand() -> None:
    assert prepare.single_rater((2, 1), (1, 0)) == (3 + 0.5) / 4


def test_rows_of_another_form_are_refused() -> None:
    with pytest.raises(DataError, match="not as expected"):
        prepare.parse_ratings("1\tgood\ttext\n", "1\t1.0\t0.5\t[1]\n")
    with pytest.raises(DataError, match="not as expected"):
        prepare.parse_ratings("1\t1.0\ttext\n", "2\t1.0\t0.5\t[1]\n")


def test_the_ratings_lie_in_an_archive_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, means, raw = made_up()
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        for name, text in ((prepare.MEANS, means), (prepare.RAW, raw)):
            entry = tarfile.TarInfo(f"hutto/{name}")
            data = text.encode()
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    outer = tmp_path / "package.zip"
    with zipfile.ZipFile(outer, "w") as package:
        package.writestr(prepare.ARCHIVE, inner.getvalue())
    monkeypatch.setattr(prepare, "fetch_package", lambda package, cache: outer)
    assert prepare.fetch_ratings(tmp_path) == (means, raw)


def test_the_whole_of_it_writes_cards_that_training_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviews, means, raw = made_up()
    monkeypatch.setattr(prepare, "load_reviews", lambda cache: reviews)
    monkeypatch.setattr(prepare, "fetch_ratings", lambda cache: (means, raw))
    prepare.main(tmp_path / "data")
    files = sorted((tmp_path / "data").glob("*.jsonl"))
    assert len(files) == 8
    check_cards(map(str, files), require=True)
    first = {file.name: file.read_bytes() for file in files}
    prepare.main(tmp_path / "data")
    assert {file.name: file.read_bytes() for file in files} == first


def test_the_comparison_is_paired_by_film() -> None:
    compare = module("compare")
    rows = [{"film": f"f{n % 30}", "single_rater": 0.9} for n in range(120)]
    dice = random.Random(1)
    lexicon = [dice.choice((1.0, -1.0, 0.0)) for _ in rows]
    better = [1.0 if lead <= 0 and dice.random() < 0.5 else lead for lead in lexicon]
    found = compare.compared(rows, better, lexicon)
    assert found["vader"]["accuracy"] == pytest.approx(sum((s > 0) + 0.5 * (s == 0) for s in lexicon) / 120)
    assert found["difference"]["mean"] == pytest.approx(found["reward_model"]["accuracy"] - found["vader"]["accuracy"])
    assert found["beats_vader"] and found["films"] == 30
    assert not compare.compared(rows, lexicon, lexicon)["beats_vader"]
    assert found["single_rater"]["accuracy"] == pytest.approx(0.9)
    assert read_records(Path("nothing.jsonl")) == []
