"""Ratios, refusals and words of the table, from parts made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import table
from benchmarks.roofline import ModelShape, Rates
from tests.benchmarks.made_parts import COUNTS, part, step

TRL = [part(step(60.0, peak_gb=10.0), step(58.0, peak_gb=12.0), step(59.0, peak_gb=11.0))]
OURS = [part(step(30.0, peak_gb=6.0), step(29.0, peak_gb=5.0)), part(step(29.5, peak_gb=5.5))]


def test_ratios_are_of_medians_over_all_rounds_and_of_the_largest_peaks() -> None:
    row = table.row("full-separate", OURS, TRL, {"reference": 5.0, "step": 23.6})
    assert row["speedup"] == pytest.approx(59.0 / 29.5)
    assert row["memory_ratio"] == pytest.approx(6.0 / 12.0)
    assert row["limit"] == pytest.approx(59.0 / 23.6)
    assert row["of_limit"] == pytest.approx(23.6 / 29.5)
    assert row["phases"]["train_backward"] == pytest.approx(14.75)
    assert row["phase_ratios"]["train_backward"] == pytest.approx(14.75 / 59.0)
    assert (row["runs"], row["spoiled"], row["faults"]) == (3, False, [])


def test_the_allocator_of_both_sides_stands_in_the_row() -> None:
    tuned = [part(step(50.0), allocator="tuned")]
    assert table.row("lora-shared", OURS, tuned)["allocator"] == {"surefoot": "default", "trl": "tuned"}


def test_without_the_yardstick_there_are_no_ratios() -> None:
    row = table.row("full-shared", OURS, [])
    assert [row[name] for name in ("speedup", "memory_ratio", "limit", "phase_ratios")] == [None] * 4
    assert row["step_s"] == pytest.approx(29.5)


def test_a_spoiled_round_counts_only_when_there_is_no_other() -> None:
    spoiled = part(step(90.0, other_cores=0.8), spoiled=True)
    assert table.summary([spoiled, part(step(30.0))])["step_s"] == 30.0
    assert not table.summary([spoiled, part(step(30.0))])["spoiled"]
    alone = table.row("full-separate", OURS, [spoiled])
    assert alone["spoiled"]
    assert table.row("full-separate", [spoiled], TRL)["other_cores"] == 0.8


def test_the_same_work_is_no_fault() -> None:
    assert table.same_work_faults(OURS, TRL) == []


@pytest.mark.parametrize("count", ["prompt_tokens", "action_tokens", "trained_tokens", "optimizer_steps"])
def test_a_count_that_differs_in_one_step_is_a_fault(count: str) -> None:
    ours = [part(step(30.0), step(30.0, **{count: COUNTS[count] - 1}))]
    faults = table.same_work_faults(ours, TRL)
    assert len(faults) == 1
    assert faults[0].startswith(f"{count} in a step: {COUNTS[count] - 1}, {COUNTS[count]}, TRL's: {COUNTS[count]}")


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"epochs": 3}, "epochs: 3, 4, TRL's: 4"),
        ({"logp_gap": None}, "log-probabilities were not compared"),
        ({"logp_gap": {"max": 1.5e-4}}, "log-probabilities of TRL's tokens differ by 0.00015, allowed: 0.0001"),
        ({"logp_gap": {"max": float("nan")}}, "log-probabilities of TRL's tokens differ by nan, allowed: 0.0001"),
    ],
)
def test_other_epochs_and_other_numbers_are_faults(facts: dict[str, Any], fault: str) -> None:
    assert table.same_work_faults([part(step(30.0)), part(step(30.0), **facts)], TRL) == [fault]


def test_alone_the_work_is_checked_against_what_was_asked_for() -> None:
    assert table.own_work_faults(OURS, action_tokens=20, epochs=4) == []
    assert table.own_work_faults(OURS, action_tokens=21, epochs=4) == [
        "action_tokens in a step: 20, asked for: 21",
        "trained_tokens in a step: 80, asked for: 84",
    ]
    assert table.own_work_faults(OURS, action_tokens=20, epochs=2)[-1] == "optimizer_steps in a step: 4, asked for: 2"


SHAPE = ModelShape(hidden=2, intermediate=3, layers=1, query_width=2, key_width=1, vocabulary=5)
RATES = Rates(gemm=1000.0, copy=100.0)


def decoding_part(spoiled: bool = False) -> dict[str, Any]:
    speeds = {"surefoot": 300.0, "generate": 150.0}
    rows = [{"engine": name, "sequences": 16, "tokens_per_s": speed} for name, speed in speeds.items()]
    return {"decoding": rows, "other_cores": 0.02, "spoiled": spoiled}


def test_decoding_is_compared_with_every_engine_that_ran() -> None:
    vllm = {"decoding": [{"engine": "vllm", "sequences": 16, "tokens_per_s": 200.0}], "other_cores": 0, "spoiled": True}
    (row,) = table.decoding_rows([decoding_part(), vllm], SHAPE, RATES)
    assert row["surefoot_ratio"] == {"generate": 2.0, "vllm": 1.5}
    assert row["spoiled"]


def test_the_table_in_words_names_what_is_worth_nothing() -> None:
    rows = [
        table.row("full-separate", OURS, TRL, {"step": 23.6}),
        table.row("full-shared", [part(step(20.0), spoiled=True)], TRL),
        table.row("lora-shared", OURS, TRL, None, ["epochs: 3, TRL's: 4"]),
    ]
    text = table.markdown(
        {
            "rows": rows,
            "rows_trl_tuned": [table.row("full-separate", OURS, [part(step(50.0), allocator="tuned")])],
            "yardstick": {"default": table.summary(TRL), "tuned": table.summary([part(step(50.0))])},
            "decoding": table.decoding_rows([decoding_part()], SHAPE, RATES),
            "vllm": "not installed",
        }
    )
    lines = text.splitlines()
    assert "| full-separate | 2.00 x | 2.50 x | 80% | 0.50 | 29.50 | 6.00 | 0.01 |" in lines
    assert any(line.startswith("| full-shared (SPOILED) |") for line in lines)
    assert any(line.startswith("| lora-shared (NOT THE SAME WORK) |") for line in lines)
    assert "| full-separate | 1.69 x | - | - | 0.75 | 29.50 | 6.00 | 0.01 |" in lines
    assert "| train_backward | 0.500 | 0.424 | 0.250 | 0.169 | 0.250 |" in lines
    assert "| step | 1.000 | 0.847 | 0.500 | 0.339 | 0.500 |" in lines
    assert "| 16 | 300 | 150 | 2.00 x | " in text
    assert lines[-1] == "vLLM: not installed"
