"""Reviews to be rated with a digit, and what about 19 people a review think of each digit: ``python prepare.py OUT``.

The real ratings (-4 to 4) of ``examples/film-reviews``, as ratings of answers: people's digit is 3 + rating / 2, and an
answer's rating is 1 minus the mean distance to people's digits, in units of the longest one. Films are parted as there.
Only half of the training reviews get ratings: where people are silent the term is left out, and the reward model, which
learned from other films, has to do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "film-reviews"))
from prepare import Rated, by_film, digest_of, fetch_ratings, join, parse_ratings, part

from surefoot.data.fetch import cache_dir
from surefoot.data.film_reviews import load_reviews
from surefoot.records import digest_of as answer_digest
from surefoot.training.durable import json_bytes, write_file

DIGITS: Final = ("1", "2", "3", "4", "5")
ASKED: Final = "Review of a film: {text}\n\nHow positive is it, from 1 (bad) to 5 (good)? Answer with one digit."
PER_FILM: Final = {"train": 3, "judge": 5, "held_out": 2}


def asked(review: Rated) -> list[dict[str, str]]:
    """The chat that asks for a digit."""
    return [{"role": "user", "content": ASKED.format(text=review.text)}]


def agreement(ratings: Sequence[float], digit: str) -> float:
    """How near a digit is to people's: 1 the same as everyone, 0 as far away as can be."""
    return 1 - sum(abs(int(digit) - (3 + rating / 2)) for rating in ratings) / (4 * len(ratings))


def chosen(reviews: Sequence[Rated], most: int) -> list[Rated]:
    """At most so many a film, by the digest of the text."""
    return [review for found in by_film(reviews).values() for review in found[:most]]


def prompts(reviews: Sequence[Rated]) -> list[dict[str, Any]]:
    """Rows with the prompt, the film, and people's agreement with each digit (for measuring, not for the reward)."""
    return [
        {"prompt": asked(r), "film": r.film, "agreement": {d: round(agreement(r.ratings, d), 4) for d in DIGITS}}
        for r in reviews
    ]


def ratings(reviews: Sequence[Rated]) -> list[dict[str, Any]]:
    """People's ratings of the five answers to every second review."""
    return [
        {
            "digest": answer_digest(asked(r), digit),
            "rating": round(agreement(r.ratings, digit), 4),
            "judge": "people",
        }
        for r in reviews
        if int(digest_of(r.text), 16) % 2 == 0
        for digit in DIGITS
    ]


def pairs(reviews: Sequence[Rated]) -> list[dict[str, Any]]:
    """For the reward model: the digit people agree with most, against one that they agree with least."""
    rows = []
    for r in reviews:
        ordered = sorted(DIGITS, key=lambda digit: agreement(r.ratings, digit))
        worse = ordered[int(digest_of(r.text, "pair"), 16) % 2]
        gap = agreement(r.ratings, ordered[-1]) - agreement(r.ratings, worse)
        rows.append(
            {"prompt": asked(r), "chosen": ordered[-1], "rejected": worse, "margin": round(gap, 4), "film": r.film}
        )
    return rows


def main(out: Path) -> None:
    """Fetch, join, part and write."""
    cache = cache_dir()
    reviews = join(load_reviews(cache), parse_ratings(*fetch_ratings(cache)))
    parts = part(review.film for review in reviews)
    of = {name: chosen([r for r in reviews if parts[r.film] == name], most) for name, most in PER_FILM.items()}
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in {
        "prompts-train.jsonl": prompts(of["train"]),
        "prompts-held-out.jsonl": prompts(of["held_out"]),
        "ratings.jsonl": ratings(of["train"]),
        "pairs.jsonl": pairs(of["judge"]),
    }.items():
        write_file(out / name, b"".join(map(json_bytes, rows)))
        sys.stdout.write(f"{out / name}: {len(rows)} rows\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
