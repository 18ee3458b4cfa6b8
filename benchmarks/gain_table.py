"""From runs towards a gain to the table: times, the better learning rate, the ratio, and what was not alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.gain import Evaluation, Task, reached
from benchmarks.parts import Part

# Start scores of both sides come from one policy; this many standard errors between them are not chance.
ALLOWED_ERRORS: Final = 3.5
NAMES: Final[Mapping[str, str]] = {"surefoot": "Surefoot", "trl": "TRL"}


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        side: ``surefoot`` or ``trl``.
        rate: learning rate.
        seed: of the run.
        budget_s: counted seconds after which it was to end.
        part: what it handed back.
    """

    side: str
    rate: float
    seed: int
    budget_s: float
    part: Part

    def at(self, goal: float) -> Evaluation | None:
        """The evaluation that the goal was reached at."""
        return reached(self.part["evaluations"], goal)

    def seconds(self, goal: float) -> float:
        """Time to the goal, or how long it was not reached."""
        found = self.at(goal)
        return float(found["seconds"]) if found else min(float(self.part["seconds"]), self.budget_s)

    @property
    def best(self) -> float:
        """Highest held-out score after at least one step."""
        return max((evaluation["score"] for evaluation in self.part["evaluations"][1:]), default=-math.inf)


@dataclass(frozen=True)
class Median:
    """The median time of a side's seeds; with ``bound`` it is not reached yet then."""

    seconds: float
    bound: bool


def better(runs: Sequence[Run], goal: float) -> Run:
    """The run that is first at the goal; where none is, the one with the highest score."""
    return min(runs, key=lambda run: (run.seconds(goal) if run.at(goal) else math.inf, -run.best))


def median_time(runs: Sequence[Run], goal: float) -> Median:
    """Over seeds; a run that did not reach the goal counts as longer than every other."""
    arrived = sorted(run.seconds(goal) for run in runs if run.at(goal))
    missing = sorted(run.seconds(goal) for run in runs if not run.at(goal))
    return Median(statistics.median([*arrived, *missing]), bound=len(missing) * 2 >= len(runs))


def faults(runs: Sequence[Run], start: Evaluation, task: Task, rescore: Callable[..., Sequence[float]]) -> list[str]:
    """What the runs did not do alike; empty when all is well.

    Args:
        runs: of both sides.
        start: the score before training, from many responses.
        task: the numbers.
        rescore: the quickstart's reward.
    """
    out = [fault for run in runs for fault in _own_faults(run, start, task, rescore)]
    for seed in sorted({run.seed for run in runs}):
        taken = [[step["prompts"] for step in run.part["steps"]] for run in runs if run.seed == seed]
        if any(len(set(step)) > 1 for step in zip(*taken, strict=False)):
            out.append(f"seed {seed}: the runs did not train on the same prompts in the same order")
    return out


def _own_faults(run: Run, start: Evaluation, task: Task, rescore: Callable[..., Sequence[float]]) -> list[str]:
    name, part, out = f"{NAMES[run.side]}, rate {run.rate:g}, seed {run.seed}", run.part, []
    first = part["evaluations"][0]
    allowed = ALLOWED_ERRORS * math.hypot(first["error"], start["error"])
    # Comparisons are written so that NaN is a fault.
    if not abs(first["score"] - start["score"]) <= allowed:
        out.append(f"{name}: starts at {first['score']:.3f}, not at {start['score']:.3f} (allowed: {allowed:.3f} off)")
    updates = {step["updates"] for step in part["steps"]}
    if updates != {task.epochs * task.minibatches}:
        out.append(f"{name}: {sorted(updates)} optimizer steps, asked for: {task.epochs * task.minibatches}")
    texts = [response["text"] for response in part["first_responses"]]
    again = rescore(prompts=[""] * len(texts), completions=texts)
    given = [response["score"] for response in part["first_responses"]]
    if len(texts) != task.prompts_per_step or not all(abs(a - b) < 1e-6 for a, b in zip(again, given, strict=True)):
        out.append(f"{name}: its scores are not those of the quickstart's reward")
    trained = part["steps"][0].get("trained_score") if part["steps"] else None
    if trained is not None:
        penalties = [0.0 if response["ended"] else task.missing_eos_penalty for response in part["first_responses"]]
        wanted = statistics.fmean(score - penalty for score, penalty in zip(given, penalties, strict=True))
        if not abs(trained - wanted) < 1e-4:
            out.append(f"{name}: it trained on a mean score of {trained:.4f}, the reward gave {wanted:.4f}")
    return out


def row(run: Run, goal: float, start: float) -> dict[str, Any]:
    """A run's line of the table."""
    found, steps = run.at(goal), run.part["steps"]
    return {
        "side": run.side,
        "rate": run.rate,
        "seed": run.seed,
        "start": run.part["evaluations"][0]["score"],
        "reached": found is not None,
        "seconds": run.seconds(goal),
        "steps": found["step"] if found else len(steps),
        "step_s": statistics.median(step["step_s"] for step in steps),
        "peak_gb": max(step["peak_gb"] for step in steps),
        "best_gain": run.best - start,
        "kl": steps[min(found["step"], len(steps) - 1) if found else -1]["kl"],
        "other_cores": run.part["other_cores"],
        "worst_other_cores": run.part["worst_other_cores"],
        "spoiled": run.part["spoiled"],
        "evaluations": run.part["evaluations"],
    }


def comparison(ours: Median, theirs: Median | None, wanted: float) -> dict[str, Any]:
    """The ratio of two medians; a lower bound where TRL's is one, None where ours is one."""
    ratio = None if theirs is None or ours.bound else theirs.seconds / ours.seconds
    return {
        "surefoot_s": ours.seconds,
        "surefoot_reached": not ours.bound,
        "trl_s": None if theirs is None else theirs.seconds,
        "trl_reached": None if theirs is None else not theirs.bound,
        "ratio": ratio,
        "ratio_is_lower_bound": bool(theirs and theirs.bound),
        "wanted": wanted,
        # The budget is whole minutes, so a bound lies at the wanted ratio or just above.
        "met": None if ratio is None else ratio >= wanted,
    }


def markdown(result: Mapping[str, Any]) -> str:
    """The table, and the ratio in words."""
    lines = [
        f"Goal: a held-out score of {result['goal']:.2f}, {result['wanted_gain']:g} above the start's "
        f"{result['start']['score']:.3f} (standard error {result['start']['error']:.3f}); only training is timed.",
        "",
        "| side | rate | seed | start | time to the gain | steps | s a step | KL | peak GB | best gain | busy cores |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in result["runs"]:
        chosen = line["rate"] == result["rates"][line["side"]]
        rate = f"**{line['rate']:g}**" if chosen else f"{line['rate']:g}"
        time = f"{line['seconds']:.0f} s" if line["reached"] else f"not in {line['seconds']:.0f} s"
        name = NAMES[line["side"]] + (" (SPOILED)" if line["spoiled"] else "")
        lines.append(
            f"| {name} | {rate} | {line['seed']} | {line['start']:.3f} | {time} | {line['steps']} | "
            f"{line['step_s']:.1f} | {line['kl']:.1f} | {line['peak_gb']:.1f} | {line['best_gain']:+.3f} | "
            f"{line['other_cores']:.2f} |"
        )
    return "\n".join([*lines, "", _in_words(result["comparison"])])


def _in_words(found: Mapping[str, Any]) -> str:
    own = (
        f"Surefoot's median: {found['surefoot_s']:.0f} s" if found["surefoot_reached"] else "Surefoot did not reach it"
    )
    if found["trl_s"] is None:
        return f"{own}; TRL was not run"
    theirs = f"TRL's: {found['trl_s']:.0f} s" if found["trl_reached"] else f"TRL's: not in {found['trl_s']:.0f} s"
    if found["ratio"] is None:
        return f"{own}; {theirs}"
    ratio = f"{'at least ' if found['ratio_is_lower_bound'] else ''}{found['ratio']:.2f} x"
    return f"{own}; {theirs}; ratio {ratio}, wanted {found['wanted']:g} x: {'met' if found['met'] else 'MISSED'}"
