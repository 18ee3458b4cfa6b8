"""KL controllers: the published rules, on the right scale, never leaving the positive numbers."""

from __future__ import annotations

import math
import random

import pytest
import torch

from surefoot.algo import AdaptiveKL, AdaptivePenalty, FixedKL
from surefoot.errors import ConfigError, TrainingError


def test_adaptive_follows_the_rule_on_random_walks():
    rng = random.Random(0)
    for _ in range(20):
        coef, target, horizon = rng.uniform(0.01, 1), rng.uniform(0.1, 10), rng.uniform(100, 10000)
        controller = AdaptiveKL(coef, target, horizon)
        for _ in range(30):
            kl, n = rng.uniform(-1, 3) * target, rng.randint(0, 64)
            error = kl / target - 1
            error = -0.2 if error < -0.2 else 0.2 if error > 0.2 else error
            coef *= 1 + error * n / horizon
            controller.update(kl, n)
            assert controller.coef == pytest.approx(coef, rel=1e-12)


def test_adaptive_by_hand_above_at_and_below_the_target():
    controller = AdaptiveKL(0.5, 4.0, 100)
    seen = []
    for kl in (4.4, 4.0, 100.0, 0.0):
        controller.update(kl, 50)
        seen.append(controller.coef)
    # errors 0.1, 0, 0.2, -0.2; times 50/100
    assert seen == pytest.approx([0.5 * 1.05, 0.5 * 1.05, 0.5 * 1.05 * 1.1, 0.5 * 1.05 * 1.1 * 0.9])


def test_adaptive_stays_positive_and_can_come_back():
    controller = AdaptiveKL(0.2, 6.0, 10)
    for _ in range(2000):
        controller.update(-50.0, 1000)
    assert 0 < controller.coef < 1e-300
    low = controller.coef
    controller.update(50.0, 10)
    assert controller.coef > low
    for _ in range(2000):
        controller.update(50.0, 1000)
    assert math.isfinite(controller.coef)


def test_the_floor_of_the_factor_acts_only_where_the_rule_would_leave_the_positive_numbers():
    controller = AdaptiveKL(1.0, 1.0, 100)
    controller.update(0.0, 449)
    assert controller.coef == pytest.approx(1 - 0.2 * 4.49)
    controller = AdaptiveKL(1.0, 1.0, 100)
    controller.update(0.0, 1000)
    assert controller.coef == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_adaptive_controllers_refuse_what_is_not_positive(bad):
    for args in ((bad, 6.0, 100), (0.2, bad, 100), (0.2, 6.0, bad)):
        with pytest.raises(ConfigError):
            AdaptiveKL(*args)
    for args in ((bad, 6.0), (0.2, bad)):
        with pytest.raises(ConfigError):
            AdaptivePenalty(*args)


def test_a_kl_that_is_not_finite_is_refused_and_leaves_the_coefficient():
    for controller, update in (
        (AdaptiveKL(0.2, 6.0, 100), lambda c, x: c.update(x, 8)),
        (AdaptivePenalty(0.2, 6.0), lambda c, x: c.update(x)),
    ):
        for bad in (math.nan, math.inf, -math.inf, torch.tensor(math.nan)):
            with pytest.raises(TrainingError):
                update(controller, bad)
            assert controller.coef == 0.2
    with pytest.raises(ConfigError):
        AdaptiveKL(0.2, 6.0, 100).update(1.0, -1)


def test_fixed_does_not_move_and_may_be_zero():
    controller = FixedKL(0.0)
    controller.update(1e9, 1000)
    assert controller.coef == 0.0
    assert FixedKL(0.05).coef == 0.05
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError):
            FixedKL(bad)


def test_penalty_halves_below_and_doubles_above_the_band():
    target = 0.3
    for d, factor in ((0.0, 0.5), (0.19, 0.5), (0.21, 1), (0.3, 1), (0.44, 1), (0.46, 2), (9.0, 2), (-0.1, 0.5)):
        controller = AdaptivePenalty(0.8, target)
        controller.update(d)
        assert controller.coef == 0.8 * factor, d
    exact = AdaptivePenalty(0.8, 3.0)
    for edge in (2.0, 4.5):
        exact.update(edge)
        assert exact.coef == 0.8, "the band's edges belong to it"


def test_penalty_stays_positive_and_finite_and_comes_back():
    controller = AdaptivePenalty(1.0, 1.0)
    for _ in range(3000):
        controller.update(0.0)
    assert controller.coef > 0
    for _ in range(6000):
        controller.update(10.0)
    assert math.isfinite(controller.coef)
    controller.update(0.0)
    assert math.isfinite(controller.coef)


def test_setting_coef_restores_a_controller():
    first, second = AdaptiveKL(0.2, 6.0, 100), AdaptiveKL(0.9, 6.0, 100)
    first.update(9.0, 8)
    second.coef = first.coef
    for controller in (first, second):
        controller.update(torch.tensor(1.0), 8)
    assert first.coef == second.coef
