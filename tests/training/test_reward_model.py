"""The loss of a reward model: the oracle's and a twin's gradients, however pairs are cut; margins, heads, bootstrap."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from surefoot.config import OptimSection, RewardModelSection
from surefoot.data.pair_tokens import EncodedPair
from surefoot.models.score_model import ScoreModel, load_score_model
from surefoot.models.scoring import BatchPlan
from surefoot.training.clock import StepClock
from surefoot.training.reward_model import (
    PreferenceParts,
    bootstrap,
    held_out_order,
    pair_groups,
    pair_loss,
    pair_scores,
    preference_step,
)
from tests.models.made_batches import NO_STEP, RecordingOptimizer
from tests.models.oracle_models import folder

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "reward_model.json").read_text())
TOLERANCE = {"gpt2": 1e-10, "llama": 1e-6}
LENGTHS = ((9, 4), (23, 23), (2, 14), (30, 12), (9, 10))


def pairs() -> list[EncodedPair]:
    """Pairs of many lengths; most begin alike."""
    rng, found = np.random.default_rng(4), []
    for number, (good, bad) in enumerate(LENGTHS):
        chosen, rejected = rng.integers(0, 128, good), rng.integers(0, 128, bad)
        shared = min(good, bad) - 1 if number % 2 else 0
        rejected[:shared] = chosen[:shared]
        found.append(EncodedPair(f"pairs:{number + 1}", chosen, rejected, 0.5 * number, str(number)))
    return found


def with_heads(model: ScoreModel) -> ScoreModel:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        noise = torch.randn(model.heads.weight.shape, generator=generator, dtype=torch.float64)
        model.heads.weight.copy_(0.3 * noise)
    return model


def step_of(
    model: ScoreModel, section: RewardModelSection, rows: list[int] | None = None, counts: Any = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A step's metrics, and the gradient that its optimizer saw."""
    optim = OptimSection(max_grad_norm=None)
    groups = [(NO_STEP, model.trunk_parameters()), (NO_STEP, model.head_parameters())]
    optimizer = RecordingOptimizer(groups, optim, total_steps=1, max_skipped=1)
    parts = PreferenceParts(model, optimizer, counts)
    numbers = list(range(len(pairs()))) if rows is None else rows
    report = preference_step(1, numbers, pairs(), parts, section, StepClock())
    return dict(report.metrics), optimizer.gradients[0]


def twin(name: str, section: RewardModelSection, weight: Tensor) -> tuple[float, dict[str, Tensor]]:
    """The library's own trunk, a text at a time, and the formula spelt out; ``weight`` is one head's."""
    trunk = AutoModel.from_pretrained(folder(name), attn_implementation="eager").double().eval()
    trunk.get_input_embeddings().padding_idx = None
    head, loss = weight.detach().clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
    for pair in pairs():
        good, bad = (
            trunk(torch.from_numpy(text)[None]).last_hidden_state[0, -1] @ head for text in (pair.chosen, pair.rejected)
        )
        lead = good - bad - section.margin_scale * (pair.margin or 0.0)
        loss = loss + (torch.log1p(torch.exp(-lead)) + section.centering * (good + bad) ** 2) / len(pairs())
    loss.backward()
    found = {f"trunk.{n}": p.grad for n, p in trunk.named_parameters() if p.grad is not None}
    assert head.grad is not None
    return float(loss.detach()), {**found, "heads.weight": head.grad[None]}


def check(name: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(expected) <= set(found)
    for parameter, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        assert float((found[parameter] - gradient).abs().max()) <= TOLERANCE[name] * scale, parameter


# ------------------------------------------------------------------------------------------------------ the formula


@pytest.mark.parametrize("case", [c for c in ORACLE["cases"] if "chosen" in c["inputs"]], ids=lambda c: c["case"])
def test_scores_get_the_gradients_of_the_public_implementations(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    scores = torch.tensor([inputs["chosen"], inputs["rejected"]], dtype=torch.float64).T[:, :, None].requires_grad_()
    margins = inputs["margin"] if case["uses_margin"] else [None] * len(inputs["chosen"])
    some = [EncodedPair("", np.array([1]), np.array([2]), margin, "") for margin in margins]
    section = RewardModelSection(margin_scale=1.0, centering=case["centre"])
    loss = pair_loss(scores, some, section)
    loss.backward()
    group = case["groups"][0]
    tolerance = max(1e-8, 2 * group["max_abs_dev_inside_group"])
    assert float(loss.detach()) == pytest.approx(group["values"]["loss"], abs=tolerance)
    assert scores.grad is not None
    for side, name in enumerate(("grad_chosen", "grad_rejected")):
        np.testing.assert_allclose(scores.grad[:, side, 0], group["values"][name], atol=tolerance)


@pytest.mark.parametrize("name", TOLERANCE)
def test_loss_and_gradient_are_those_of_the_formula(name: str) -> None:
    model = with_heads(load_score_model(folder(name), dtype="float64"))
    section = RewardModelSection(margin_scale=0.7, centering=0.05)
    loss, gradient = twin(name, section, model.heads.weight[0])
    metrics, found = step_of(model, section)
    assert metrics["pairs/loss"] == pytest.approx(loss, abs=TOLERANCE[name])
    check(name, found, gradient)
    scores = pair_scores(model, pairs())[:, :, 0]
    assert metrics["pairs/accuracy"] == (scores[:, 0] > scores[:, 1]).mean()
    assert metrics["pairs/lead_mean"] == pytest.approx((scores[:, 0] - scores[:, 1]).mean())
    assert "pairs/spread" not in metrics


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("tokens", [1, 70, 10**6])
@pytest.mark.parametrize("name", TOLERANCE)
def test_how_a_step_is_cut_changes_nothing(name: str, tokens: int, packing: str) -> None:
    section = RewardModelSection(margin_scale=0.7, centering=0.05)
    whole = step_of(with_heads(load_score_model(folder(name), dtype="float64", plan=BatchPlan(1, "off"))), section)
    model = with_heads(load_score_model(folder(name), dtype="float64", plan=BatchPlan(tokens, packing)))
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        metrics, found = step_of(model, section, order)
        assert metrics["pairs/loss"] == pytest.approx(whole[0]["pairs/loss"], abs=TOLERANCE[name])
        check(name, found, whole[1])


def test_groups_keep_pairs_whole_and_to_their_budget() -> None:
    some = pairs()
    for packed in (True, False):
        for tokens in (1, 40, 70, 10**6):
            groups = list(pair_groups(some, tokens, packed=packed))
            assert sorted(i for group in groups for i in group) == list(range(5))
            for group in groups:
                rows = [text for i in group for text in (some[i].chosen, some[i].rejected)]
                size = 2 * len(group) * max(map(len, rows))
                if packed:
                    from surefoot.models.packing import pack

                    size = int(pack(rows).ids.size)
                assert size <= tokens or len(group) == 1
        assert len(list(pair_groups(some, 10**6, packed=packed))) == 1
        assert len(list(pair_groups(some, 1, packed=packed))) == 5


# ------------------------------------------------------------------------------------------------------------- heads


def test_heads_learn_alone_and_the_trunk_from_their_mean() -> None:
    model = with_heads(load_score_model(folder("gpt2"), dtype="float64", heads=3))
    section = RewardModelSection(centering=0.02)
    metrics, found = step_of(model, section)
    twins = [twin("gpt2", section, weight) for weight in model.heads.weight]
    assert metrics["pairs/loss"] == pytest.approx(sum(loss for loss, _ in twins) / 3, abs=1e-10)
    for head, (_, gradient) in enumerate(twins):
        np.testing.assert_allclose(found["heads.weight"][head], gradient["heads.weight"][0] / 3, atol=1e-10)
    name = "trunk.h.0.attn.c_attn.weight"
    np.testing.assert_allclose(found[name], sum(g[name] for _, g in twins) / 3, atol=1e-10)
    scores = pair_scores(model, pairs())
    assert metrics["pairs/spread"] == pytest.approx(scores.std(axis=2).mean())


def test_a_bootstrap_counts_pairs_as_if_they_stood_there_so_often() -> None:
    model = with_heads(load_score_model(folder("gpt2"), dtype="float64", heads=2))
    section, counts = RewardModelSection(margin_scale=1.0, centering=0.0), np.array([[2, 0, 1, 1, 1], [0, 0, 0, 5, 0]])
    scores = torch.from_numpy(pair_scores(model, pairs()))
    expected = 0.0
    for head in range(2):
        for number, pair in enumerate(pairs()):
            lead = float(scores[number, 0, head] - scores[number, 1, head]) - (pair.margin or 0.0)
            expected += counts[head, number] * math.log1p(math.exp(-lead)) / 5 / 2
    assert step_of(model, section, counts=counts)[0]["pairs/loss"] == pytest.approx(expected, abs=1e-10)
    # The same rows of the table in another order.
    assert step_of(model, section, [4, 2, 0, 1, 3], counts)[0]["pairs/loss"] == pytest.approx(expected, abs=1e-10)


def test_a_bootstrap_draws_with_replacement_and_by_seed() -> None:
    assert bootstrap(1, 100, 0) is None
    drawn = bootstrap(3, 100, 7)
    assert drawn is not None and drawn.shape == (3, 100) and (drawn.sum(axis=1) == 100).all()
    assert (drawn > 0).sum(axis=1).min() > 50 and (drawn > 0).sum(axis=1).max() < 80, "about 63 of 100 are drawn"
    assert len({tuple(row) for row in drawn.tolist()}) == 3
    again = bootstrap(3, 100, 7)
    assert again is not None and (drawn == again).all()


# ---------------------------------------------------------------------------------------------------------- held out


def test_the_held_out_loss_knows_no_margin_and_moves_nothing() -> None:
    model = with_heads(load_score_model(folder("gpt2"), dtype="float64"))
    before = {name: p.detach().clone() for name, p in model.trainable().items()}
    found = held_out_order(2, pairs(), model)
    scores = pair_scores(model, pairs())[:, :, 0]
    leads = scores[:, 0] - scores[:, 1]
    assert found.loss == pytest.approx(np.log1p(np.exp(-leads)).mean())
    assert found.metrics["evaluate/accuracy"] == (leads > 0).mean() and found.metrics["evaluate/pairs"] == 5
    assert found.metrics["evaluate/accuracy_low"] < found.metrics["evaluate/accuracy"]  # type: ignore[operator]
    for record, pair, (good, bad) in zip(found.rows, pairs(), scores, strict=True):
        assert record == {"id": pair.id, "chosen": good, "rejected": bad, "margin": pair.margin}
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in model.trainable().items())


def test_a_tie_is_counted_as_wrong() -> None:
    model = load_score_model(folder("gpt2"))
    torch.nn.init.zeros_(model.heads.weight)
    assert held_out_order(0, pairs(), model).metrics["evaluate/accuracy"] == 0.0
