"""Held-out reviews before and after PPO, judged by three judges that PPO never saw.

``python evaluate.py PPO-RUN JUDGES OUT``: one run. ``python evaluate.py pool OUT VERDICT...``: several seeds as one.

The judges: a second reward model, trained on people's ratings of other films with another seed; the critics' verdict,
a logistic regression on the words of reviews of those films; and VADER's lexicon. Every review after PPO meets every
review before it of the same film; a tie counts half. Intervals are over draws of whole films.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from surefoot.data.film_reviews import review_of
from surefoot.errors import DataError, UserError
from surefoot.evals.clustered import Mean, clustered_mean
from surefoot.models.reward_model import RewardModel
from surefoot.training.durable import json_bytes, read_records, write_file

JUDGES: Final = ("reward_model", "critics", "vader")
BEFORE, AFTER = "before", "after"


def critics(texts: Sequence[str], fresh: Sequence[bool]) -> Pipeline:
    """What critics' words say of their verdict: fresh or rotten."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return make_pipeline(words, LogisticRegression(C=10, class_weight="balanced", max_iter=1000)).fit(texts, fresh)


def critics_measured(judge: Pipeline, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How well it knows the verdicts on films it never saw."""
    said = judge.predict_proba([row["text"] for row in rows])[:, 1]
    right = [(p > 0.5) == row["fresh"] for p, row in zip(said, rows, strict=True)]
    accuracy = clustered_mean(right, [row["film"] for row in rows])
    area = float(roc_auc_score([row["fresh"] for row in rows], said))
    return accuracy.as_json("accuracy") | {"area_under_curve": area}


def answers_of(run: Path) -> list[dict[str, Any]]:
    """The run's first and last evaluation, as rows with ``film``, ``when``, ``text`` and ``ended``."""
    measured = read_records(run / "evaluations.jsonl")
    if len(measured) < 2:
        raise DataError("the run has no evaluation before and after training", got=str(run), hint="evaluate.prompts")
    rows = []
    for when, step in ((BEFORE, measured[0]["step"]), (AFTER, measured[-1]["step"])):
        for record in read_records(run / "evaluations" / f"step-{step}.jsonl"):
            rows.append(
                {
                    "film": record["prompt_id"],
                    "when": when,
                    "text": record["response"],
                    "ended": record["stop_reason"] != "length",
                    "prompt": record["prompt"],
                }
            )
    return rows


def judged(rows: Sequence[dict[str, Any]], model: RewardModel, reader: Pipeline) -> list[dict[str, Any]]:
    """The rows with each judge's score under its name."""
    vader = SentimentIntensityAnalyzer()
    texts = [row["text"] for row in rows]
    scores = {
        "reward_model": model.score_texts([review_of(row["prompt"], row["text"]) for row in rows]),
        "critics": reader.decision_function(texts),
        "vader": [vader.polarity_scores(text)["compound"] for text in texts],
    }
    kept = ("film", "when", "text", "ended")
    return [
        {key: row[key] for key in kept} | {name: float(scores[name][number]) for name in JUDGES}
        for number, row in enumerate(rows)
    ]


def wins(rows: Sequence[Mapping[str, Any]], judge: str) -> Mean:
    """How often a review after PPO is scored above one before it, of the same film and seed."""
    groups: dict[tuple[Any, str], dict[str, list[float]]] = {}
    for row in rows:
        sides = groups.setdefault((row.get("seed"), row["film"]), {BEFORE: [], AFTER: []})
        sides[row["when"]].append(row[judge])
    values, films = [], []
    for (_, film), sides in groups.items():
        for new in sides[AFTER]:
            for old in sides[BEFORE]:
                values.append((new > old) + 0.5 * (new == old))
                films.append(film)
    return clustered_mean(values, films)


def distinct(texts: Sequence[str], n: int) -> float:
    """Different runs of n words among all runs of n words."""
    runs = [tuple(words[i : i + n]) for words in (t.lower().split() for t in texts) for i in range(len(words) - n + 1)]
    return len(set(runs)) / max(1, len(runs))


def verdict_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Win rates, and how the reviews read."""
    found: dict[str, Any] = {"films": len({row["film"] for row in rows}), "wins": {}, BEFORE: {}, AFTER: {}}
    for judge in JUDGES:
        rate = wins(rows, judge)
        found["wins"][judge] = rate.as_json("share") | {"above_half": rate.low is not None and rate.low > 0.5}
    for when in (BEFORE, AFTER):
        own = [row for row in rows if row["when"] == when]
        texts = [row["text"] for row in own]
        found[when] = {
            "reviews": len(own),
            "words": sum(len(text.split()) for text in texts) / len(own),
            "ended": sum(row["ended"] for row in own) / len(own),
            "different": len(set(texts)) / len(own),
            **{f"distinct_{n}": distinct(texts, n) for n in (1, 2, 3)},
            **{judge: sum(row[judge] for row in own) / len(own) for judge in JUDGES},
        }
    return found


def evaluate(run: Path, judges: Path, out: Path) -> dict[str, Any]:
    """Judge a run; writes ``scores.jsonl`` and ``verdict.json``."""
    answers = answers_of(run)
    verdicts = read_records(judges / "data" / "verdicts-judge.jsonl")
    reader = critics([row["text"] for row in verdicts], [row["fresh"] for row in verdicts])
    rows = judged(answers, RewardModel(str(judges / "judge" / "model")), reader)
    held_out = read_records(judges / "data" / "verdicts-held-out.jsonl")
    last = read_records(run / "evaluations.jsonl")[-1]
    found = verdict_of(rows) | {
        "step": last["step"],
        "kl": last["evaluate/reference_k1"],
        "critics": critics_measured(reader, held_out),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / "scores.jsonl", b"".join(map(json_bytes, rows)))
    write_file(out / "verdict.json", json_bytes(found, indent=1))
    return found


def pool(out: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Several seeds as one: reviews meet those of their own seed, and draws of a film take all its seeds."""
    names = [folder.resolve().parent.name for folder in folders]
    if len(set(names)) < len(names):
        raise DataError("a seed is pooled with itself", got=", ".join(names), hint="name each run once")
    singles = [json.loads((folder / "verdict.json").read_bytes()) for folder in folders]
    rows = [
        row | {"seed": name}
        for name, folder in zip(names, folders, strict=True)
        for row in read_records(folder / "scores.jsonl")
    ]
    found = verdict_of(rows) | {
        "seeds": {
            name: {"kl": one["kl"], "step": one["step"], **{judge: one["wins"][judge] for judge in JUDGES}}
            for name, one in zip(names, singles, strict=True)
        }
    }
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / "pooled.json", json_bytes(found, indent=1))
    return found


def table(found: Mapping[str, Any]) -> str:
    """The verdict for a terminal."""
    lines = [f"{'after PPO against before':28}{'wins':>7}   95 % interval, {found['films']} films"]
    for judge in JUDGES:
        rate = found["wins"][judge]
        lines.append(f"  {judge:26}{rate['share']:7.3f}   {rate['low']:.3f} to {rate['high']:.3f}")
    lines.append(f"{'':28}{'before':>9}{'after':>9}")
    for key in found[BEFORE]:
        lines.append(f"  {key:26}{found[BEFORE][key]:9.3f}{found[AFTER][key]:9.3f}")
    if "kl" in found:
        lines.append(f"KL to the fine-tuned model, nats a review: {found['kl']:.2f} after step {found['step']}")
    for name, one in found.get("seeds", {}).items():
        shares = ", ".join(f"{judge} {one[judge]['share']:.3f}" for judge in JUDGES)
        lines.append(f"{name}: KL {one['kl']:.2f}, {shares}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """The two forms of the command; returns the exit code."""
    try:
        if arguments[:1] == ["pool"] and len(arguments) > 2:
            found = pool(Path(arguments[1]), [Path(one) for one in arguments[2:]])
        elif len(arguments) == 3:
            found = evaluate(*map(Path, arguments))
        else:
            sys.stderr.write(f"{(__doc__ or '').splitlines()[2]}\n")
            return 2
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
