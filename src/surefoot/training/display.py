"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from surefoot.records import StepReport
from surefoot.training.evaluation import HeldOut

Columns = Sequence[tuple[str, str, str]]
"""Word, metric and format of each number in a step's line."""
COLUMNS: Columns = (
    ("score", "score/mean", "{:+.3f}"),
    ("kl", "kl/reference_k1", "{:.2f}"),
    ("entropy", "policy/entropy", "{:.2f}"),
    ("tokens", "response/tokens_mean", "{:.0f}"),
    ("ev", "value/explained_variance", "{:+.2f}"),
    ("clip", "policy/clip_fraction", "{:.3f}"),
)


class Display(Protocol):
    """Shows how a run goes."""

    def start(self, step: int, steps: int) -> None:
        """The run goes on after ``step`` of ``steps``."""
        ...

    def step(self, report: StepReport) -> None:
        """A step is done."""
        ...

    def evaluation(self, result: HeldOut) -> None:
        """Held-out prompts were scored."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def stop(self) -> None:
        """The run is over."""
        ...


def describe(report: StepReport, columns: Columns = COLUMNS) -> str:
    """The few numbers of a step that one watches."""
    parts = []
    for name, key, form in columns:
        value = report.metrics.get(key)
        parts.append(f"{name} {'-' if value is None else form.format(value)}")
    return "  ".join(parts)


def describe_evaluation(result: HeldOut) -> str:
    """A held-out score with its interval."""
    if result.mean is None:
        return "held-out: no valid score"
    interval = "" if result.low is None else f"  (95 % {result.low:+.3f} to {result.high:+.3f})"
    return f"held-out score after step {result.step}: {result.mean:+.3f}{interval}  {result.prompts} prompts"


class PlainDisplay:
    """One line per event, for logs and pipes."""

    def __init__(self, columns: Columns = COLUMNS) -> None:
        self._columns = columns
        self._steps = 0
        self._seconds: list[float] = []

    def start(self, step: int, steps: int) -> None:
        """Remember the goal."""
        self._steps = steps

    def step(self, report: StepReport) -> None:
        """A line with the numbers, the step's time and the time to go."""
        seconds = float(report.metrics.get("time/step_s") or 0.0)
        self._seconds.append(seconds)
        recent = self._seconds[-5:]
        left = (self._steps - report.step) * sum(recent) / len(recent)
        numbers = describe(report, self._columns)
        self.note(f"step {report.step}/{self._steps}  {numbers}  {seconds:.1f} s  eta {_duration(left)}")

    def evaluation(self, result: HeldOut) -> None:
        """A line with the score."""
        self.note(describe_evaluation(result))

    def note(self, text: str) -> None:
        """A line; a reader that has gone away (``| head``) must not end the run."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def stop(self) -> None:
        """Nothing is left on the screen."""


class LiveDisplay:
    """A progress bar with the latest numbers, for terminals."""

    def __init__(self, console: Console, columns: Columns = COLUMNS) -> None:
        self._columns = columns
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None)

    def start(self, step: int, steps: int) -> None:
        """Show the bar."""
        self._progress.update(self._task, total=steps, completed=step)
        self._progress.start()

    def step(self, report: StepReport) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=report.step, description=describe(report, self._columns))

    def evaluation(self, result: HeldOut) -> None:
        """A line above the bar."""
        self.note(describe_evaluation(result))

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, highlight=False, markup=False)

    def stop(self) -> None:
        """Leave the bar where it is."""
        self._progress.stop()


class SilentDisplay:
    """Shows nothing, for callers that watch by themselves."""

    def start(self, step: int, steps: int) -> None:
        """Nothing."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, result: HeldOut) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


def choose_display(columns: Columns = COLUMNS) -> Display:
    """Live on a terminal, plain elsewhere."""
    console = Console(stderr=True)
    return LiveDisplay(console, columns) if console.is_terminal else PlainDisplay(columns)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
