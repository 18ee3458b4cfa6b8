"""Shaped rewards: sign of the penalty, the slot of the score, nothing off the mask."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.algo import shape_rewards
from surefoot.errors import ConfigError, DataError


def twin(scores, kl, mask, coef, steps, clip):
    out = []
    for score, kls, chosen, earned in zip(scores, kl, mask, steps, strict=True):
        row = [-coef * k + s if c else 0.0 for k, c, s in zip(kls, chosen, earned, strict=True)]
        if clip is not None:
            score = min(max(score, -clip), clip)
        for t in reversed(range(len(row))):
            if chosen[t]:
                row[t] += score
                break
        out.append(row)
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(30))
def test_equals_plain_python(batch, poisoned, seed):
    b = batch(seed)
    coef, clip = b.rng.choice((0.0, 0.05, 2.0)), b.rng.choice((None, 0.5, 100.0))
    steps = b.values if seed % 2 else torch.zeros_like(b.values)
    want = twin(b.scores.tolist(), b.rewards.tolist(), b.mask.tolist(), coef, steps.tolist(), clip)
    got = shape_rewards(
        torch.where(b.mask.any(1), b.scores, math.nan),
        poisoned(b.rewards, b.mask, seed),
        b.mask,
        kl_coef=coef,
        step_rewards=poisoned(b.values, b.mask, seed + 2) if seed % 2 else None,
        clip_score=clip,
    )
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert (got[~b.mask] == 0).all()


def test_by_hand_with_a_hole_a_clip_and_a_row_without_action_tokens():
    mask = torch.tensor([[False, True, False, True, False], [False] * 5, [True, False, False, False, False]])
    kl = torch.tensor([[9.0, 0.5, 9.0, -1.0, 9.0]] * 3)
    steps = torch.tensor([[5.0, 0.25, 5.0, 0.0, 5.0]] * 3)
    got = shape_rewards(torch.tensor([7.0, 7.0, -7.0]), kl, mask, kl_coef=0.5, step_rewards=steps, clip_score=2.0)
    assert got.tolist() == [[0.0, 0.0, 0.0, 2.5, 0.0], [0.0] * 5, [-4.5 + 5.0 - 2.0, 0.0, 0.0, 0.0, 0.0]]


def test_each_row_keeps_its_score_and_its_penalty_in_sum(batch):
    for seed in range(10):
        b = batch(seed)
        got = shape_rewards(b.scores, b.rewards, b.mask, kl_coef=0.3).sum(1)
        penalty = 0.3 * torch.where(b.mask, b.rewards, 0.0).sum(1)
        want = torch.where(b.mask.any(1), b.scores, 0.0) - penalty
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_zero_coefficient_does_not_read_the_kl():
    mask = torch.ones(1, 2, dtype=torch.bool)
    got = shape_rewards(torch.tensor([1.0]), torch.tensor([[math.inf, math.nan]]), mask, kl_coef=0.0)
    assert got.tolist() == [[0.0, 1.0]]


def test_only_the_score_is_clipped():
    mask = torch.ones(1, 2, dtype=torch.bool)
    steps = torch.tensor([[50.0, -50.0]])
    got = shape_rewards(torch.tensor([-9.0]), torch.zeros(1, 2), mask, kl_coef=1.0, step_rewards=steps, clip_score=1.0)
    assert got.tolist() == [[50.0, -51.0]]


def test_rewards_are_constants_in_float32_at_least():
    kl = torch.ones(1, 2, dtype=torch.bfloat16, requires_grad=True)
    got = shape_rewards(torch.tensor([1.0]).half(), kl, torch.ones(1, 2, dtype=torch.bool), kl_coef=1e-3)
    assert got.dtype is torch.float32 and not got.requires_grad
    assert got[0].tolist() == pytest.approx([-1e-3, 1 - 1e-3], rel=1e-6)


def test_bad_arguments_are_refused():
    x, mask, scores = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2)
    for shape in ((3,), (2, 1), (1,), ()):
        with pytest.raises(DataError, match="scores"):
            shape_rewards(torch.zeros(shape), x, mask, kl_coef=0.1)
    with pytest.raises(DataError):
        shape_rewards(scores, x, mask, kl_coef=0.1, step_rewards=torch.zeros(2, 1))
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="kl_coef"):
            shape_rewards(scores, x, mask, kl_coef=bad)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="clip_score"):
            shape_rewards(scores, x, mask, kl_coef=0.1, clip_score=bad)
