"""How cost grows with sequence length, batch, vocabulary and model size: ``python -m benchmarks.growth``.

Surefoot alone, with random Llamas that are made on the spot. One thing is varied at a time around a base; each point is
measured in a process of its own (``growth_side.py``), one after the other. Finished ones are kept in
``benchmarks/out/parts`` and used again as long as what they were made from is unchanged (``--fresh``: all anew).

``benchmarks/out/growth.json`` gets every point and, for each axis, the exponents: slopes between first and last point
with both scales logarithmic, so 1 is proportional growth. The plots are made from that file alone (``--replot``).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.parts import ROOT, Job, Part, Rules, obtain, say
from benchmarks.run import machine
from benchmarks.work import write_result

HERE: Final = ROOT / "benchmarks"
MEASURED_BY: Final = ("growth_side.py", "surefoot_side.py", "measuring.py", "work.py")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """What one process measures.

    Attributes:
        hidden, layers, vocabulary: of the model.
        trajectories: of a step.
        new_tokens: action tokens of a trajectory.
    """

    hidden: int
    layers: int
    vocabulary: int
    trajectories: int
    new_tokens: int

    @property
    def name(self) -> str:
        """Of its part file."""
        return f"h{self.hidden}x{self.layers}-v{self.vocabulary}-b{self.trajectories}-t{self.new_tokens}"

    def arguments(self) -> tuple[str, ...]:
        """Of its process."""
        return tuple(text for key, n in asdict(self).items() for text in (f"--{key.replace('_', '-')}", str(n)))


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        axes: points by what is varied, in growing order; ``parameters`` stands for ``hidden`` and ``layers``.
        steps: measured steps of a point, at least; one warm-up comes before them.
        seconds: further steps are measured until they have taken this long.
        strict: whether busy neighbours spoil a point.
    """

    axes: Mapping[str, tuple[Point, ...]]
    steps: int
    seconds: float
    strict: bool


AXES: Final[Mapping[str, str]] = {
    "new_tokens": "new tokens of a trajectory",
    "trajectories": "trajectories of a step",
    "vocabulary": "tokens of the vocabulary",
    "parameters": "parameters of the model",
}
# What is plotted and fitted, with its unit.
COSTS: Final[Mapping[str, str]] = {
    "decode_s": "decoding, s",
    "train_s": "training pass, s",
    "rollout_peak_gb": "peak before training, GB",
    "peak_gb": "peak of a step, GB",
}


def _around(base: Point, **axes: Sequence[int] | Sequence[tuple[int, int]]) -> dict[str, tuple[Point, ...]]:
    """Points that differ from the base in one thing."""
    made = {}
    for axis, values in axes.items():
        keys = ("hidden", "layers") if axis == "parameters" else (axis,)
        changes = [dict(zip(keys, value if isinstance(value, tuple) else (value,), strict=True)) for value in values]
        made[axis] = tuple(replace(base, **change) for change in changes)
    return made


SIZES: Final[Mapping[str, Size]] = {
    "full": Size(
        _around(
            Point(hidden=288, layers=14, vocabulary=16_384, trajectories=16, new_tokens=64),
            new_tokens=(32, 64, 128, 256, 512),
            trajectories=(8, 16, 32, 64),
            vocabulary=(4_096, 16_384, 49_152, 131_072),
            # 8, 17, 31, 133 and 360 million.
            parameters=((192, 12), (288, 14), (384, 16), (576, 35), (960, 35)),
        ),
        steps=2,
        seconds=8.0,
        strict=True,
    ),
    "tiny": Size(
        _around(
            Point(hidden=96, layers=1, vocabulary=256, trajectories=4, new_tokens=4),
            new_tokens=(4, 16),
            trajectories=(4, 16),
            vocabulary=(256, 4_096),
            parameters=((96, 1), (192, 2)),
        ),
        steps=1,
        seconds=0.0,
        strict=False,
    ),
}


def job(point: Point, size: Size, options: argparse.Namespace) -> Job:
    """A point's process."""
    threads = str(options.threads)
    prefer = ("--prefer",) if size.strict else ()
    return Job(
        name=f"{options.size}-growth-{point.name}",
        python=Path(sys.executable),
        module="growth_side",
        arguments=(
            *("--threads", threads, *prefer, "--steps", str(size.steps), "--seconds", str(size.seconds)),
            *point.arguments(),
        ),
        environment={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        allocator="own",
        sources=(ROOT / "src" / "surefoot", *(HERE / name for name in MEASURED_BY)),
    )


def row(point: Point, part: Part) -> dict[str, Any]:
    """A point and what it cost: medians over its steps, and the largest peak."""
    steps = part["steps"]
    rollout, update = ([step["clock"][phase] for step in steps] for phase in ("rollout", "update"))
    decode_s = statistics.median(rollout)
    return {
        **asdict(point),
        "parameters": part["parameters"],
        "decode_s": decode_s,
        "decode_step_s": decode_s / point.new_tokens,
        "tokens_per_s": point.trajectories * point.new_tokens / decode_s,
        "train_s": statistics.median(update),
        "step_s": statistics.median(sum(step["clock"].values()) for step in steps),
        "rollout_peak_gb": part["rollout_peak_gb"],
        "peak_gb": max(step["peak_gb"] for step in steps),
        "libraries_gb": part["libraries_gb"],
        "runs": {"decode_s": rollout, "train_s": update},
        "other_cores": part["other_cores"],
        "spoiled": part["spoiled"],
    }


def exponent(first: tuple[float, float], last: tuple[float, float]) -> float:
    """The ``b`` of ``y = a x^b`` through two points ``(x, y)``.

    Raises:
        ValueError: a number is not above 0, or both points have the same x.
    """
    if min(*first, *last) <= 0 or first[0] == last[0]:
        raise ValueError(f"no power law goes through {first} and {last}")
    return math.log(last[1] / first[1]) / math.log(last[0] / first[0])


def axis_result(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The points of an axis, and the exponents of what is fitted: over all of it, and over its last two points."""

    def slope(key: str, start: int) -> float:
        first, last = rows[start], rows[-1]
        return exponent((first[name], first[key]), (last[name], last[key]))

    return {
        "varied": name,
        "label": AXES[name],
        "points": list(rows),
        "exponents": {key: slope(key, 0) for key in COSTS},
        "exponents_at_the_end": {key: slope(key, -2) for key in COSTS},
    }


def measure(options: argparse.Namespace, rules: Rules) -> dict[str, Any]:
    """Measure every point of the chosen axes; one that lies on several is measured once."""
    size = SIZES[options.size]
    points = list(dict.fromkeys(point for axis in options.axes for point in size.axes[axis]))
    parts: dict[Point, Part] = {}
    for number, point in enumerate(points, 1):
        say(f"point {number} of {len(points)}")
        parts[point] = obtain(job(point, size, options), rules)
    return {
        "size": options.size,
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(options.threads),
        "versions": parts[points[0]]["versions"],
        "steps": size.steps,
        "axes": [axis_result(axis, [row(p, parts[p]) for p in size.axes[axis]]) for axis in options.axes],
    }


def markdown(result: Mapping[str, Any]) -> str:
    """A table an axis, exponents in the last two lines."""
    lines: list[str] = []
    for axis in result["axes"]:
        lines += [
            f"| {axis['label']} | tokens/s | decoding, ms per token of all rows | {' | '.join(COSTS.values())} |",
            "|--:" * (3 + len(COSTS)) + "|",
        ]
        for point in axis["points"]:
            speeds = [f"{point['tokens_per_s']:,.0f}", f"{1e3 * point['decode_step_s']:.1f}"]
            cells = [f"{point[axis['varied']]:,}", *speeds, *(f"{point[key]:.3g}" for key in COSTS)]
            lines.append(f"| {' | '.join(cells)} |{' SPOILED' if point['spoiled'] else ''}")
        for title, key in (("exponent", "exponents"), ("exponent at the end", "exponents_at_the_end")):
            lines.append(f"| {title} | | | {' | '.join(f'{axis[key][cost]:.2f}' for cost in COSTS)} |")
        lines.append("")
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES), help="default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--images", type=Path, help="folder of the plots (default: growth in --out)")
    parser.add_argument("--fresh", action="store_true", help="measure every point anew")
    parser.add_argument("--replot", action="store_true", help="measure nothing, only draw what growth.json holds")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write ``growth.json``, print the tables, draw; returns the exit code."""
    options = parse_arguments(arguments)
    out = options.out.resolve()
    size = SIZES[options.size]
    file = out / ("growth.json" if options.size == "full" else f"growth-{options.size}.json")
    rules = Rules(out / "parts") if size.strict else Rules(out / "parts", 1, 0.0, None)
    if options.fresh and not options.replot:
        for part in rules.folder.glob(f"{options.size}-growth-*.json"):
            part.unlink()
    drawing = importlib.util.find_spec("matplotlib") is not None
    if not drawing:
        say("no plots: matplotlib is not installed; hint: pip install -e '.[dev]' -c constraints.txt")
    if options.replot and not file.exists():
        say(f"there is no {file} to draw; hint: run it without --replot first")
        return 1
    if not options.replot:
        write_result(file, measure(options, rules))
        say(f"written to {file}")
    result = json.loads(file.read_text(encoding="utf-8"))
    print(markdown(result))
    if drawing:
        from benchmarks.growth_plots import draw

        for image in draw(result, options.images or out / file.stem):
            say(f"drawn: {image}")
    if any(point["spoiled"] for axis in result["axes"] for point in axis["points"]):
        say("SPOILED by other processes: the points that say so; run it again on a quiet machine")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; the same command goes on with what is not measured yet")
        sys.exit(130)
