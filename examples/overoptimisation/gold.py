"""Proxy and gold over a run: ``python gold.py RUN REWARD-MODEL OUT`` writes ``gold.json`` and ``gold.png``.

The proxy is the run's own held-out score. The gold is a reward model trained on people's ratings, which the policy
never saw, in deviations of the scores that it gives the starting policy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from surefoot.data.film_reviews import review_of
from surefoot.errors import DataError, UserError
from surefoot.evals.clustered import clustered_mean
from surefoot.models.reward_model import RewardModel
from surefoot.training.durable import json_bytes, read_records, write_file


def curve(run: Path, model: RewardModel) -> list[dict[str, Any]]:
    """A point an evaluation: step, KL, proxy and gold with intervals over films."""
    measured = read_records(run / "evaluations.jsonl")
    if len(measured) < 3:
        raise DataError(
            "the run was evaluated too seldom for a curve", got=len(measured), hint="evaluate.every, run.steps"
        )
    points: list[dict[str, Any]] = []
    mean = deviation = None
    for number, line in enumerate(measured, start=1):
        sys.stderr.write(f"gold: evaluation {number} of {len(measured)}\n")
        records = read_records(run / "evaluations" / f"step-{line['step']}.jsonl")
        scores = model.score_texts([review_of(record["prompt"], record["response"]) for record in records])
        if mean is None or deviation is None:
            mean, deviation = float(np.mean(scores)), float(np.std(scores))
        films = [record["prompt_id"] for record in records]
        points.append(
            {
                "step": line["step"],
                "kl": line["evaluate/reference_k1"],
                "tokens": line["evaluate/tokens_mean"],
                "proxy": clustered_mean([record["score"] for record in records], films).as_json(),
                "gold": clustered_mean([(score - mean) / deviation for score in scores], films).as_json(),
                "example": records[0]["response"],
            }
        )
    return points


def draw(points: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Both curves over the steps."""
    figure, left = plt.subplots(figsize=(7, 4), dpi=120)
    right = left.twinx()
    x = [point["step"] for point in points]
    for axis, key, colour, label in (
        (left, "proxy", "tab:orange", "proxy: the lexicon's score"),
        (right, "gold", "tab:blue", "gold: people's reward model, deviations"),
    ):
        axis.plot(x, [point[key]["mean"] for point in points], color=colour, marker="o", label=label)
        low, high = ([point[key][side] for point in points] for side in ("low", "high"))
        axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_ylabel(label, color=colour)
    left.set_xticks(x, [f"{point['step']}\n{point['kl']:.0f}" for point in points])
    left.set_xlabel("PPO step, and nats a review away from the start")
    figure.tight_layout()
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)


def summary(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where gold was best, and whether the end lies below that with intervals that do not meet."""
    best = max(points, key=lambda point: point["gold"]["mean"])
    last = points[-1]
    return {
        "best_step": best["step"],
        "proxy_rose": last["proxy"]["low"] > points[0]["proxy"]["high"],
        "gold_fell": last["gold"]["high"] < best["gold"]["low"],
        "points": list(points),
    }


def main(run: Path, model: Path, out: Path) -> int:
    """Score, write and draw; returns the exit code."""
    try:
        found = summary(curve(run, RewardModel(str(model))))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / "gold.json", json_bytes(found, indent=1))
    draw(found["points"], out / "gold.png")
    for point in found["points"]:
        sys.stdout.write(
            f"step {point['step']:3}  KL {point['kl']:6.1f}  tokens {point['tokens']:5.1f}  "
            f"proxy {point['proxy']['mean']:+.3f}  gold {point['gold']['mean']:+.3f}  {point['example'][:70]!r}\n"
        )
    rose, fell = ("yes" if found[key] else "no" for key in ("proxy_rose", "gold_fell"))
    sys.stdout.write(f"proxy rose: {rose}; gold fell from its best (step {found['best_step']}): {fell}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
