"""A toy model, a whole run, and a reward that it did not have before."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from surefoot.assembly.train import train
from surefoot.models.toy import make_toy_model
from surefoot.training.durable import read_records
from tests.builders import toy_run

SECTIONS: dict[str, dict[str, Any]] = {"separate critic": {}, "shared trunk": {"critic": {"kind": "shared"}}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SECTIONS)
def test_a_toy_model_learns_its_reward_within_a_minute(tmp_path: Path, kind: str) -> None:
    """The share of praising words rises on held-out prompts, and the KL stays in bounds."""
    make_toy_model(tmp_path / "larger", hidden_size=32, layers=2)
    held_out = [
        f"Write a one sentence review about {what}" for what in ("a movie", "the plot", "the acting", "a script")
    ]
    (tmp_path / "held-out.jsonl").write_text(
        "".join(json.dumps({"prompt": [{"role": "user", "content": text}]}) + "\n" for text in held_out)
    )
    cfg = toy_run(
        tmp_path,
        run={"steps": 30, "threads": 1},
        model={"policy": str(tmp_path / "larger")},
        rollout={"prompts_per_step": 7, "samples_per_prompt": 6, "max_new_tokens": 8},
        optim={"policy_lr": 1e-2, "critic_lr": 1e-2},
        ppo={"kl": {"coef": 0.02}},
        evaluate={"prompts": str(tmp_path / "held-out.jsonl"), "samples_per_prompt": 16},
        **SECTIONS[kind],
    )
    begun = time.process_time()
    result = train(cfg)
    assert time.process_time() - begun < 60
    before, after = result.evaluations[0], result.evaluations[-1]
    assert before["evaluate/score_mean"] < 0.3
    assert after["evaluate/score_mean"] > 0.6
    assert after["evaluate/score_low"] > before["evaluate/score_high"], "the gain must be significant"
    lines = read_records(result.folder / "metrics.jsonl")
    assert lines[0]["kl/reference_k1"] == pytest.approx(0, abs=1e-3)
    assert 0 < lines[-1]["kl/reference_k1"] < 40
