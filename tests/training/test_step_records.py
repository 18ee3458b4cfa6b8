"""A stored rollout record is enough to recompute its advantages, from the line alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot import algo
from surefoot.protocols import Turn
from surefoot.records import Prompt, Rollout, Score, StopReason
from surefoot.training.clock import StepClock
from surefoot.training.recording import record_step
from surefoot.training.samples import read_samples
from surefoot.training.step import ppo_step
from tests.builders import make_config, make_parts, make_prompts, merged, save_gpt2

PROMPTS = make_prompts((1, 2), (1, 2, 3, 4), (5,), (6, 7, 8))


class Tool:
    """Given tokens after the first response, and rewards of its own."""

    def respond(self, prompt: Prompt, tokens: Sequence[int], mask: Sequence[bool]) -> Turn:
        """Given tokens once."""
        if sum(mask) == len(tokens) - len(prompt.tokens):
            return Turn(given=(9, 10), done=False, reward=0.25)
        return Turn(done=True, stop_reason=StopReason.LENGTH if prompt.tokens[0] == 1 else None)


class ByToken:
    """A reward with numbers for single tokens, and failures."""

    def score(self, rollout: Rollout) -> list[Score]:
        """The token's id as its reward; the third trajectory fails."""
        scores = []
        for row, trajectory in enumerate(rollout.trajectories):
            tokens = tuple(0.1 * int(t) if m else 0.0 for t, m in zip(trajectory.tokens, trajectory.mask, strict=True))
            scores.append(Score(None, "on purpose") if row == 2 else Score(0.5 * row, None, {}, tokens))
        return scores


def recomputed(record: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """(rewards, advantages, returns) of one trajectory from its line."""

    def row(name: str) -> Tensor:
        return torch.tensor([record[name]], dtype=torch.float64)

    mask = torch.tensor([record["mask"]])
    steps = torch.zeros(mask.shape, dtype=torch.float64)
    for name in ("step_rewards", "token_rewards"):
        if record[name] is not None:
            steps += row(name)
    rewards = algo.shape_rewards(
        row("score_shaped"),
        algo.kl(row("logp"), row("ref_logp"), "k1"),
        mask,
        kl_coef=record["kl_coef"] or 0.0,
        step_rewards=torch.where(mask, steps, 0.0),
    )
    advantages, returns = algo.gae(
        rewards, row("values"), mask, gamma=record["gamma"], lam=record["lam"], bootstrap=row("bootstrap")
    )
    if record["whiten"] is not None:
        moments = tuple(record["whiten"][name] for name in ("count", "mean", "variance"))
        advantages = algo.whiten(advantages, mask, moments=moments)
    return rewards[0], advantages[0], returns[0]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"ppo": {"whiten": False, "gamma": 0.9, "lam": 0.8, "cut_off": "bootstrap"}, "critic": {"kind": "shared"}},
        {"ppo": {"cut_off": "penalise", "kl": {"place": "loss"}}, "reward": {"normalise": True, "clip": 1.0}},
    ],
    ids=["plain", "bootstrapped", "penalised and normalised"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tool", [False, True], ids=["one turn", "two turns"])
def test_advantages_recomputed_from_a_record_agree(
    tmp_path: Path, sections: dict[str, Any], dtype: str, tool: bool
) -> None:
    base = {"model": {"dtype": dtype}, "reward": {"max_failures": 0.5}, "optim": {"policy_lr": 0.02}}
    cfg = make_config(save_gpt2(tmp_path / "model"), **merged(base, sections))
    parts = make_parts(cfg, lambda actions: sum(actions) / 30, stop_ids=(3,))
    if tool:
        parts = replace(parts, environment=Tool(), reward=ByToken())
    for step in (1, 2, 3):
        result = ppo_step(step, PROMPTS, parts, cfg, StepClock())
    path = tmp_path / "step-3.jsonl"
    record_step(path, result, cfg)
    records = read_samples(path)
    assert [r["step"] for r in records] == [3] * 4
    differences = []
    for b, record in enumerate(records):
        width = len(record["tokens"])
        rewards, advantages, returns = recomputed(record)
        for name, own in (("rewards", rewards), ("advantages", advantages), ("returns", returns)):
            stored = torch.tensor(record[name], dtype=torch.float64)
            torch.testing.assert_close(own, stored, rtol=1e-6, atol=1e-6, msg=f"{name} of row {b}")
            trained = getattr(result.batch, name)[b, :width].double()
            torch.testing.assert_close(stored, trained, rtol=0, atol=0, msg=f"{name} of row {b} is what trained")
        differences.append(float((torch.tensor(record["logp"]) - torch.tensor(record["ref_logp"])).abs().max()))
    assert max(differences) > 1e-3, "a KL of 0 would prove nothing"
    assert any(r["bootstrap"] != 0 for r in records) is (cfg.ppo.cut_off == "bootstrap")
    if tool:
        assert (records[2]["score"], records[2]["score_failure"]) == (None, "on purpose")
        assert not any(records[2]["mask"]) and not any(records[2]["advantages"])
