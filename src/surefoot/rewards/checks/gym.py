"""Check ``reasoning_gym``: a task of the ``reasoning-gym`` package, scored by the task's own rule. Torch-free.

Extra ``tasks``. It runs in a process of its own: some tasks solve or simplify what the response says.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from surefoot.errors import ConfigError, MissingExtra
from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options, shown
from surefoot.rewards.checks.extracting import last_box, last_line
from surefoot.rewards.checks.options import nearest

OPENING: Final = "<answer>"
CLOSING: Final = "</answer>"


class GymOptions(Options):
    """Options of check ``reasoning_gym``."""

    task: str | None = None
    """The task's name, as `leg_counting`; null: the row's, from `task_column` or else from the entry's metadata."""
    task_column: str | None = Field(None, min_length=1)
    """Column with the task's name."""
    column: str = Field("entry", min_length=1)
    """Column with the entry as the package made it (question, answer, metadata), an object or its JSON text."""
    where: Literal["whole", "last_line", "boxed", "tag"] = "whole"
    r"""Where the answer stands: the whole response, its last line, the last `\boxed{}`, or the last `<answer>` tag."""
    score: Literal["own", "full"] = "own"
    """`own`: what the task's rule says, often a part for an answer that only holds the right one; `full`: 1 for the
    rule's 1, else 0."""


class GymCheck(Check[GymOptions]):
    """What the task's own scorer says, from 0 to 1."""

    name: ClassVar[str] = "reasoning_gym"
    options_type: ClassVar[type[Options]] = GymOptions
    isolated: ClassVar[bool] = True

    def __init__(self, options: GymOptions) -> None:
        super().__init__(options)
        tasks = task_names()
        if options.task is not None and options.task not in tasks:
            raise ConfigError(
                "reasoning-gym has no such task", got=options.task, hint=nearest(options.task, sorted(tasks))
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns with entry and task."""
        return tuple(name for name in (self.options.column, self.options.task_column) if name is not None)

    def judge(self, answer: Answer) -> Judgement:
        """Ask the task's scorer."""
        entry = self._entry(answer.column(self.options.column))
        name = self._task(entry, answer)
        given = self._given(answer.response)
        if given is None or not given.strip():
            return Judgement(0.0, "no answer where it is looked for")
        try:
            score = float(scorer(name)(given.strip(), dict(entry)))
        except Exception as error:  # the package's own code, given an entry of anyone's making
            raise CannotJudge(f"{name} cannot score it: {type(error).__name__}: {error}"[:200]) from error
        if not 0.0 <= score <= 1.0:
            raise CannotJudge(f"{name} gave {score}")
        if self.options.score == "full":
            score = float(score == 1.0)
        return Judgement(score, None if score == 1.0 else f"{shown(given)} is not {shown(str(entry.get('answer')))}")

    def _entry(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise CannotJudge(f"column {self.options.column!r} holds no JSON: {error}") from None
        if not isinstance(value, Mapping) or "metadata" not in value:
            raise CannotJudge(f"column {self.options.column!r} holds no entry with metadata")
        return value

    def _task(self, entry: Mapping[str, Any], answer: Answer) -> str:
        if self.options.task is not None:
            return self.options.task
        column, metadata = self.options.task_column, entry["metadata"]
        name = answer.column(column) if column else isinstance(metadata, Mapping) and metadata.get("source_dataset")
        if name not in task_names():
            raise CannotJudge(f"reasoning-gym has no task {name!r:.60}")
        return str(name)

    def _given(self, response: str) -> str | None:
        if self.options.where == "boxed":
            return last_box(response)
        if self.options.where == "tag":
            before, closed, _ = response.rpartition(CLOSING)
            _, opened, inside = before.rpartition(OPENING)
            return inside if closed and opened else None
        return last_line(response) if self.options.where == "last_line" else response


@lru_cache(maxsize=1)
def task_names() -> frozenset[str]:
    """Every task there is.

    Raises:
        MissingExtra: the package is not installed.
    """
    return frozenset(_package("reasoning_gym.factory").DATASETS)


@lru_cache(maxsize=256)
def scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    """A task's scorer, with the task's default settings."""
    found: Callable[[str, dict[str, Any]], float] = _package("reasoning_gym.factory").get_score_answer_fn(task)
    return found


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            "check reasoning_gym scores with the package reasoning-gym, which is not installed",
            got=str(error),
            hint="pip install 'surefoot[tasks]'",
        ) from None
