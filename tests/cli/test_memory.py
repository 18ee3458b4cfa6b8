"""The memory estimate counts what training really holds, role by role."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.assembly.activations import DRAWING
from surefoot.assembly.memory import PROCESS_BYTES, TOKENIZER_BYTES, Estimate, free_disk, memory_for, memory_of
from surefoot.assembly.models import build_critic, build_learner, build_policy
from surefoot.assembly.step_sizes import even_prompts
from surefoot.config import Config, build_config
from surefoot.models.load import load_model_config
from surefoot.models.tokenizer import load_codec
from surefoot.training.optimizer import Optimizer

CPU = torch.device("cpu")


def config_of(toy: Path, **tree: Any) -> Config:
    sections = {"rollout": {"prompts_per_step": 8, "max_new_tokens": 10}, "run": {"steps": 1}, **tree}
    sections["model"] = {"policy": str(toy), **tree.get("model", {})}
    return build_config(sections)


def estimate_for(config: Config, model_config: Any, length: int) -> Estimate:
    """Of prompts of one length."""
    return memory_for(config, model_config, even_prompts(config, length))


def bytes_of(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"model": {"lora": {"rank": 4}}},
        {"model": {"lora": {"rank": 4, "targets": ["q_proj", "down_proj"]}}},
        {"model": {"dtype": "float64"}},
        {"critic": {"kind": "shared"}},
    ],
    ids=str,
)
def test_weights_gradients_and_moments_are_those_of_the_models(tree: dict[str, Any], toy: Path) -> None:
    """Counted from shapes alone, and equal to what is in memory after one optimizer step."""
    config = config_of(toy, **tree)
    model_config = load_model_config(str(toy))
    estimate = estimate_for(config, model_config, 20)
    plan = load_codec(str(toy)).check_vocabulary(model_config.vocab_size)
    policy = build_policy(config, plan, CPU)
    critic = build_critic(config, policy, CPU)
    learner = build_learner(config, policy, critic)
    shared = config.critic.kind == "shared"

    def held(parameters: Any, trained: Any, optimizer: Optimizer | None) -> tuple[int, int, int]:
        assert optimizer is not None
        for parameter in trained:
            parameter.grad = torch.ones_like(parameter)
        optimizer.adam.step()
        states = [optimizer.adam.state[parameter] for parameter in trained]
        moments = [t for state in states for name, t in state.items() if name != "step"]
        return bytes_of(parameters), bytes_of(p.grad for p in trained), bytes_of(moments)

    def planned(name: str) -> tuple[int, int, int]:
        role = estimate.roles[name]
        return role.parameters, role.gradients, role.optimizer

    trained = list(policy.trainable().values())
    assert planned("policy") == held(policy.module.parameters(), trained, learner.policy_optimizer)
    assert estimate.counts["parameters"] == sum(p.numel() for p in policy.module.parameters())
    heads = list(critic.head.parameters())
    if shared:
        assert planned("value head") == held(heads, heads, learner.policy_optimizer)
    else:
        trunk = list(critic.trunk.parameters())
        theirs = list(critic.trainable().values())
        assert planned("critic") == held(trunk + heads, theirs, learner.critic_optimizer)
    everything = trained + (heads if shared else theirs)
    assert estimate.counts["trained"] == sum(p.numel() for p in everything)
    assert estimate.checkpoint == 3 * bytes_of(everything)


def test_a_reference_counts_where_it_is_a_copy(toy: Path) -> None:
    model_config = load_model_config(str(toy))
    full, lora = config_of(toy), config_of(toy, model={"lora": {}})
    other = config_of(toy, model={"lora": {}, "reference": str(toy)})
    weights = estimate_for(full, model_config, 20).counts["parameters"] * 4
    assert estimate_for(full, model_config, 20).fixed["reference"] == weights
    assert "reference" not in estimate_for(lora, model_config, 20).fixed
    assert estimate_for(other, model_config, 20).fixed["reference"] == weights


def test_the_cache_by_hand(toy: Path) -> None:
    """8 rows of 2 + 10 - 1 tokens, 2 layers, keys and values of 3 heads of 16, 4 bytes; and drawing from 62 words."""
    estimate = estimate_for(config_of(toy), load_model_config(str(toy)), 2)
    parts = estimate.phases["rollout"].parts
    assert parts["cache"] == 8 * 11 * 2 * 2 * 3 * 16 * 4
    assert parts["logits"] == DRAWING * 8 * 62 * 4
    assert parts["freed_gradients"] == max(role.gradients for role in estimate.roles.values())
    assert estimate.process == estimate.fixed["process"] == PROCESS_BYTES + 62 * TOKENIZER_BYTES


def test_the_peak_is_that_of_the_fullest_phase(toy: Path) -> None:
    estimate = estimate_for(config_of(toy), load_model_config(str(toy)), 20)
    always = sum(estimate.fixed.values())
    assert estimate.total == always + max(phase.total for phase in estimate.phases.values())
    assert estimate.total == always + estimate.phases[estimate.fullest].total
    assert estimate.training == always + max(estimate.rollout, estimate.phases["score"].total, estimate.update)


@pytest.mark.parametrize(
    ("tree", "part"),
    [
        ({"rollout": {"prompts_per_step": 8, "max_new_tokens": 10, "max_rows": 2}}, "rollout"),
        ({"batch": {"tokens": 30}}, "update"),
        ({"ppo": {"minibatches": 8}}, "update"),
        ({"model": {"gradient_checkpointing": True}}, "update"),
    ],
)
def test_what_the_hint_names_lowers_the_estimate(tree: dict[str, Any], part: str, toy: Path) -> None:
    model_config = load_model_config(str(toy))
    before = getattr(estimate_for(config_of(toy), model_config, 20), part)
    assert getattr(estimate_for(config_of(toy, **tree), model_config, 20), part) < before


def test_the_machine_is_asked(tmp_path: Path) -> None:
    free, total = memory_of(CPU)
    assert 0 < free <= total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert free_disk(tmp_path / "not" / "there") == pytest.approx(free_disk(tmp_path), rel=0.05)
