"""Judging tasks, several answers to one prompt each, and what people said of them. Torch-free.

A task is known by the digest of what it shows, so a judgement cannot be counted for other answers than those it was
given for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.config import RewardModelSection
from surefoot.data.parsing import RowFault, parse_rows
from surefoot.data.transcripts import Text, as_text, conversation
from surefoot.errors import DataError

TIE = "tie"


@dataclass(frozen=True, slots=True)
class Task:
    """Something to judge.

    Attributes:
        id: see :func:`task_id`.
        prompt: a text, or messages.
        responses: at least two, all different.
    """

    id: str
    prompt: Text
    responses: tuple[str, ...]


def task_id(prompt: str | Sequence[Mapping[str, Any]], responses: Sequence[str]) -> str:
    """sha256 of prompt and responses, in hex: of ``[prompt, responses]`` as JSON without spaces, keys sorted.

    Of a chat prompt's messages role and content count.
    """
    read = prompt if isinstance(prompt, str) else [{k: m.get(k) for k in ("content", "role")} for m in prompt]
    text = json.dumps([read, list(responses)], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one person said of some answers: which is best, or a rating of each.

    Attributes:
        choice: number of the best answer, from 0; -1: a tie; None: ratings were given.
        ratings: one an answer, None for an answer that was not rated.
    """

    choice: int | None = None
    ratings: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any], answers: int) -> Judgement:
        """From a row's ``choice`` (a number from 0, or ``tie``) or ``ratings`` (a list, null: not rated).

        Raises:
            RowFault: there is neither, or it does not fit.
        """
        choice, ratings = row.get("choice"), row.get("ratings")
        if choice is not None:
            if choice == TIE:
                return cls(choice=-1)
            if isinstance(choice, bool) or not isinstance(choice, int) or not 0 <= choice < answers:
                raise RowFault(f"choice: must be 0 to {answers - 1} or {TIE!r}, not {choice!r}")
            return cls(choice=choice)
        if ratings is None:
            raise RowFault("neither choice nor ratings")
        if not isinstance(ratings, Sequence) or isinstance(ratings, str) or len(ratings) != answers:
            raise RowFault(f"ratings: must be a list of {answers} numbers, one a response")
        return cls(ratings=tuple(_rating(value) for value in ratings))

    def compare(self, i: int, j: int, min_gap: float) -> tuple[int | None, float | None]:
        """The vote for answer i over j (1, 0 or -1; None: it says nothing of the two), and the gap of their ratings."""
        if self.choice is not None:
            if self.choice == -1:
                return 0, None
            return (1 if self.choice == i else -1, None) if self.choice in (i, j) else (None, None)
        a, b = self.ratings[i], self.ratings[j]
        if a is None or b is None:
            return None, None
        gap = a - b
        vote = 0 if abs(gap) < min_gap or gap == 0 else (1 if gap > 0 else -1)
        return vote, gap


def _rating(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RowFault(f"ratings: must be numbers, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Judged:
    """Tasks with their judgements.

    Attributes:
        tasks: by id.
        said: judgements by task id, in order.
        rows: judgements read.
        skipped: those that cannot be used.
    """

    tasks: Mapping[str, Task]
    said: Mapping[str, Sequence[Judgement]]
    rows: int
    skipped: int

    def by_task(self) -> Iterator[tuple[Task, Sequence[Judgement]]]:
        """Judged tasks, in the order of the tasks."""
        for name, task in self.tasks.items():
            if name in self.said:
                yield task, self.said[name]


def read_tasks(source: str) -> dict[str, Task]:
    """Judging tasks by id; the ids are held against what the tasks show.

    Raises:
        DataError: nothing is there, or a task is not as it was made.
    """
    parsed = parse_rows(source, _task, bad_rows="error", section="reward_model")
    return {task.id: task for task in parsed.rows}


def _task(at: str, row: Mapping[str, Any]) -> Task:
    prompt = conversation(None, row.get("prompt"), "prompt", prompt_alone=True)
    responses = row.get("responses")
    if not isinstance(responses, Sequence) or isinstance(responses, str) or len(responses) < 2:
        raise RowFault("responses: must be a list of at least two texts")
    texts = tuple(as_text(one, f"response {number}") for number, one in enumerate(responses, start=1))
    expected = task_id(prompt, texts)
    if row.get("id") != expected:
        raise RowFault(f"its id is not the digest of prompt and responses: {row.get('id')!r}, not {expected!r}")
    return Task(expected, prompt, texts)


def read_judgements(source: str, tasks: Mapping[str, Task], section: RewardModelSection) -> Judged:
    """Judgements of tasks: rows with ``task`` and ``choice`` or ``ratings``.

    Raises:
        DataError: nothing is there, a row names no known task, or none is usable.
    """

    def parse(at: str, row: Mapping[str, Any]) -> tuple[str, Judgement]:
        name = row.get("task")
        task = tasks.get(name) if isinstance(name, str) else None
        if task is None:
            raise RowFault(f"task: {name!r} is none of the {len(tasks)} tasks")
        return task.id, Judgement.of(row, len(task.responses))

    parsed = parse_rows(source, parse, bad_rows=section.bad_rows, section="reward_model")
    said: dict[str, list[Judgement]] = {}
    for name, judgement in parsed.rows:
        said.setdefault(name, []).append(judgement)
    if not said:
        raise DataError("there are no judgements", got=source)
    return Judged(tasks, said, parsed.read, len(parsed.skipped))
