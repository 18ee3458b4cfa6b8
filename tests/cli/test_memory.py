"""The memory estimate counts what training really holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.assembly.memory import PROCESS_BYTES, SAMPLING_BYTES, estimate_memory, free_disk, memory_of
from surefoot.assembly.models import build_critic, build_learner, build_policy
from surefoot.config import Config, build_config
from surefoot.models.load import load_model_config
from surefoot.models.tokenizer import load_codec
from surefoot.training.optimizer import Optimizer

CPU = torch.device("cpu")


def config_of(toy: Path, **tree: Any) -> Config:
    sections = {"rollout": {"prompts_per_step": 8, "max_new_tokens": 10}, "run": {"steps": 1}, **tree}
    sections["model"] = {"policy": str(toy), **tree.get("model", {})}
    return build_config(sections)


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
    estimate = estimate_memory(config, model_config, 20)
    plan = load_codec(str(toy)).check_vocabulary(model_config.vocab_size)
    policy = build_policy(config, plan, CPU)
    critic = build_critic(config, policy, CPU)
    learner = build_learner(config, policy, critic)
    shared = config.critic.kind == "shared"

    def held(parameters: Any, trained: Any, optimizer: Optimizer | None) -> int:
        assert optimizer is not None
        for parameter in trained:
            parameter.grad = torch.ones_like(parameter)
        optimizer.adam.step()
        moments = [t for state in optimizer.adam.state.values() for name, t in state.items() if name != "step"]
        return bytes_of(parameters) + bytes_of(p.grad for p in trained) + bytes_of(moments)

    heads = [] if not shared else list(critic.head.parameters())
    own = held(policy.module.parameters(), policy.trainable().values(), learner.policy_optimizer)
    assert estimate.fixed["policy"] == pytest.approx(own, abs=4 * bytes_of(heads))
    assert estimate.counts["parameters"] == sum(p.numel() for p in policy.module.parameters())
    if not shared:
        trunk = critic.trunk.parameters() if config.model.lora is None else critic.adapters.parameters()
        theirs = held(trunk, critic.trainable().values(), learner.critic_optimizer)
        # The value head is too small to count.
        assert estimate.fixed["critic"] == pytest.approx(theirs, abs=4 * bytes_of(critic.head.parameters()))
    else:
        assert estimate.fixed["critic"] == 0


def test_a_reference_counts_where_it_is_a_copy(toy: Path) -> None:
    model_config = load_model_config(str(toy))
    full, lora = config_of(toy), config_of(toy, model={"lora": {}})
    other = config_of(toy, model={"lora": {}, "reference": str(toy)})
    weights = estimate_memory(full, model_config, 20).counts["parameters"] * 4
    assert estimate_memory(full, model_config, 20).fixed["reference"] == weights
    assert estimate_memory(lora, model_config, 20).fixed["reference"] == 0
    assert estimate_memory(other, model_config, 20).fixed["reference"] > 0


def test_the_cache_by_hand(toy: Path) -> None:
    """8 rows of 20 + 10 tokens, 2 layers, keys and values of 3 heads of 16, 4 bytes; and drawing from 62 words."""
    estimate = estimate_memory(config_of(toy), load_model_config(str(toy)), 20)
    assert estimate.rollout == 8 * 30 * 2 * 2 * 3 * 16 * 4 + 8 * 62 * SAMPLING_BYTES
    assert estimate.fixed["process"] == PROCESS_BYTES
    assert estimate.total == sum(estimate.fixed.values()) + max(estimate.rollout, estimate.update)


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
    before = getattr(estimate_memory(config_of(toy), model_config, 20), part)
    assert getattr(estimate_memory(config_of(toy, **tree), model_config, 20), part) < before


def test_the_machine_is_asked(tmp_path: Path) -> None:
    free, total = memory_of(CPU)
    assert 0 < free <= total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert free_disk(tmp_path / "not" / "there") == pytest.approx(free_disk(tmp_path), rel=0.05)
