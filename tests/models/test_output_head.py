"""The output layer in chunks: the numbers and gradients of full logits, without ever holding them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from surefoot import algo
from surefoot.errors import ModelError
from surefoot.models import output_head
from surefoot.models.output_head import HeadSettings, OutputHead, Slopes

VOCABULARY, HIDDEN, ROWS = 13, 5, 9
SETTINGS = {
    "plain": HeadSettings(),
    "temperature": HeadSettings(temperature=0.6),
    "scale": HeadSettings(scale=0.25, temperature=1.5),
    "softcap": HeadSettings(softcap=2.0),
    "banned": HeadSettings(banned=(0, 4, 12)),
    "all": HeadSettings(temperature=0.7, scale=1.7, softcap=3.0, banned=(2, 12)),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows at a time, so that nine rows are three chunks, the last one short."""
    monkeypatch.setattr(output_head, "CHUNK_BYTES", 4 * 8 * VOCABULARY)


def made(*, bias: bool, dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(HIDDEN, VOCABULARY, bias=bias).to(dtype)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p))
    hidden = torch.randn(ROWS, HIDDEN, dtype=dtype, requires_grad=True)
    return layer, hidden, torch.tensor([1, 3, 5, 6, 7, 8, 9, 10, 11])


def full_logits(layer: nn.Linear, hidden: Tensor, settings: HeadSettings) -> Tensor:
    """Spelt out, with every array at once."""
    z = layer(hidden) * settings.scale
    if settings.softcap is not None:
        z = settings.softcap * torch.tanh(z / settings.softcap)
    z = z / settings.temperature
    banned = torch.zeros(VOCABULARY, dtype=torch.bool)
    banned[list(settings.banned)] = True
    return z.masked_fill(banned, -math.inf)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_those_of_finite_differences(name: str, bias: bool) -> None:
    layer, hidden, tokens = made(bias=bias)
    head = OutputHead(layer, SETTINGS[name])

    def both(hidden: Tensor, *parameters: Tensor) -> Any:
        return head.logp(hidden, tokens, entropy=True)

    assert torch.autograd.gradcheck(both, (hidden, *layer.parameters()))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_numbers_and_gradients_are_those_of_full_logits(name: str, bias: bool) -> None:
    layer, hidden, tokens = made(bias=bias)
    inputs = (hidden, *layer.parameters())
    logp, entropy = OutputHead(layer, SETTINGS[name]).logp(hidden, tokens, entropy=True)
    assert entropy is not None
    logits = full_logits(layer, hidden, SETTINGS[name])
    expected_logp, expected_entropy = algo.token_logp(logits, tokens), algo.entropy(logits)
    torch.testing.assert_close(logp, expected_logp)
    torch.testing.assert_close(entropy, expected_entropy)
    torch.testing.assert_close(OutputHead(layer, SETTINGS[name]).logits(hidden), logits)
    weights = torch.randn(2, ROWS, dtype=torch.float64)
    for a, b in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        ours = torch.autograd.grad((a * weights[0] * logp + b * weights[1] * entropy).sum(), inputs, retain_graph=True)
        loss = (a * weights[0] * expected_logp + b * weights[1] * expected_entropy).sum()
        for mine, theirs in zip(ours, torch.autograd.grad(loss, inputs, retain_graph=True), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_log_probabilities_alone_have_their_gradient() -> None:
    layer, hidden, tokens = made(bias=True)
    logp, entropy = OutputHead(layer, SETTINGS["all"]).logp(hidden, tokens)
    assert entropy is None
    expected = algo.token_logp(full_logits(layer, hidden, SETTINGS["all"]), tokens)
    inputs = (hidden, *layer.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(logp.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_frozen_layer_passes_the_gradient_on_and_gets_none() -> None:
    layer, hidden, tokens = made(bias=True)
    layer.requires_grad_(False)
    logp, _ = OutputHead(layer, SETTINGS["plain"]).logp(hidden, tokens)
    logp.sum().backward()
    assert hidden.grad is not None and hidden.grad.norm() > 0
    assert layer.weight.grad is None and layer.bias.grad is None


def test_frozen_states_leave_the_gradient_to_the_layer() -> None:
    layer, hidden, tokens = made(bias=False)
    logp, _ = OutputHead(layer, SETTINGS["plain"]).logp(hidden.detach(), tokens)
    logp.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.norm() > 0


def test_no_tokens_give_no_numbers_and_zero_gradients() -> None:
    layer, hidden, _ = made(bias=True)
    logp, entropy = OutputHead(layer, SETTINGS["plain"]).logp(
        hidden[:0], torch.zeros(0, dtype=torch.long), entropy=True
    )
    assert logp.shape == (0,) and entropy is not None and entropy.shape == (0,)
    logp.sum().backward()
    assert layer.weight.grad is not None and not layer.weight.grad.any()


def test_banned_tokens_are_left_out_of_the_distribution_and_refused_as_actions() -> None:
    """ALG-28: policy and reference under the same ban both give the only other token probability 1."""
    for eos, other in ((0.9, 0.1), (0.5, 0.5)):
        layer = nn.Linear(1, 2, bias=False).double()
        layer.weight.data = torch.tensor([[eos], [other]]).double().log()
        head = OutputHead(layer, HeadSettings(banned=(0,)))
        logp, entropy = head.logp(torch.ones(1, 1).double(), torch.tensor([1]), entropy=True)
        assert logp.item() == pytest.approx(0.0, abs=1e-12)
        assert entropy is not None and entropy.item() == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ModelError, match="no token of the vocabulary"):
        head.logp(torch.ones(1, 1).double(), torch.tensor([0]))


def test_logits_far_apart_stay_finite() -> None:
    layer = nn.Linear(1, 3, bias=False)
    layer.weight.data = torch.tensor([[1e4], [0.0], [-1e4]])
    hidden = torch.ones(2, 1, requires_grad=True)
    logp, entropy = OutputHead(layer, HeadSettings()).logp(hidden, torch.tensor([0, 2]), entropy=True)
    assert logp.tolist() == [0.0, -2e4]
    assert entropy is not None and entropy.tolist() == [0.0, 0.0]
    (logp.sum() + entropy.sum()).backward()
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_float32_statistics_and_sums_gradients_in_float32(dtype: torch.dtype, known: bool) -> None:
    """In bfloat16 a sum of many chunks stops growing at 256 times an addend."""
    layer = nn.Linear(1, VOCABULARY, bias=True).to(dtype)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    rows = 4 * 1024
    hidden = torch.ones(rows, 1, dtype=dtype)
    slopes: Slopes | None = (lambda _, x: (torch.full_like(x, 1 / rows), None)) if known else None
    logp, entropy = OutputHead(layer, HeadSettings()).logp(
        hidden, torch.zeros(rows, dtype=torch.long), entropy=True, slopes=slopes
    )
    assert logp.dtype == torch.float32 and entropy is not None and entropy.dtype == torch.float32
    torch.testing.assert_close(logp, torch.full((rows,), -math.log(VOCABULARY)))
    logp.mean().backward()
    for gradient in (layer.weight.grad, layer.bias.grad):
        assert gradient is not None and gradient.dtype == dtype
        assert gradient.flatten()[0].item() == pytest.approx(1 - 1 / VOCABULARY, rel=0.01)
        assert gradient.flatten()[1].item() == pytest.approx(-1 / VOCABULARY, rel=0.01)


class LargestOutput(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("known", [False, True])
def test_full_logits_never_exist(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """MEM-02: neither in the forward nor in the backward pass, where chunks might be put together again."""
    vocabulary, rows, per_chunk = 1000, 200, 8
    monkeypatch.setattr(output_head, "CHUNK_BYTES", 4 * vocabulary * per_chunk)
    layer = nn.Linear(HIDDEN, vocabulary, bias=True)
    hidden = torch.randn(rows, HIDDEN, requires_grad=True)
    tokens = torch.arange(rows)
    allowed = max(per_chunk * vocabulary, layer.weight.numel())
    with LargestOutput() as watch:
        settings = HeadSettings(temperature=0.7, softcap=3.0, banned=(999,))
        slopes: Slopes | None = (lambda _, x: (torch.ones_like(x), torch.ones_like(x))) if known else None
        logp, entropy = OutputHead(layer, settings).logp(hidden, tokens, entropy=True, slopes=slopes)
        assert entropy is not None
        (logp.sum() + entropy.sum()).backward()
    assert watch.elements == allowed
    with LargestOutput() as watch:
        layer(hidden)
    assert watch.elements == rows * vocabulary > 10 * allowed


# -------------------------------------------------------------------------------------- losses known beforehand


def curved(logp: Tensor, entropy: Tensor | None, weights: Tensor) -> Tensor:
    """A loss that is not linear in its log-probabilities."""
    loss = (weights[0] * logp.exp()).sum()
    return loss if entropy is None else loss + (weights[1] * entropy).sum()


def slopes_of_curved(weights: Tensor, *, entropy: bool) -> Slopes:
    def slopes(rows: slice, logp: Tensor) -> tuple[Tensor, Tensor | None]:
        return weights[0, rows] * logp.exp(), weights[1, rows] if entropy else None

    return slopes


@pytest.mark.parametrize("trained", ["all", "states", "layer"])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_loss_known_beforehand_has_the_gradients_of_full_logits(
    name: str, bias: bool, entropy: bool, trained: str
) -> None:
    layer, hidden, tokens = made(bias=bias)
    layer.requires_grad_(trained != "states")
    hidden.requires_grad_(trained != "layer")
    inputs = [x for x in (hidden, *layer.parameters()) if x.requires_grad]
    weights = torch.randn(2, ROWS, dtype=torch.float64)
    head, slopes = OutputHead(layer, SETTINGS[name]), slopes_of_curved(weights, entropy=entropy)
    logp, found = head.logp(hidden, tokens, entropy=entropy, slopes=slopes)
    logits = full_logits(layer, hidden, SETTINGS[name])
    expected = (algo.token_logp(logits, tokens), algo.entropy(logits) if entropy else None)
    torch.testing.assert_close((logp, found), expected)
    ours = torch.autograd.grad(curved(logp, found, weights), inputs)
    theirs = torch.autograd.grad(curved(*expected, weights), inputs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


class CountedLogits(TorchDispatchMode):
    """How many times logits of a row are made: products ``[k, V]``, in rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default)
        if func in products and out.shape[-1] == VOCABULARY:
            self.rows += len(out)
        return out


@pytest.mark.parametrize("known", [False, True])
def test_logits_are_made_once_where_the_loss_is_known_beforehand(known: bool) -> None:
    layer, hidden, tokens = made(bias=True)
    weights = torch.randn(2, ROWS, dtype=torch.float64)
    slopes = slopes_of_curved(weights, entropy=False) if known else None
    with CountedLogits() as count:
        logp, _ = OutputHead(layer, SETTINGS["plain"]).logp(hidden, tokens, slopes=slopes)
        curved(logp, None, weights).backward()
    assert count.rows == ROWS * (1 if known else 2)


@pytest.mark.parametrize("wrong", ["logp", "entropy", "forgotten"])
def test_a_loss_that_is_not_as_it_was_said_to_be_is_refused(wrong: str) -> None:
    """A wrong slope would train something else than the loss that is reported."""
    layer, hidden, tokens = made(bias=False)
    weights = torch.randn(2, ROWS, dtype=torch.float64)
    said = weights.clone()
    said[("logp", "entropy", "forgotten").index(wrong) % 2, 3] += 0.1
    slopes = slopes_of_curved(said if wrong != "forgotten" else weights, entropy=wrong != "forgotten")
    logp, entropy = OutputHead(layer, SETTINGS["plain"]).logp(hidden, tokens, entropy=True, slopes=slopes)
    with pytest.raises(ModelError, match="in another way than was said"):
        curved(logp, entropy, weights).backward()
    assert layer.weight.grad is None and hidden.grad is None


def test_without_gradients_nothing_is_asked_of_the_loss() -> None:
    layer, hidden, tokens = made(bias=False)

    def slopes(rows: slice, logp: Tensor) -> tuple[Tensor, Tensor | None]:
        raise AssertionError("asked")

    with torch.no_grad():
        logp, _ = OutputHead(layer, SETTINGS["plain"]).logp(hidden, tokens, slopes=slopes)
    torch.testing.assert_close(logp, OutputHead(layer, SETTINGS["plain"]).logp(hidden, tokens)[0])


def test_no_tokens_of_a_known_loss_give_zero_gradients() -> None:
    layer, hidden, _ = made(bias=True)
    slopes = slopes_of_curved(torch.zeros(2, 0).double(), entropy=True)
    logp, entropy = OutputHead(layer, SETTINGS["plain"]).logp(
        hidden[:0], torch.zeros(0, dtype=torch.long), entropy=True, slopes=slopes
    )
    curved(logp, entropy, torch.zeros(2, 0).double()).backward()
    assert layer.weight.grad is not None and not layer.weight.grad.any()
