"""What both sides of the time to a gain share: the task's numbers, the rule for when the gain is reached, the course.

Standard library only: the yardstick's side runs in an environment without Surefoot.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks.work import add_process_arguments

DIGEST_CHARACTERS: Final = 16

Evaluation = Mapping[str, Any]
# ``text``; ``score`` as the reward gave it; ``ended``: by itself, within the limit.
Response = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """The quickstart's task in numbers, as its config has them; both sides train by these.

    Attributes:
        model: folder.
        config: Surefoot's config file.
        overrides: of it, besides those of a run.
        reward: the file with ``sentiment``.
        held_out: JSONL of the held-out prompts with their ``input_ids``.
        prompts: by seed, JSONL of all steps' prompts in the order they are trained on.
        pad_token: occurs in no prompt and ends no message.
        prompts_per_step, max_new_tokens, temperature, epochs, minibatches, gamma, lam, clip, value_clip, value_coef,
            kl_coef, missing_eos_penalty, lora_rank, lora_alpha, policy_lr, critic_lr: from the config.
    """

    model: str
    config: str
    overrides: tuple[str, ...]
    reward: str
    held_out: str
    prompts: Mapping[str, str]
    pad_token: str
    prompts_per_step: int
    max_new_tokens: int
    temperature: float
    epochs: int
    minibatches: int
    gamma: float
    lam: float
    clip: float
    value_clip: float
    value_coef: float
    kl_coef: float
    missing_eos_penalty: float
    lora_rank: int
    lora_alpha: float
    policy_lr: float
    critic_lr: float

    @classmethod
    def read(cls, file: Path) -> Task:
        """From its JSON file."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


@dataclass
class Course:
    """A run's way to the goal. Only the time of training steps counts, none of evaluating.

    Args:
        goal: held-out score to be reached.
        budget_s: counted seconds after which the run ends.

    Attributes:
        steps: what each step cost, from :class:`benchmarks.measuring.StepMeter`, with facts about it.
        evaluations: ``step``, counted ``seconds`` before it, mean ``score``, its standard ``error``, share ``ended``.
        first_responses: of the first step.
    """

    goal: float = math.inf
    budget_s: float = math.inf
    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    first_responses: list[Response] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return math.fsum(step["step_s"] for step in self.steps)

    def stepped(self, cost: Mapping[str, Any], responses: Sequence[Response], **facts: Any) -> None:
        """A training step is done, on these responses."""
        self.first_responses = self.first_responses or list(responses)
        score = statistics.fmean(response["score"] for response in responses)
        ended = statistics.fmean(response["ended"] for response in responses)
        self.steps.append({**cost, "score": score, "ended": ended, **facts})

    def evaluated(self, responses: Sequence[Response]) -> None:
        """Held-out responses were sampled after the latest step."""
        scores = [response["score"] for response in responses]
        error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
        ended = statistics.fmean(response["ended"] for response in responses)
        self.evaluations.append(
            {
                "step": len(self.steps),
                "seconds": self.seconds,
                "score": statistics.fmean(scores),
                "error": error,
                "ended": ended,
            }
        )
        print(json.dumps(self.evaluations[-1]), flush=True)

    @property
    def over(self) -> bool:
        """Whether the goal is reached or the budget used up.

        A step that ends after the budget is evaluated all the same: it confirms the one before.
        """
        return reached(self.evaluations, self.goal) is not None or self.seconds > self.budget_s

    def result(self, **facts: Any) -> dict[str, Any]:
        """What a side hands back. ``other_cores`` is the median of its steps, since one of many does not decide."""
        others = [step["other_cores"] for step in self.steps] or [0.0]
        return {
            **facts,
            "steps": self.steps,
            "evaluations": self.evaluations,
            "first_responses": self.first_responses,
            "seconds": self.seconds,
            "other_cores": statistics.median(others),
            "worst_other_cores": max(others),
        }


def reached(evaluations: Sequence[Evaluation], goal: float) -> Evaluation | None:
    """The first of two evaluations in a row at or above the goal, after at least one step; None when there is none.

    One alone may be luck: with 96 films the mean has a standard error of about 0.05, a step's usual gain.
    """
    for first, second in pairwise(evaluations):
        if first["step"] > 0 and min(first["score"], second["score"]) >= goal:
            return first
    return None


def prompts_digest(rows: Iterable[Sequence[int]]) -> str:
    """Of a step's prompts in their order, to see that both sides trained on the same ones."""
    text = json.dumps([list(map(int, row)) for row in rows])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:DIGEST_CHARACTERS]


def load_reward(file: Path) -> Callable[..., list[float]]:
    """The function ``sentiment`` of the quickstart's reward file."""
    spec = importlib.util.spec_from_file_location("quickstart_reward", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., list[float]] = module.sentiment
    return function


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the processes that train towards the gain."""
    add_process_arguments(parser)
    parser.add_argument("--task", type=Path, required=True, help="JSON of the task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, required=True, help="learning rate of the policy")
    parser.add_argument("--steps", type=int, required=True, help="at most; 0: only the score before training")
    parser.add_argument("--goal", type=float, default=math.inf, help="held-out score to be reached")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="seconds of training after which it ends")
    parser.add_argument("--held-out", type=int, help="use only the first held-out prompts")
