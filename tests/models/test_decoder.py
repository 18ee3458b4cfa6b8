"""Reading one token per row through weights laid out anew: the numbers of the layers, whatever is trained."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
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

ROOT = Path(__file__).parents[2]
packing = pytest.mark.skipif(
    not (has_mkl() and sys.platform.startswith("linux")), reason="MKL's packed weights, Linux's madvise"
)
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


# As in a run, where the C library keeps what is freed.
RELEASING = """
import torch
from surefoot.models.decoder import _Map
from surefoot.parallel.allocator import keep_freed_memory
from tests.resident import resident
assert keep_freed_memory()
m, x = _Map(torch.randn(8_000, 1_000), None, 5), torch.randn(5, 1_000)
above = torch.ones(1_000_000)
expected, before = m(x), resident()
assert m.packed is not None
m.release()
print((before - resident()) / m.weight.nbytes)
torch.testing.assert_close(m(x), expected, rtol=1e-4, atol=1e-4)
m.release()
"""
PACKING = """
import torch
from surefoot.models.decoder import _Map
from surefoot.parallel.allocator import keep_freed_memory
from tests.resident import resident
assert keep_freed_memory()
weight = torch.randn(960, 576)
first = _Map(weight, None, 5)
used = torch.ones(300_000_000, dtype=torch.uint8)
above = torch.ones(1_000_000)
del used
before = resident()
maps = [_Map(weight, None, 5) for _ in range(16)]
print((before - resident()) / weight.nbytes)
"""


def given_back(program: str) -> float:
    """What a program prints, in weights."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@packing
def test_released_weights_leave_memory_and_the_map_works_on() -> None:
    assert given_back(RELEASING) > 0.9


@packing
def test_the_room_that_packing_leaves_empty_is_not_kept_in_memory() -> None:
    """MKL takes five times such a weight; a kept block would give back nothing, a clean one four weights."""
    assert given_back(PACKING) > 16 * 3


@pytest.mark.parametrize("failing", [False, True])
def test_a_rollout_releases_what_it_packed(failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, made = adapted("llama", "float32"), []

    def watched(*args: Any) -> Any:
        made.append(decoder_for(*args))
        return made[-1]

    def ended(*_: Any) -> None:
        assert [m.packed is not None for m in maps_of(made[0])] == [has_mkl()] * (4 * len(made[0].layers) + 1)
        if failing:
            raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "MANY_OUTPUTS", 1)
    monkeypatch.setattr(decoding, "decoder_for", watched)
    with pytest.raises(KeyboardInterrupt) if failing else nullcontext():
        decode(policy.lm, SEQUENCES, DRAWS, Sampling(6), ended=ended)
    assert [m.packed for m in maps_of(made[0])] == [None] * (4 * len(made[0].layers) + 1)


def maps_of(made: Any) -> list[Any]:
    return [made.head, *(m for layer in made.layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down))]


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
