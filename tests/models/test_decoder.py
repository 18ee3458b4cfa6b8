"""Reading one token per row through weights laid out anew: the numbers of the layers, whatever is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surefoot.models import decoder
from surefoot.models.decoder import decoder_for, has_mkl
from surefoot.models.policy import Lora, load_policy
from surefoot.rollout import decoding
from surefoot.rollout.decoding import Sampling, decode
from tests.models.oracle_models import folder

SEQUENCES = [[5] * 3, [9], [3, 70, 114, 5, 60, 2, 88, 41, 0, 17], [71, 0], [25, 87], [9], [3, 70, 114, 5]]
DRAWS = [np.random.default_rng(i).random(12) for i in range(len(SEQUENCES))]


def adapted(name: str, dtype: str = "float64") -> Any:
    policy = load_policy(folder(name), dtype=dtype, lora=Lora(3))
    with torch.no_grad():
        for i, parameter in enumerate(policy.trainable().values()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)) * 0.1)
    return policy


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("few", [0, 48], ids=["many rows", "few rows"])
def test_adapters_are_folded_in_and_tokens_stay_the_same(name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = adapted(name)
    monkeypatch.setattr(decoder, "FEW_ROWS", few)
    assert decoder_for(policy.lm, 4) is not None
    fast = decode(policy.lm, SEQUENCES, DRAWS, Sampling(12, stop_ids=frozenset(range(10))))
    monkeypatch.setattr(decoding, "decoder_for", lambda *_: None)
    slow = decode(policy.lm, SEQUENCES, DRAWS, Sampling(12, stop_ids=frozenset(range(10))))
    for a, b in zip(fast, slow, strict=True):
        assert a.tokens == b.tokens
        np.testing.assert_allclose(a.logp, b.logp, atol=1e-9)
        np.testing.assert_allclose(a.entropy, b.entropy, atol=1e-9)


@pytest.mark.skipif(not has_mkl(), reason="this build of torch has no MKL")
def test_packed_weights_give_the_same_numbers_for_the_expected_rows_and_for_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = adapted("llama", "float32")
    monkeypatch.setattr(decoder, "MANY_OUTPUTS", 1)
    packed = decoder_for(policy.lm, 5)
    assert packed is not None and packed.head.packed is not None
    states = torch.randn(5, policy.lm.hidden_size)
    for rows in (5, 3):
        expected = policy.lm.head.logits(states[:rows])
        torch.testing.assert_close(packed.logits(states[:rows]), expected, rtol=1e-5, atol=1e-5)


def test_a_decoder_is_made_from_the_weights_as_they_are() -> None:
    policy = adapted("llama")
    before = decode(policy.lm, SEQUENCES, DRAWS, Sampling(6))
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.mul_(3)
    after = decode(policy.lm, SEQUENCES, DRAWS, Sampling(6))
    assert [c.tokens for c in before] != [c.tokens for c in after]


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_other_architectures_have_none(name: str) -> None:
    assert decoder_for(load_policy(folder(name)).lm, 4) is None


def test_half_precision_has_none() -> None:
    assert decoder_for(load_policy(folder("llama"), dtype="bfloat16").lm, 4) is None
