"""The reward model against VADER's lexicon on pairs of films it never saw: ``python compare.py MODEL PAIRS OUT.json``.

Both order the same pairs; intervals are over draws of whole films, the difference's over the same draws, and a single
rater's share is computed from every person's ratings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from surefoot.evals.clustered import clustered_mean
from surefoot.models.reward_model import RewardModel
from surefoot.training.durable import digest_file, json_bytes, read_records, write_file


def compared(rows: Sequence[Mapping[str, Any]], model: Sequence[float], lexicon: Sequence[float]) -> dict[str, Any]:
    """Accuracies and their difference.

    Args:
        rows: pairs, with ``film`` and ``single_rater``.
        model, lexicon: leads of the chosen review over the other; a tie counts half.
    """
    films = [str(row["film"]) for row in rows]
    ours, theirs = ([(lead > 0) + 0.5 * (lead == 0) for lead in leads] for leads in (model, lexicon))
    difference = clustered_mean([a - b for a, b in zip(ours, theirs, strict=True)], films)
    return {
        "pairs": len(rows),
        "films": len(set(films)),
        "reward_model": clustered_mean(ours, films).as_json("accuracy"),
        "vader": clustered_mean(theirs, films).as_json("accuracy"),
        "difference": difference.as_json(),
        "single_rater": clustered_mean([float(row["single_rater"]) for row in rows], films).as_json("accuracy"),
        "beats_vader": difference.above,
    }


def main(model: str, pairs: Path, out: Path) -> None:
    """Score, compare and write."""
    rows = read_records(pairs)
    judge, vader = RewardModel(model), SentimentIntensityAnalyzer()
    texts = [[*row["prompt"], {"role": "assistant", "content": row[k]}] for row in rows for k in ("chosen", "rejected")]
    scores = judge.score_texts(texts)
    words = [vader.polarity_scores(row[k])["compound"] for row in rows for k in ("chosen", "rejected")]
    leads = ([s[i] - s[i + 1] for i in range(0, len(s), 2)] for s in (scores, words))
    found = compared(rows, *leads) | {"model": {"path": model, "sha256": judge.digest}, "data": digest_file(pairs)}
    write_file(out, json_bytes(found, indent=1))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
