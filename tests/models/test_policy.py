"""The policy and its references: nothing random in a forward pass, nothing frozen that moves, KL 0 at the start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from surefoot import algo
from surefoot.errors import ModelError
from surefoot.models import layers
from surefoot.models.batching import lay_out
from surefoot.models.digest import digest_tensors
from surefoot.models.load import load_causal_lm
from surefoot.models.policy import CausalPolicy, FrozenReference, Lora, StartingReference, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.protocols import Policy, Reference
from surefoot.records import Rollout, Trajectory
from tests.models.made_batches import batch_of, config_of, gradients_of
from tests.models.oracle_models import NAMES, altered, folder, reading

ROLLOUT = Rollout.of(
    [
        Trajectory([3, 9, 27, 41, 60, 2, 0, 9], [0, 0, 1, 1, 0, 1, 1, 1]),
        Trajectory([5, 8, 2], [0, 1, 1]),
        Trajectory([7, 0, 0, 11], [0, 1, 0, 1]),
    ]
)


def train(policy: CausalPolicy, steps: int = 3, lr: float = 0.02) -> None:
    """Raise the likelihood of the rollout's actions, as an update would."""
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=lr)
    for _ in range(steps):
        batch = lay_out(ROLLOUT, [0, 1, 2], packed=False, device=torch.device("cpu"))
        logp, _, _ = policy.forward(batch)
        optimizer.zero_grad()
        (-logp.mean()).backward()
        optimizer.step()


def kl(policy: CausalPolicy, reference: Reference) -> np.ndarray:
    return np.abs(policy.evaluate(ROLLOUT).logp - reference.logp(ROLLOUT))


# ----------------------------------------------------------------------------------------------------------- dropout

DROPOUT = {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
def test_dropout_in_the_config_is_off_everywhere(tmp_path: Path, lora: Lora | None, checkpointing: bool) -> None:
    """ALG-16: ratio 1, KL 0 and no clipping before the first step, reading or training, layers recomputed or not."""
    path = altered("gpt2", tmp_path / "m", config=DROPOUT)
    policy = load_policy(path, lora=lora, gradient_checkpointing=checkpointing)
    assert any(isinstance(m, nn.Dropout) and m.p == 0.5 for m in policy.lm.model.modules())
    first = policy.evaluate(ROLLOUT)
    np.testing.assert_array_equal(first.logp, policy.evaluate(ROLLOUT).logp)
    np.testing.assert_allclose(first.logp, reading("gpt2", BatchPlan()).evaluate(ROLLOUT).logp, atol=1e-6)
    batch = lay_out(ROLLOUT, [0, 1, 2], packed=True, device=torch.device("cpu"))
    logp, entropy, _ = policy.forward(batch, entropy=True)
    old = torch.from_numpy(first.logp[batch.where])
    torch.testing.assert_close(logp.detach(), old, atol=1e-6, rtol=0)
    assert entropy is not None
    torch.testing.assert_close(entropy.detach(), torch.from_numpy(first.entropy[batch.where]), atol=1e-6, rtol=0)
    mask = torch.ones(1, len(old), dtype=torch.bool)
    assert float(algo.clip_fraction(logp.detach()[None], old[None], mask, clip_low=0.2, clip_high=0.2)) == 0.0


def test_layers_that_drop_out_by_themselves_stay_off_when_recomputed(tmp_path: Path) -> None:
    """A layer's own functional dropout asks for the training mode that transformers' checkpointing turns on."""
    from transformers import PersimmonConfig, PersimmonForCausalLM

    torch.manual_seed(0)
    config = PersimmonConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_dropout=0.5,
    )
    PersimmonForCausalLM(config).save_pretrained(tmp_path / "m")
    plain, recomputed = load_policy(tmp_path / "m"), load_policy(tmp_path / "m", gradient_checkpointing=True)
    batch = lay_out(ROLLOUT, [0, 1, 2], packed=False, device=torch.device("cpu"))
    torch.testing.assert_close(recomputed.forward(batch)[0], plain.forward(batch)[0], atol=1e-6, rtol=0)
    assert not any(module.training for module in recomputed.lm.model.modules())


@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
def test_checkpointing_recomputes_in_training_and_only_there(
    lora: Lora | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, calls = {}, []
    gated = layers.gated_silu
    monkeypatch.setattr(layers, "gated_silu", lambda gate, up: (calls.append(1), gated(gate, up))[1])
    for checkpointing in (False, True):
        policy = load_policy(folder("llama"), lora=lora, gradient_checkpointing=checkpointing)
        calls.clear()
        policy.evaluate(ROLLOUT)
        read = len(calls)
        batch = lay_out(ROLLOUT, [0, 1, 2], packed=False, device=torch.device("cpu"))
        policy.forward(batch)[0].sum().backward()
        runs[checkpointing] = (read, len(calls) - read)
    assert runs[False][0] == runs[True][0] == runs[False][1] > 0
    assert runs[True][1] == 2 * runs[False][1]


# -------------------------------------------------------------------------------------------------------- pad tokens


@pytest.mark.parametrize("name", NAMES)
def test_the_embedding_of_the_padding_id_learns(name: str) -> None:
    """TOK-01: pad == eos, or a real token: its row gets the gradient that finite differences give."""
    policy = load_policy(folder(name), dtype="float64")
    assert policy.lm.model.config.pad_token_id == 0
    from surefoot.models.critic import shared_critic

    zeros = np.zeros(ROLLOUT.tokens.shape)
    rng = np.random.default_rng(0)
    arrays = {"old_logp": policy.evaluate(ROLLOUT).logp, "values": zeros, "returns": zeros}
    arrays["advantages"] = np.where(ROLLOUT.mask, rng.normal(size=zeros.shape), 0.0)
    batch = batch_of(ROLLOUT, arrays, torch.float64)
    for packing in ("on", "off"):
        found = gradients_of(policy, shared_critic(policy), batch, config_of({}), BatchPlan(packing=packing))
        embedding = policy.lm.model.get_input_embeddings().weight
        key = next(k for k, p in policy.trainable().items() if p is embedding)
        gradient = found.by_name[key][0]
        assert float(gradient.norm()) > 1e-3
    step = 1e-3
    direction = gradient / gradient.norm()
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            embedding[0] += sign * step * direction
        losses.append(gradients_of(policy, shared_critic(policy), batch, config_of({})).loss[0])
        with torch.no_grad():
            embedding[0] -= sign * step * direction
    # The library keeps norms in float32, so differences are good to a few digits.
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(float(gradient.norm()), rel=1e-2)


# -------------------------------------------------------------------------------------------------------- references


def test_fresh_adapters_change_nothing_and_the_reference_does_not_move() -> None:
    policy = load_policy(folder("llama"), lora=Lora(4))
    reference = StartingReference(policy)
    plain = reading("llama", BatchPlan()).evaluate(ROLLOUT).logp
    np.testing.assert_array_equal(policy.evaluate(ROLLOUT).logp, plain)
    assert kl(policy, reference).max() == 0.0
    before, at_start = reference.digest(), reference.logp(ROLLOUT)
    train(policy)
    assert kl(policy, reference).max() > 0.05
    np.testing.assert_array_equal(reference.logp(ROLLOUT), at_start)
    assert reference.digest() == before
    assert all(p.requires_grad == ("lora_" in n) for n, p in policy.module.named_parameters())


def test_a_frozen_reference_does_not_move_with_the_policy() -> None:
    policy = load_policy(folder("gpt2"), temperature=0.7)
    reference = FrozenReference(load_causal_lm(str(folder("gpt2")), temperature=0.7), BatchPlan(packing="off"))
    assert kl(policy, reference).max() < 1e-5
    before, at_start = reference.digest(), reference.logp(ROLLOUT)
    train(policy, lr=1e-3)
    assert kl(policy, reference).max() > 0.01
    np.testing.assert_array_equal(reference.logp(ROLLOUT), at_start)
    assert reference.digest() == before
    assert not any(p.requires_grad for p in reference.lm.model.parameters())


def test_a_policy_without_adapters_is_no_reference_for_itself() -> None:
    with pytest.raises(ModelError, match="reference of its own"):
        StartingReference(load_policy(folder("llama")))


def test_the_digest_sees_one_changed_bit_a_name_and_a_type() -> None:
    one = {"a": torch.zeros(3), "b": torch.ones(2, 2)}
    same = digest_tensors([("b", torch.ones(2, 2)), ("a", torch.zeros(3))])
    assert digest_tensors(one.items()) == same
    flipped = one["a"].clone()
    flipped.view(torch.int32)[1] ^= 1
    others = (
        {"a": flipped, "b": one["b"]},
        {"a": one["a"], "c": one["b"]},
        {"a": one["a"], "b": torch.ones(4)},
        {"a": one["a"].double(), "b": one["b"]},
        {"a": one["a"].bfloat16(), "b": one["b"]},
    )
    digests = {digest_tensors(other.items()) for other in others}
    assert len(digests) == len(others) and same not in digests


def test_digests_do_not_depend_on_strides() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert digest_tensors([("w", tensor.T.contiguous().T)]) == digest_tensors([("w", tensor)])


def test_policy_and_references_are_what_the_protocols_ask_for() -> None:
    policy = load_policy(folder("llama"), lora=Lora(2))
    assert isinstance(policy, Policy)
    assert isinstance(StartingReference(policy), Reference)
    assert isinstance(FrozenReference(policy.lm, BatchPlan()), Reference)
