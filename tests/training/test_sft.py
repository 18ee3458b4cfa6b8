"""The loss of supervised fine-tuning is that of its formula, however a step is cut, packed, padded and ordered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from surefoot.config import OptimSection
from surefoot.data.demonstrations import Encoded
from surefoot.models.policy import CausalPolicy, Lora, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.training.clock import StepClock
from surefoot.training.sft import SFTParts, held_out_loss, sft_step
from tests.models.made_batches import NO_STEP, RecordingOptimizer
from tests.models.oracle_models import folder

LENGTHS = (9, 4, 23, 2, 14, 9, 30)
TOLERANCE = {"gpt2": 1e-10, "llama": 1e-6, "qwen3": 1e-6}
PLANS = {
    "one row at a time": BatchPlan(1, "on"),
    "packed in two": BatchPlan(60, "on"),
    "packed in one": BatchPlan(10**6, "on"),
    "padded in some": BatchPlan(46, "off"),
    "padded in one": BatchPlan(10**6, "off"),
}


def rows() -> list[Encoded]:
    """Rows of many lengths: some share a beginning, one is trained whole, one has a hole between two answers."""
    rng = np.random.default_rng(5)
    common, found = rng.integers(0, 128, 8), []
    for number, length in enumerate(LENGTHS):
        tokens = rng.integers(0, 128, length + 1)
        if number % 2:
            tokens[: min(8, length)] = common[: min(8, length)]
        mask = np.arange(length + 1) > (0 if number == 2 else length // 2)
        if number == 6:
            mask[20:25] = False
        found.append(Encoded(f"rows:{number + 1}", tokens, mask, str(number)))
    return found


def step_of(policy: CausalPolicy, some: Sequence[Encoded]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A step's metrics, and the gradient that its optimizer saw."""
    optim = OptimSection(policy_lr=NO_STEP, max_grad_norm=None)
    optimizer = RecordingOptimizer([(NO_STEP, policy.trainable())], optim, total_steps=1, max_skipped=1)
    report = sft_step(1, some, SFTParts(policy, optimizer), StepClock())
    return dict(report.metrics), optimizer.gradients[0]


def twin(name: str, some: Sequence[Encoded]) -> tuple[float, dict[str, Tensor]]:
    """The library's own model, a row at a time, and cross-entropy spelt out."""
    model = AutoModelForCausalLM.from_pretrained(folder(name), attn_implementation="eager").double().eval()
    model.get_input_embeddings().padding_idx = None  # the library gives this id no gradient, also where it is a word
    count, loss = sum(int(row.mask.sum()) for row in some), torch.zeros((), dtype=torch.float64)
    for row in some:
        tokens, mask = torch.from_numpy(row.tokens), torch.from_numpy(row.mask)
        logp = model(tokens[None]).logits[0].log_softmax(dim=-1)
        chosen = logp[:-1].gather(1, tokens[1:, None])[:, 0]
        loss = loss - chosen[mask[1:]].sum() / count
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def check(name: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(expected) <= set(found)
    for parameter, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        assert float((found[parameter] - gradient).abs().max()) <= TOLERANCE[name] * scale, parameter


@pytest.mark.parametrize("name", TOLERANCE)
def test_loss_and_gradient_are_those_of_the_formula(name: str) -> None:
    loss, gradient = twin(name, rows())
    metrics, found = step_of(load_policy(folder(name), dtype="float64"), rows())
    assert metrics["sft/loss"] == pytest.approx(loss, abs=TOLERANCE[name])
    assert metrics["sft/tokens"] == sum(int(row.mask.sum()) for row in rows()) and metrics["sft/rows"] == 7
    check(name, found, gradient)
    assert metrics["sft/grad_norm"] == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in gradient.values())))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_how_a_step_is_cut_changes_nothing(name: str, plan: BatchPlan) -> None:
    whole = step_of(load_policy(folder(name), dtype="float64", plan=BatchPlan(1, "off")), rows())
    policy = load_policy(folder(name), dtype="float64", plan=plan)
    for order in (range(7), (3, 6, 0, 5, 1, 2, 4)):
        metrics, found = step_of(policy, [rows()[i] for i in order])
        assert metrics["sft/loss"] == pytest.approx(whole[0]["sft/loss"], abs=TOLERANCE[name])
        check(name, found, whole[1])


def test_packed_rows_do_not_see_each_other() -> None:
    """The loss of a row among others is its loss alone."""
    policy = load_policy(folder("gpt2"), dtype="float64", plan=BatchPlan(10**6, "on"))
    together = held_out_loss(0, rows(), policy)
    for row, record in zip(rows(), together.rows, strict=True):
        alone = held_out_loss(0, [row], policy)
        assert record["loss"] == pytest.approx(alone.loss, abs=1e-12)
        assert (record["id"], record["tokens"]) == (row.id, int(row.mask.sum()))


def test_the_held_out_loss_counts_tokens_once_and_moves_nothing() -> None:
    policy = load_policy(folder("gpt2"), dtype="float64")
    before = {name: p.detach().clone() for name, p in policy.trainable().items()}
    found = held_out_loss(3, rows(), policy)
    assert found.loss == pytest.approx(twin("gpt2", rows())[0], abs=1e-12)
    assert found.metrics["evaluate/perplexity"] == pytest.approx(math.exp(found.loss))
    assert found.mean == -found.loss and found.as_json()["step"] == 3
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in policy.trainable().items())
    assert "perplexity" in found.line


def test_what_stands_off_the_mask_is_read_and_not_trained() -> None:
    """Another token in a prompt changes the loss; its own log-probability is in no loss."""
    some = rows()[:1]
    policy = load_policy(folder("gpt2"), dtype="float64")
    last = [Encoded("a", some[0].tokens, np.arange(len(some[0].tokens)) == len(some[0].tokens) - 1, "a")]
    metrics, _ = step_of(policy, last)
    assert metrics["sft/tokens"] == 1
    assert metrics["sft/loss"] == pytest.approx(twin("gpt2", last)[0], abs=1e-12)
    other = some[0].tokens.copy()
    other[1] = (other[1] + 1) % 128
    assert step_of(policy, [Encoded("b", other, last[0].mask, "b")])[0]["sft/loss"] != metrics["sft/loss"]


def test_adapters_alone_are_trained_with_lora() -> None:
    policy = load_policy(folder("llama"), lora=Lora(rank=2))
    _, found = step_of(policy, rows())
    assert found and all("lora_" in name for name in found)
    assert any(bool(g.any()) for g in found.values())


def test_a_loss_that_is_not_finite_is_skipped_and_counted() -> None:
    policy = load_policy(folder("gpt2"), dtype="float64")
    parameter = next(iter(policy.trainable().values()))
    with torch.no_grad():
        parameter[5] = math.nan
    optimizer = RecordingOptimizer([(1.0, policy.trainable())], OptimSection(), total_steps=1, max_skipped=1)
    some = [row for row in rows() if 5 not in row.tokens] + [
        Encoded("x", np.array([5, 6]), np.array([False, True]), "x")
    ]
    report = sft_step(1, some, SFTParts(policy, optimizer), StepClock())
    assert report.metrics["sft/skipped_updates"] == 1 and report.metrics["sft/loss"] is None
