"""Entropy and token log-probabilities: banned tokens, large logits, temperature, garbage."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import entropy, token_logp
from surefoot.errors import ConfigError, DataError

INF = math.inf


def draw(seed, *shape, scale=3.0, ban=0.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
    banned = torch.rand(*shape, generator=generator) < ban
    banned[..., 0] = False
    tokens = torch.randint(shape[-1], shape[:-1], generator=generator)
    return logits.masked_fill(banned, -INF).to(dtype), tokens


def distribution(row, temperature=1.0):
    z = [v / temperature for v in row]
    top = max(z)
    weights = [math.exp(v - top) for v in z]
    return [w / math.fsum(weights) for w in weights]


@pytest.mark.parametrize("ban", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(8))
def test_equal_plain_python(seed, ban):
    logits, tokens = draw(seed, 3, 4, 7, ban=ban)
    temperature = (0.5, 1.0, 1.7)[seed % 3]
    got_h, got_p = entropy(logits), token_logp(logits, tokens, temperature=temperature)
    for b in range(3):
        for t in range(4):
            row = logits[b, t].tolist()
            h = -math.fsum(p * math.log(p) for p in distribution(row) if p > 0)
            assert got_h[b, t].item() == pytest.approx(h, rel=1e-12, abs=1e-14)
            p = distribution(row, temperature)[tokens[b, t]]
            assert got_p[b, t].item() == (pytest.approx(math.log(p), rel=1e-10, abs=1e-13) if p > 0 else -INF)


def test_by_hand():
    logits = torch.tensor([[0.0, 0.0, -INF, 0.0, 0.0], [2.0, 1.0, 0.0, -INF, -INF]])
    assert entropy(logits)[0].item() == pytest.approx(math.log(4))
    assert token_logp(logits, torch.tensor([4, 0]))[0].item() == pytest.approx(-math.log(4))
    assert token_logp(logits, torch.tensor([2, 1]))[0].item() == -INF
    tempered = token_logp(logits, torch.tensor([0, 0]), temperature=0.5)
    assert tempered[1].item() == pytest.approx(-math.log(1 + math.exp(-2) + math.exp(-4)))


def test_the_derivative_of_entropy_follows_its_formula_with_banned_tokens():
    logits, _ = draw(1, 5, 6, ban=0.4)
    logits.requires_grad_()
    h = entropy(logits)
    h.sum().backward()
    logp = torch.log_softmax(logits.detach(), -1)
    want = torch.where(logp.isfinite(), -logp.exp() * (logp + h.detach()[:, None]), 0.0)
    torch.testing.assert_close(logits.grad, want, rtol=1e-10, atol=1e-12)


def test_gradients_by_finite_differences():
    logits, tokens = draw(2, 2, 3, 5, scale=1.0)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(entropy, logits)
    assert torch.autograd.gradcheck(lambda x: token_logp(x, tokens, temperature=0.7), logits)


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_banned_tokens_get_no_gradient_and_the_rest_a_finite_one(temperature):
    logits, _ = draw(3, 20, 8, ban=0.5)
    logits.requires_grad_()
    (token_logp(logits, torch.zeros(20, dtype=torch.long), temperature=temperature) + entropy(logits)).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[logits == -INF] == 0).all()


@pytest.mark.parametrize("offset", [1000.0, -1000.0, 65000.0])
def test_a_common_offset_changes_nothing_in_float32(offset):
    # Multiples of 1/64 survive the addition exactly, so any difference is lost digits of ours.
    logits = (torch.arange(40.0).reshape(4, 10).sin() * 64).round() / 64
    tokens = torch.tensor([0, 3, 7, 9])
    torch.testing.assert_close(token_logp(logits + offset, tokens), token_logp(logits, tokens), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropy(logits + offset), entropy(logits), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bounds_hold_and_low_precision_is_widened(dtype):
    logits, tokens = draw(4, 500, 50, scale=8.0, dtype=dtype)
    h, p = entropy(logits), token_logp(logits, tokens)
    assert h.dtype is p.dtype is torch.float32
    assert (h >= 0).all() and (h <= math.log(50) * (1 + 1e-6)).all() and (p <= 0).all()
    torch.testing.assert_close(h.double(), entropy(logits.double()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.double(), token_logp(logits.double(), tokens), rtol=1e-5, atol=1e-6)


def test_extremes_uniform_spike_and_one_token_alone():
    assert entropy(torch.zeros(1, 1000, dtype=torch.float64)).item() == pytest.approx(math.log(1000), rel=1e-12)
    spike = torch.full((1, 9), -1e4).index_fill(1, torch.tensor([4]), 1e4)
    assert entropy(spike).item() == 0.0
    assert token_logp(spike, torch.tensor([4])).item() == 0.0
    alone = torch.full((1, 9), -INF).index_fill(1, torch.tensor([4]), -3.0)
    assert entropy(alone).item() == 0.0
    assert token_logp(alone, torch.tensor([4])).item() == 0.0


@pytest.mark.parametrize(
    "garbage", [math.nan, INF, -INF, torch.finfo(torch.float32).max, torch.finfo(torch.float32).min]
)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_rows_nothing_reads_send_no_gradient_whatever_stands_there(garbage, whole, temperature):
    clean, tokens = draw(5, 6, 7, dtype=torch.float32)
    dirty = clean.clone()
    dirty[2:4] = garbage if whole else torch.where(torch.arange(7) % 3 == 0, garbage, dirty[2:4])
    mask = torch.tensor([True, True, False, False, True, True])
    results = []
    for logits in (clean.clone().requires_grad_(), dirty.requires_grad_()):
        read = token_logp(logits, tokens, temperature=temperature) + entropy(logits)
        total = torch.where(mask, read, 0.0).sum()
        total.backward()
        results.append((total.item(), logits.grad))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_a_row_that_is_no_distribution_is_nan():
    logits = torch.tensor([[-INF] * 3, [math.nan, 0.0, 1.0], [INF, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for got in (entropy(logits), token_logp(logits, torch.ones(4, dtype=torch.long))):
        assert got.isnan().tolist() == [True, True, True, False]


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, INF])
def test_temperatures_without_a_distribution_are_refused(temperature):
    with pytest.raises(ConfigError, match="temperature"):
        token_logp(torch.zeros(1, 3), torch.tensor([0]), temperature=temperature)


def test_tokens_that_cannot_be_are_refused():
    logits = torch.zeros(2, 3)
    for tokens in (torch.tensor([0, 3]), torch.tensor([-1, 0]), torch.tensor([0, -100])):
        with pytest.raises(DataError, match="vocabulary"):
            token_logp(logits, tokens)
    for tokens in (torch.tensor([0.0, 1.0]), torch.tensor([True, False]), torch.tensor([[0], [1]]), torch.tensor(0)):
        with pytest.raises(DataError, match="tokens"):
            token_logp(logits, tokens)
    with pytest.raises(DataError, match="vocabulary"):
        entropy(torch.zeros(2, 0))
    assert token_logp(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int32)).shape == (0,)
    assert token_logp(logits, torch.tensor([2, 2], dtype=torch.uint8)).tolist() == pytest.approx([-math.log(3)] * 2)
