"""The limit's formulas on a model small enough to count by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.roofline import ModelShape, Rates, StepWork, decoding_step_s, least_step_s

# A layer's matrices: 2x4, 2x2, 2x2, 4x2, 2x3, 2x3, 3x2 = 8 + 4 + 4 + 8 + 6 + 6 + 6 = 42 weights; two layers: 84.
SHAPE = ModelShape(hidden=2, intermediate=3, layers=2, query_width=4, key_width=2, vocabulary=5)
TRUNK, HEAD = 2 * 84, 2 * 2 * 5
# 3 rows: 9 prompt tokens, 4 action tokens each; 21 tokens, of which 18 are read.
WORK = StepWork(prompt_tokens=9, rows=3, action_tokens=12, epochs=4)
RATES = Rates(gemm=1000.0, copy=2000.0)


def test_flop_and_bytes_of_a_token() -> None:
    assert (SHAPE.trunk_flop, SHAPE.head_flop, SHAPE.weight_bytes) == (TRUNK, HEAD, 4 * (84 + 10))


def test_a_decoding_step_is_bound_by_the_slower_of_the_two() -> None:
    # 376 bytes at 2000 a second; 188 FLOP a row at 1000 a second.
    assert decoding_step_s(SHAPE, 3, RATES) == pytest.approx(0.564)
    assert decoding_step_s(SHAPE, 1, RATES) == pytest.approx(0.188)
    assert decoding_step_s(SHAPE, 3, Rates(1000.0, 100.0)) == pytest.approx(3.76)


@pytest.mark.parametrize(
    ("config", "training"),
    [
        # epochs x (passes x (policy's trunk + head) + passes x critic's trunk)
        ("full-separate", 4 * (3 * (TRUNK * 18 + HEAD * 12) + 3 * TRUNK * 18)),
        ("full-separate-checkpointing", 4 * (4 * TRUNK * 18 + 3 * HEAD * 12 + 4 * TRUNK * 18)),
        ("full-shared", 4 * 3 * (TRUNK * 18 + HEAD * 12)),
        ("lora-shared", 4 * 2 * (TRUNK * 18 + HEAD * 12)),
    ],
)
def test_least_time_of_a_step(config: str, training: int) -> None:
    least = least_step_s(config, SHAPE, WORK, RATES)
    # Prompts at once, then three more tokens a row.
    assert least["generation"] == pytest.approx((TRUNK * 9 + HEAD * 3) / 1000 + 3 * 0.564)
    assert least["reference"] == pytest.approx((TRUNK * 18 + HEAD * 12) / 1000)
    assert least["reward"] == pytest.approx(TRUNK * 21 / 1000)
    assert least["training"] == pytest.approx(training / 1000)
    assert least["step"] == pytest.approx(sum(seconds for name, seconds in least.items() if name != "step"))


def test_sizes_are_read_from_a_models_config(tmp_path: Path) -> None:
    config = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    config |= {"num_key_value_heads": 3, "vocab_size": 49152}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shape = ModelShape.read(tmp_path)
    assert (shape.query_width, shape.key_width) == (576, 192)
    # SmolLM2-135M: 106.2 million weights in the layers' matrices, 28.3 million in the embedding.
    assert shape.trunk_flop / 2e6 == pytest.approx(106.2, abs=0.05)
    assert shape.head_flop / 2e6 == pytest.approx(28.3, abs=0.05)
