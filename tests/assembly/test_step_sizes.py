"""The heaviest step of a run is found from its prompts, and laid out as training lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.assembly.step_sizes import even_prompts, step_sizes
from tests.builders import make_config, merged

CPU = torch.device("cpu")


def config_of(**sections: Any) -> Any:
    base = {
        "rollout": {"prompts_per_step": 2, "max_new_tokens": 10},
        "ppo": {"minibatches": 1},
        "data": {"shuffle": False},
        "run": {"steps": 3},
    }
    return make_config(Path("unused"), **merged(base, sections))


def prompts_of(*lengths: int) -> list[list[int]]:
    """Prompts that have nothing in common."""
    return [list(range(1000 * i, 1000 * i + length)) for i, length in enumerate(lengths)]


def test_the_step_with_most_tokens_counts() -> None:
    sizes = step_sizes(config_of(), prompts_of(5, 5, 50, 40, 60, 5), CPU)
    assert (sizes.rows, sizes.longest, sizes.prefill) == (2, 60, 90)
    # An update does not read the last token of a row.
    assert (sizes.reading.tokens, sizes.training.tokens) == (50 + 40 + 20, 50 + 40 + 18)
    assert sizes.training.actions == 20


def test_steps_that_the_run_does_not_make_do_not_count() -> None:
    assert step_sizes(config_of(run={"steps": 1}), prompts_of(5, 5, 50, 40), CPU).training.tokens == 10 + 18


def test_what_rows_begin_with_counts_once() -> None:
    sizes = step_sizes(config_of(rollout={"samples_per_prompt": 4}), prompts_of(30, 20), CPU)
    assert sizes.rows == 8
    assert sizes.training.tokens == 30 + 20 + 8 * 9
    padded = step_sizes(config_of(rollout={"samples_per_prompt": 4}, batch={"packing": "off"}), prompts_of(30, 20), CPU)
    assert padded.training.tokens == 8 * 39
    assert not padded.training.packed


@pytest.mark.parametrize(
    ("sections", "tokens"),
    [({"ppo": {"minibatches": 2}}, 39), ({"batch": {"tokens": 40}}, 39), ({"batch": {"tokens": 1}}, 39)],
    ids=str,
)
def test_minibatches_and_the_budget_cut_a_step(sections: dict[str, Any], tokens: int) -> None:
    assert step_sizes(config_of(**sections), prompts_of(30, 20), CPU).training.tokens == tokens


def test_rows_decoded_at_once() -> None:
    sizes = step_sizes(config_of(rollout={"samples_per_prompt": 4, "max_rows": 3}), prompts_of(30, 20), CPU)
    assert sizes.rows == 3


def test_prompts_of_one_length_stand_for_those_that_are_not_here() -> None:
    sizes = step_sizes(config_of(), even_prompts(config_of(), 100), CPU)
    assert (sizes.longest, sizes.training.tokens) == (100, 2 * 109)
