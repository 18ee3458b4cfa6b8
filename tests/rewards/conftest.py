"""Rollouts of given texts, and reward functions written to a file and run as a run would run them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from surefoot.config.sections import RewardTerm
from surefoot.records import Prompt, Rollout, StopReason, Trajectory
from surefoot.rewards import FunctionReward

Make = Callable[..., FunctionReward]


def rollout_of(texts: Sequence[str], columns: Sequence[Mapping[str, Any]] = (), prompt: str = "p:") -> Rollout:
    """One trajectory per text: two given tokens, then one action token per character and a closing stop token."""
    rows = []
    for n, text in enumerate(texts):
        tokens = [1, 2, *(ord(c) for c in text), 0]
        row = Prompt(f"f:{n}", (1, 2), prompt, columns=columns[n] if columns else {})
        mask = [False, False] + [True] * (len(text) + 1)
        rows.append(Trajectory(tokens, mask, StopReason.EOS, prompt=row, response=text))
    return Rollout.of(rows)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Write source to a file and make the reward of its function ``f``; everything is closed in the end."""
    made: list[FunctionReward] = []

    def build(source: str, *, name: str = "q", **options: Any) -> FunctionReward:
        file = tmp_path / f"{name}.py"
        file.write_text(textwrap.dedent(source), encoding="utf-8")
        made.append(FunctionReward(RewardTerm(name=name, target=f"{file}:f"), **options))
        return made[-1]

    yield build
    for reward in made:
        reward.close()
