"""Drawing tokens: the right frequencies, never an impossible token, and its log-probability."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.rollout.sampling import sample_tokens

ALMOST_ONE = 1 - 2**-53
EXTREMES = (0.0, 2**-53, 1e-12, 0.5, 1 - 1e-12, ALMOST_ONE)


def draw(logits: Tensor, uniform: list[float] | Tensor, **options: object) -> tuple[list[int], Tensor]:
    """All draws from one row of logits."""
    draws = torch.as_tensor(uniform, dtype=torch.float64)
    tokens, logp, _ = sample_tokens(logits.expand(len(draws), -1), draws, **options)  # type: ignore[arg-type]
    return tokens.tolist(), logp


def logits_of(probabilities: list[float]) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log().float()


def frequencies(logits: Tensor, count: int, **options: object) -> np.ndarray:
    """Shares of each token over an even grid of draws: exact up to 1 / count."""
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, _ = draw(logits, grid, **options)
    return np.bincount(tokens, minlength=logits.shape[-1]) / count


@pytest.mark.parametrize("seed", range(3))
def test_tokens_come_as_often_as_their_probability(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(1, 50, generator=generator)
    expected = torch.softmax(logits[0].double(), 0).numpy()
    np.testing.assert_allclose(frequencies(logits, 20000), expected, atol=1.5 / 20000)


def test_random_draws_pass_a_chi_square_test() -> None:
    logits = torch.linspace(-2, 2, 12)[None]
    expected = torch.softmax(logits[0].double(), 0).numpy() * 40000
    rng = np.random.default_rng(11)
    tokens, _ = draw(logits, torch.from_numpy(rng.random(40000)))
    statistic = float((((np.bincount(tokens, minlength=12) - expected) ** 2) / expected).sum())
    # 99.9 % quantile of chi-square with 11 degrees of freedom.
    assert statistic < 31.3


@pytest.mark.parametrize(
    "probabilities",
    [
        [0.0, 0.5, 0.5, 0.0],
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0, 0.0],
        [0.25, 0.0, 0.5, 0.25],
        [1e-30, 1.0, 1e-30, 0.0],
        [0.1] * 10,
        [0.0] * 5 + [0.3, 0.0, 0.7] + [0.0] * 5,
    ],
)
@pytest.mark.parametrize("top_p", [1.0, 0.999999])
@pytest.mark.parametrize("top_k", [0, 3])
def test_impossible_tokens_are_never_drawn(probabilities: list[float], top_p: float, top_k: int) -> None:
    tokens, logp = draw(logits_of(probabilities), list(EXTREMES), top_p=top_p, top_k=top_k)
    assert all(probabilities[token] > 0 for token in tokens)
    assert torch.isfinite(logp).all()


def test_draws_at_the_very_ends_stay_within_the_vocabulary() -> None:
    """A large vocabulary whose tail has no probability: the sum's last entries are all the total."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(1, 49152, generator=generator)
        logits[:, 40000:] = -math.inf
        logits[:, :3] = -math.inf
        tokens, logp = draw(logits, list(EXTREMES))
        assert all(3 <= token < 40000 for token in tokens)
        assert tokens[0] == 3 and torch.isfinite(logp).all()


def test_a_sum_that_is_not_quite_monotone_draws_no_impossible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel sums on accelerators may differ in the last bits between neighbours."""
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    real = torch.Tensor.cumsum

    def shaky(self: Tensor, *args: object, **options: object) -> Tensor:
        out = real(self, *args, **options)  # type: ignore[arg-type]
        if out.shape[-1] > 5:
            out[:, 0] += 1e-16
            out[:, 2] += 1e-16
        return out

    monkeypatch.setattr(torch.Tensor, "cumsum", shaky)
    tokens, _ = draw(probabilities.log(), [0.0, 0.5, ALMOST_ONE])
    assert tokens[0] == 1 and tokens[1] in (1, 3) and tokens[2] == 3


@pytest.mark.parametrize("vocabulary", [1, 5, 255, 256, 257, 512, 1000])
def test_any_size_of_vocabulary_is_searched_to_its_end(vocabulary: int) -> None:
    """The search goes by blocks: their borders and a short last one."""
    assert frequencies(torch.zeros(1, vocabulary), 4 * vocabulary).tolist() == [1 / vocabulary] * vocabulary
    last = torch.full((1, vocabulary), -math.inf)
    last[0, -1] = 0.0
    assert draw(last, list(EXTREMES))[0] == [vocabulary - 1] * len(EXTREMES)
    rows = torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(4)).double()
    uniform = torch.linspace(0.05, 0.95, 6, dtype=torch.float64)
    expected = (torch.softmax(rows, -1).cumsum(-1) > uniform[:, None]).int().argmax(-1)
    assert torch.equal(sample_tokens(rows, uniform)[0], expected)


def test_a_draw_on_a_border_belongs_to_the_next_token() -> None:
    """[0, p) is the first token's, exactly: so 0 never draws what has no probability."""
    assert draw(torch.zeros(1, 4), [0.0, 0.25, 0.5, 0.75])[0] == [0, 1, 2, 3]
    assert draw(torch.zeros(1, 512), [0.25, 0.5, 0.5 - 2**-12])[0] == [128, 256, 255]


def test_a_certain_token_is_always_drawn() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 500] = 200.0
    assert draw(logits, list(EXTREMES))[0] == [500] * len(EXTREMES)


def test_rare_tokens_at_the_end_of_a_large_vocabulary_are_reached() -> None:
    """In float32 the sum's tail would be rounded away."""
    logits = torch.zeros(1, 49152)
    logits[0, 0] = 25.0
    tail = 49151 / (49151 + math.exp(25.0))
    tokens, _ = draw(logits, [1 - tail * share for share in (1.5, 0.75, 0.5, 0.25)])
    assert tokens[0] == 0
    # The first probability itself is a float32, good to a tenth of the tail.
    np.testing.assert_allclose(np.array(tokens[1:]) / 49151, [0.25, 0.5, 0.75], atol=0.1)
    assert draw(logits, [ALMOST_ONE])[0] == [49151]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {0, 3}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.39}, {3}),
        ({"top_p": 0.41}, {0, 3}),
        ({"top_p": 0.69}, {0, 3}),
        ({"top_p": 0.71}, {0, 1, 3}),
        ({"top_p": 1e-9}, {3}),
        # Of the two likeliest, the likelier one holds 0.4 / 0.7 = 0.571.
        ({"top_k": 2, "top_p": 0.56}, {3}),
        ({"top_k": 2, "top_p": 0.58}, {0, 3}),
    ],
)
def test_filters_keep_exactly_their_set(options: dict[str, float], kept: set[int]) -> None:
    probabilities = [0.3, 0.2, 0.07, 0.4, 0.03]
    found = frequencies(logits_of(probabilities), 10000, **options)
    total = sum(probabilities[t] for t in kept)
    expected = [p / total if t in kept else 0.0 for t, p in enumerate(probabilities)]
    np.testing.assert_allclose(found, expected, atol=1.5e-4)
    tokens, logp = draw(logits_of(probabilities), [0.3], **options)
    assert logp.exp().item() == pytest.approx(probabilities[tokens[0]])


def test_equal_probabilities_are_filtered_in_order() -> None:
    assert set(draw(torch.zeros(1, 8), list(EXTREMES), top_k=3)[0]) <= {0, 1, 2}


def test_log_probabilities_are_those_of_the_unfiltered_distribution() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(1)).double()
    uniform = torch.rand(4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = torch.log_softmax(logits, -1)
    for options in ({}, {"greedy": True}, {"top_k": 2}, {"top_p": 0.3}):
        tokens, logp, _ = sample_tokens(logits, uniform, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(logp, expected.gather(1, tokens[:, None])[:, 0])


def test_greedy_takes_the_likeliest_whatever_the_draw() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, -math.inf, 5.0]])
    for uniform in EXTREMES:
        tokens, *_ = sample_tokens(logits, torch.full((2,), uniform, dtype=torch.float64), greedy=True)
        assert tokens.tolist() == [1, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_distribution_is_marked(bad: float) -> None:
    logits = torch.zeros(2, 5)
    logits[1, 2] = bad
    tokens, logp, _ = sample_tokens(logits, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert logp[0].item() == pytest.approx(-math.log(5)) and not math.isfinite(logp[1].item())
    assert 0 <= tokens[1].item() < 5
