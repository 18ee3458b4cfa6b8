"""Critics: where trunk and head come from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

from surefoot.errors import ModelError
from surefoot.models.batching import lay_out
from surefoot.models.critic import SeparateCritic, SharedCritic, load_critic, shared_critic
from surefoot.models.policy import Lora, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.protocols import Critic
from surefoot.records import Rollout, Trajectory
from tests.models.oracle_models import NAMES, altered, folder, reading, shared_value_model
from tests.models.test_lora import quiet_peft
from tests.models.test_policy import ROLLOUT


def scored(target: Path, *, labels: int = 1, seed: int = 0) -> tuple[Path, Any]:
    """A reward model as the library saves it, on the tiny Llama's trunk."""
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder("llama"), num_labels=labels).eval()
    model.save_pretrained(target)
    return target, model


def library_scores(model: Any) -> np.ndarray:
    """The reward model's score of each row alone: its value after the last token."""
    with torch.no_grad():
        return np.array([model(input_ids=torch.tensor([list(t.tokens)])).logits[0, 0] for t in ROLLOUT.trajectories])


@pytest.mark.parametrize("name", NAMES)
def test_a_critic_without_a_head_starts_at_zero(name: str, tmp_path: Path) -> None:
    path = altered(name, tmp_path / "m")
    (path / "value_head.safetensors").unlink()
    critic = load_critic(path)
    values = critic.values(ROLLOUT)
    assert not values.values.any() and not values.after.any()
    batch = lay_out(ROLLOUT, [0, 1, 2], packed=True, device=torch.device("cpu"))
    critic.forward(batch).sum().backward()
    assert critic.head.weight.grad is not None and critic.head.weight.grad.norm() > 0


def test_a_critic_from_a_reward_model_says_its_score(tmp_path: Path) -> None:
    path, model = scored(tmp_path / "m")
    critic = load_critic(path)
    np.testing.assert_allclose(critic.values(ROLLOUT).after, library_scores(model), atol=1e-5)
    assert isinstance(critic, Critic) and not critic.shared


def test_a_critic_from_an_adapter_of_a_reward_model_says_its_score(tmp_path: Path) -> None:
    _, model = scored(tmp_path / "unused")
    with quiet_peft():
        adapted = get_peft_model(model, LoraConfig(r=2, task_type="SEQ_CLS", target_modules=["q_proj", "down_proj"]))
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.normal_(std=0.2)
        adapted.eval().save_pretrained(tmp_path / "a")
    critic = load_critic(tmp_path / "a")
    np.testing.assert_allclose(critic.values(ROLLOUT).after, library_scores(adapted), atol=1e-5)


def test_a_reward_model_with_several_labels_is_no_critic(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="one label"):
        load_critic(scored(tmp_path / "m", labels=2)[0])


def test_a_reward_model_without_its_score_layer_is_refused(tmp_path: Path) -> None:
    """Its head would be random: the library only warns."""
    config = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    path = altered("llama", tmp_path / "m", config=config)
    with pytest.raises(ModelError, match=r"score\.weight"):
        load_critic(path)


@pytest.mark.parametrize(
    "tensors", [{"weight": torch.zeros(1, 32)}, {"weight": torch.zeros(2, 64)}, {"w": torch.zeros(1, 64)}]
)
def test_a_head_that_does_not_fit_is_refused(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = altered("llama", tmp_path / "m")
    save_file(tensors, path / "value_head.safetensors")
    with pytest.raises(ModelError, match="does not fit"):
        load_critic(path)
    (path / "value_head.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="could not be read"):
        load_critic(path)


def test_a_head_with_a_bias_keeps_it(tmp_path: Path) -> None:
    path = altered("llama", tmp_path / "m")
    save_file({"weight": torch.zeros(1, 64), "bias": torch.tensor([0.25])}, path / "value_head.safetensors")
    values = load_critic(path).values(ROLLOUT)
    assert (values.values[ROLLOUT.mask] == 0.25).all() and not values.values[~ROLLOUT.mask].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_critic_reads_the_policys_trunk(name: str) -> None:
    policy = load_policy(folder(name))
    fresh = shared_critic(policy)
    assert not fresh.values(ROLLOUT).values.any()
    critic = shared_critic(policy, folder(name))
    expected = shared_value_model(name)
    expected.plan = policy.plan
    found = critic.values(ROLLOUT)
    np.testing.assert_array_equal(found.values, expected.values(ROLLOUT).values)
    np.testing.assert_array_equal(found.after, expected.values(ROLLOUT).after)
    together = policy.read(ROLLOUT, critic.head)
    assert together.logp is not None and together.values is not None
    np.testing.assert_array_equal(together.values, found.values)
    # Without values the states after the last tokens are not read, and other shapes round otherwise.
    np.testing.assert_allclose(together.logp, policy.evaluate(ROLLOUT).logp, rtol=1e-6)
    assert list(critic.trainable()) == ["head.weight"] and critic.shared and isinstance(critic, Critic)


def test_a_shared_critic_takes_a_saved_head_or_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="could not be read"):
        shared_critic(load_policy(folder("llama")), tmp_path)
    with pytest.raises(ModelError, match="does not fit"):
        shared_critic(load_policy(folder("llama")), folder("gpt2"))


def test_adapters_of_a_critic_are_trained_and_its_trunk_is_not() -> None:
    critic = load_critic(folder("llama"), lora=Lora(4), seed=1)
    plain = shared_value_model("llama")
    plain.plan = critic.plan
    np.testing.assert_array_equal(critic.values(ROLLOUT).values, plain.values(ROLLOUT).values)
    assert all("lora_" in name or name == "head.weight" for name in critic.trainable())
    batch = lay_out(ROLLOUT, [0, 1, 2], packed=False, device=torch.device("cpu"))
    critic.forward(batch).square().sum().backward()
    assert all(p.grad is not None for p in critic.trainable().values())


def test_a_critic_grows_with_the_policy() -> None:
    """TOK-08: an id that was added to the policy reaches the critic too."""
    rollout = Rollout.of([Trajectory([3, 130, 5], [0, 1, 1])])
    critic = load_critic(folder("llama"), rows_needed=131)
    assert np.isfinite(critic.values(rollout).after).all()
    np.testing.assert_allclose(
        critic.values(ROLLOUT).values, load_critic(folder("llama")).values(ROLLOUT).values, atol=1e-6
    )
    with pytest.raises(ValueError, match="no embedding"):
        shared_value_model("llama").values(rollout)


def test_a_head_stays_in_float32_on_a_half_precision_trunk() -> None:
    critic = load_critic(folder("llama"), dtype="bfloat16")
    assert critic.head.weight.dtype == torch.float32 and critic.trunk.dtype == torch.bfloat16
    values = critic.values(ROLLOUT)
    assert values.values.dtype == np.float32
    plain = shared_value_model("llama")
    np.testing.assert_allclose(values.values, plain.values(ROLLOUT).values, atol=0.1)


def test_unknown_options_are_our_own_mistakes() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        load_critic(folder("llama"), no_such_option=1)
    with pytest.raises(ModelError, match="dtype"):
        load_critic(folder("llama"), dtype="float8")


def test_kinds_can_be_told_apart() -> None:
    policy = load_policy(folder("llama"), plan=BatchPlan())
    assert SharedCritic(policy, shared_critic(policy).head).shared
    assert isinstance(load_critic(folder("llama")), SeparateCritic)
    assert reading("llama", BatchPlan()).temperature == 1.0
