#!/usr/bin/env python
"""Measure the table of docs/when-ppo.md on the quickstart's task: prompting, best of n, and PPO with parts taken out.

Usage: .venv/bin/python scripts/when_ppo.py [FOLDER] [--steps 12]
Finished variants are kept in FOLDER (default runs/when-ppo), so an interrupted measurement goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

from surefoot import load_config, train
from surefoot.assembly.train import build_parts, exact_arithmetic, read_inputs
from surefoot.cli.quickstart import prepare
from surefoot.config import Config
from surefoot.envs import SingleTurn
from surefoot.training.durable import read_records
from surefoot.training.evaluation import Evaluator, confidence_interval

VARIANTS = {
    "PPO (the quickstart)": [],
    "PPO without clipping": ["ppo.clip_low=1.0", "ppo.clip_high=1e6"],
    "PPO without a critic (REINFORCE with a batch baseline)": ["ppo.value_coef=0", "ppo.lam=1"],
    "PPO without KL": ["ppo.kl.coef=0"],
}
BEST_OF = 8
ASK = 'Write a very positive one-sentence review of the film "{film}".'


def evaluate_start(config: Config, samples: int, name: str, folder: Path) -> list[dict[str, Any]]:
    """Responses of the starting model to the held-out prompts."""
    file = folder / f"{name}.json"
    if file.exists():
        return json.loads(file.read_text())
    with exact_arithmetic(None):
        inputs = read_inputs(config)
        parts = build_parts(config, inputs)
        section = config.evaluate.model_copy(update={"samples_per_prompt": samples})
        evaluator = Evaluator(
            inputs.held_out.prompts,
            inputs.reward,
            parts.reference,
            SingleTurn(),
            inputs.codec,
            inputs.codec.stop_ids,
            config.model_copy(update={"evaluate": section}),
        )
        result = evaluator(parts.learner.policy, 0)
        inputs.reward.close()
    rows = [{**r, "tokens": int(n)} for r, n in zip(result.responses(), result.rollout.mask.sum(axis=1), strict=True)]
    file.write_text(json.dumps(rows))
    return rows


def row(name: str, scores: list[float], kl: float | None, perplexity: float | None, tokens: float, cost: str) -> str:
    """A line of the table."""
    low, high = confidence_interval(scores)
    shown = ["-" if x is None else f"{x:.1f}" for x in (kl, perplexity)]
    return (
        f"| {name} | {fmean(scores):.3f} ({low:.3f} to {high:.3f}) | {shown[0]} | {shown[1]} | {tokens:.0f} | {cost} |"
    )


def asked_prompts(config_file: Path) -> Path:
    """The held-out films with a prompt that asks for what the reward wants."""
    source, target = config_file.parent / "films-held-out.jsonl", config_file.parent / "films-asked.jsonl"
    films = [json.loads(line)["film"] for line in source.read_text().splitlines()]
    rows = [{"prompt": [{"role": "user", "content": ASK.format(film=film)}], "film": film} for film in films]
    target.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    return target


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/when-ppo"))
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    config_file = prepare("full", args.folder)
    base = [f"run.dir={args.folder}", f"run.steps={args.steps}"]
    config = load_config(config_file, base)
    start = evaluate_start(config, BEST_OF, "start", args.folder)
    asked = evaluate_start(
        load_config(config_file, [*base, f"evaluate.prompts={asked_prompts(config_file)}"]), 1, "asked", args.folder
    )
    print("| what | held-out score (95 %) | KL | perplexity | tokens | costs |\n|---|---|---|---|---|---|")
    groups = [start[i : i + BEST_OF] for i in range(0, len(start), BEST_OF)]
    tokens = fmean(r["tokens"] for r in start)
    print(row("the starting model", [fmean(r["score"] for r in g) for g in groups], 0.0, None, tokens, "nothing"))
    print(
        row(
            "a prompt that asks for it",
            [r["score"] for r in asked],
            None,
            None,
            fmean(r["tokens"] for r in asked),
            "a sentence",
        )
    )
    for n in (4, BEST_OF):
        best = [max(g[:n], key=lambda r: r["score"]) for g in groups]
        text = f"{n} x the sampling, and the reward, at each use"
        print(row(f"best of {n}", [r["score"] for r in best], None, None, fmean(r["tokens"] for r in best), text))
    for name, overrides in VARIANTS.items():
        run = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")[:40]
        folder = args.folder / run
        if not (folder / "model").is_dir():
            train(load_config(config_file, [*base, f"run.name={run}", *overrides]), resume=folder.exists())
        last = read_records(folder / "evaluations.jsonl")[-1]
        scores = [r["score"] for r in read_records(folder / "evaluations" / f"step-{last['step']}.jsonl")]
        # The median: some steps may have had to share the machine.
        seconds = args.steps * median(m["time/step_s"] for m in read_records(folder / "metrics.jsonl"))
        print(
            row(
                name,
                scores,
                last["evaluate/reference_k1"],
                last["evaluate/reference_perplexity"],
                last["evaluate/tokens_mean"],
                f"{args.steps} steps, {seconds / 60:.1f} min",
            )
        )


if __name__ == "__main__":
    main()
