"""Plots of ``growth.json``: an SVG for each axis, times on the left, peak memory on the right, all scales logarithmic.

The same file gives the same bytes with the same matplotlib. Text is text, dark on an opaque light ground, so that it
can be read on light and dark pages and found by a search.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "surefoot",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
}
METADATA: Final = {"Date": None, "Creator": None}
GROUND: Final = "#fcfcfa"
INK: Final = "#24292f"
GRID: Final = "#d8dce0"
# By panel: its label, and key, name, colour, marker and dashes of each line.
PANELS: Final = (
    (
        "seconds in a step",
        (
            ("decode_s", "decoding", "#0b61a4", "o", "-"),
            ("train_s", "training pass", "#b5410b", "s", "--"),
        ),
    ),
    (
        "peak memory, GB",
        (
            ("peak_gb", "step", "#6b3fa0", "D", "-"),
            ("rollout_peak_gb", "decoding before training", "#1f7a4d", "^", "--"),
        ),
    ),
)
NICE: Final = (1.0, 2.0, 5.0)


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``growth-AXIS.svg`` for each axis; gives the files.

    Args:
        result: what ``growth.json`` holds.
        folder: made when missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for axis in result["axes"]:
        file = folder / f"growth-{axis['varied'].replace('_', '-')}.svg"
        file.write_bytes(svg(axis, result["machine"]["threads"]))
        files.append(file)
    return files


def svg(axis: Mapping[str, Any], threads: int) -> bytes:
    """The plot of one axis."""
    with mpl.rc_context():
        # What somebody has set for their own plots is not to change ours.
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        figure = Figure(figsize=(9.0, 3.6), layout="constrained", facecolor=GROUND)
        for place, (label, lines) in zip(figure.subplots(1, 2), PANELS, strict=True):
            _panel(place, axis, label, lines)
        figure.suptitle(f"Cost by {axis['label']} ({threads} CPU thread{'s' if threads > 1 else ''})", color=INK)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata=METADATA)
    return out.getvalue()


def _panel(place: Axes, axis: Mapping[str, Any], label: str, lines: Sequence[tuple[str, ...]]) -> None:
    xs = [point[axis["varied"]] for point in axis["points"]]
    values: list[float] = []
    for key, name, colour, marker, dashes in lines:
        ys = [point[key] for point in axis["points"]]
        slope = f"{name}: exponent {axis['exponents'][key]:.2f}"
        place.plot(xs, ys, color=colour, marker=marker, linestyle=dashes, markersize=5, linewidth=1.6, label=slope)
        values += ys
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_xticks(xs, [short(x) for x in xs], minor=False)
    ticks = nice_ticks(min(values), max(values))
    place.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    place.minorticks_off()
    # Room above the lines for the legend.
    place.set_ylim(ticks[0] / 1.1, ticks[-1] * (ticks[-1] / ticks[0]) ** 0.35)
    place.set_xlabel(axis["label"], color=INK)
    place.set_ylabel(label, color=INK)
    place.set_facecolor(GROUND)
    place.grid(color=GRID, linewidth=0.6)
    place.tick_params(colors=INK)
    for spine in place.spines.values():
        spine.set_color(INK)
    place.legend(loc="upper left", labelcolor=INK, frameon=False, fontsize=9)


def nice_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last one not above ``low`` to the first one not below ``high``.

    There are at least two.
    """
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ladder = [float(f"{step}e{power}") for power in exponents for step in NICE]
    first = max(i for i, tick in enumerate(ladder) if tick <= low)
    last = min(i for i, tick in enumerate(ladder) if tick >= high)
    return ladder[first : max(last, first + 1) + 1]


def short(number: float) -> str:
    """``512``, ``16k``, ``360M``: three digits at most; a k is 1,024 where that is meant."""
    if number < 1_000:
        return f"{number:g}"
    if number < 1_000_000:
        return f"{number / (1_024 if number % 1_024 == 0 else 1_000):.0f}k"
    return f"{number / 1e6:.0f}M"
