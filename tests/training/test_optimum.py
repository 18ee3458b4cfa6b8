"""The analytic optimum: what PPO must converge to is known in closed form, and the whole step is held against it.

With KL in the reward the fixed point is pi*(y) = pi_ref(y) exp(r(y) / beta) / Z. Responses are one or two tokens over
eight words, so pi* and the policy's own distribution are summed up exactly, and a Llama with a real critic is trained
by ``ppo_step``. The same harness with the KL turned round, or with k3 as the reward, must miss the bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot import algo
from surefoot.config import Config
from surefoot.models.policy import CausalPolicy
from surefoot.training.clock import StepClock
from surefoot.training.step import ppo_step
from tests.builders import make_config, make_parts, make_prompts, make_rollout, merged, save_llama

VOCABULARY, PROMPT, BETA = 8, (1, 2), 0.5
BOUND, BOUND_WHITENED = 0.03, 0.1


@dataclass(frozen=True)
class Outcome:
    """Distributions over all responses, ``[V ** n]``: before, after, and the table of rewards."""

    reference: Tensor
    final: Tensor
    table: Tensor

    def gibbs(self) -> Tensor:
        """pi*: the optimum of E[r] - beta KL(pi || pi_ref)."""
        star = self.reference * torch.exp(self.table / BETA)
        return star / star.sum()

    def forward_gibbs(self) -> Tensor:
        """The optimum of E[r] - beta KL(pi_ref || pi): beta pi_ref / (c - r), c such that it sums to 1."""
        low, high = float(self.table.max()), float(self.table.max()) + 100.0
        for _ in range(200):
            c = (low + high) / 2
            low, high = (c, high) if float((BETA * self.reference / (c - self.table)).sum()) > 1 else (low, c)
        return BETA * self.reference / (c - self.table)

    def distance(self, target: Tensor | None = None) -> float:
        """Total variation of the final policy to a distribution, to pi* when none is given."""
        return float((self.final - (self.gibbs() if target is None else target)).abs().sum() / 2)


def distribution(policy: CausalPolicy, length: int) -> Tensor:
    """Probability of every response, none left out."""
    responses = itertools.product(range(VOCABULARY), repeat=length)
    logp = policy.evaluate(make_rollout(*((PROMPT, response) for response in responses))).logp
    probability = torch.from_numpy(logp).sum(dim=1).exp()
    assert abs(float(probability.sum()) - 1) < 1e-9
    return probability


def settings(length: int, **sections: Any) -> dict[str, Any]:
    steps, rate = (30, 0.03) if length == 1 else (60, 0.01)
    base = {
        "run": {"steps": steps},
        "critic": {"kind": "separate"},
        "rollout": {"prompts_per_step": 1, "samples_per_prompt": 128, "max_new_tokens": length},
        # lam 1: unbiased whatever the critic says, so that the fixed point is the one in the formula.
        "ppo": {"epochs": 4, "minibatches": 1, "lam": 1.0, "whiten": False, "kl": {"coef": BETA}},
        "optim": {"policy_lr": rate, "critic_lr": rate, "schedule": "linear"},
        "batch": {"packing": "off"},
    }
    return merged(base, sections)


def train(folder: Path, length: int, **sections: Any) -> Outcome:
    """Train a fresh model by the product's own step; every response has exactly ``length`` tokens."""
    model = save_llama(folder / "model", vocabulary=VOCABULARY, spread=0.1)
    cfg: Config = make_config(model, **settings(length, **sections))
    table = 0.6 * torch.randn((VOCABULARY,) * length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = make_parts(cfg, lambda actions: float(table[actions]), vocabulary=VOCABULARY)
    policy, prompts = parts.learner.policy, make_prompts(PROMPT)
    before = distribution(policy, length)
    for step in range(1, (cfg.run.steps or 0) + 1):
        ppo_step(step, prompts, parts, cfg, StepClock())
    return Outcome(before, distribution(policy, length), table.flatten())


SHARED = {"critic": {"kind": "shared"}}
WHITENED = {"ppo": {"whiten": True}}


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("sections", [{}, SHARED], ids=["separate", "shared"])
def test_ppo_reaches_the_optimum(tmp_path: Path, length: int, sections: dict[str, Any]) -> None:
    outcome = train(tmp_path, length, **sections)
    assert float((outcome.reference - outcome.gibbs()).abs().sum() / 2) > 0.3, "the start must be far from the optimum"
    assert outcome.distance() <= BOUND


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("sections", [{}, SHARED, WHITENED], ids=["separate", "shared", "whitened"])
def test_ppo_reaches_the_optimum_with_other_draws(
    tmp_path: Path, length: int, sections: dict[str, Any], seed: int
) -> None:
    distance = train(tmp_path, length, **merged(sections, {"run": {"seed": seed}})).distance()
    assert distance <= (BOUND_WHITENED if sections is WHITENED else BOUND)


@pytest.mark.parametrize("length", [1, 2])
def test_ppo_reaches_the_optimum_with_whitening(tmp_path: Path, length: int) -> None:
    assert train(tmp_path, length, **WHITENED).distance() <= BOUND_WHITENED


def test_the_penalty_of_the_adaptive_kl_form_reaches_the_optimum_too(tmp_path: Path) -> None:
    sections = {"ppo": {"surrogate": "kl", "surrogate_kl": {"coef": 1.0, "target": 0.05}}}
    assert train(tmp_path, 1, **sections).distance() <= BOUND


def test_k2_as_a_loss_reaches_the_same_optimum(tmp_path: Path) -> None:
    """On samples of the policy k2's gradient is that of KL(pi || pi_ref); it stays noisy at the optimum."""
    sections = {"ppo": {"kl": {"place": "loss", "estimator": "k2"}}}
    assert train(tmp_path, 1, **sections).distance() <= 2 * BOUND


def test_k3_as_a_loss_reaches_its_own_optimum(tmp_path: Path) -> None:
    """k3's gradient is that of KL(pi_ref || pi), whose optimum is known as well: another distribution, on the way."""
    outcome = train(tmp_path, 1, ppo={"kl": {"place": "loss"}})
    assert outcome.distance(outcome.forward_gibbs()) <= BOUND
    assert 0.2 < outcome.distance() < 0.3
    assert outcome.distance() < float((outcome.reference - outcome.gibbs()).abs().sum() / 2)


# ------------------------------------------------------------------------------------- the test can fail

Estimator = Callable[..., Tensor]


def turned_round(logp: Tensor, ref_logp: Tensor, estimator: str = "k1", real: Estimator = algo.kl) -> Tensor:
    return -real(logp, ref_logp, estimator)


def always_k3(logp: Tensor, ref_logp: Tensor, estimator: str = "k1", real: Estimator = algo.kl) -> Tensor:
    return real(logp, ref_logp, "k3")


@pytest.mark.parametrize("fault", [turned_round, always_k3])
@pytest.mark.parametrize(
    ("length", "sections", "bound"),
    [(1, {}, BOUND), (1, WHITENED, BOUND_WHITENED), (2, {}, BOUND)],
    ids=["one", "one-whitened", "two"],
)
def test_a_wrong_kl_misses_the_optimum(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Estimator,
    length: int,
    sections: dict[str, Any],
    bound: float,
) -> None:
    monkeypatch.setattr(algo, "kl", fault)
    assert train(tmp_path, length, **sections).distance() > 2 * bound
