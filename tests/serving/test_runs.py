"""Whole runs with the critic behind a service give what one process gives: bit for bit, one thing after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.serving.whole_runs import ONE_BY_ONE, Trial, differences, paragraph, write_failing_reward

LAX = {"on_failure": "drop", "max_failures": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"run": {"steps": 4}},
    "lora, warm-up, bootstrap, failed rows": {
        "run": {"steps": 4},
        "model": {"lora": {"rank": 2}},
        "critic": {"warmup_steps": 2},
        "ppo": {"cut_off": "bootstrap"},
        "reward": LAX,
    },
    "updates that stop": {
        "run": {"steps": 4},
        "ppo": {"epochs": 3, "minibatches": 4, "max_update_kl": 1e-5},
        "optim": {"schedule": "linear", "warmup_steps": 1},
        "reward": {"normalise": "running"},
    },
}


SHOWN: dict[str, tuple[str, ...]] = {
    "lora, warm-up, bootstrap, failed rows": ("policy/frozen", "score/failed_share", "response/cut_off_share"),
    "updates that stop": ("policy/stopped_early",),
}
"""Metrics that are not 0 in some step, so that the variant is what it says."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_thing_after_the_other_gives_the_same_bits(trial: Trial, variant: str) -> None:
    sections = dict(VARIANTS[variant])
    if sections.get("reward") == LAX:
        sections["reward"] = {**LAX, "terms": write_failing_reward(trial.folder)}
    trial = replace(trial, sections=sections)
    service = trial.serve()
    expected = trial.finish("local")
    found = trial.finish("served", service.address(), **ONE_BY_ONE)
    assert differences(found, expected) == []
    assert len({digest for name, digest in found.weights.items() if "critic" in name}) == 2
    for key in SHOWN.get(variant, ()):
        assert any(line[key] for line in found.metrics), key
    assert service.end() == 0


def test_a_step_in_which_every_row_failed_ends_a_run_as_in_one_process(trial: Trial) -> None:
    sections = {
        "run": {"steps": 7},
        "model": {"dtype": "float64"},
        "rollout": {"prompts_per_step": 1, "samples_per_prompt": 4},
        "checkpoint": {"every": 1},
        "reward": {**LAX, "terms": write_failing_reward(trial.folder)},
    }
    trial = replace(trial, sections=sections)
    service = trial.serve()
    ends = []
    for name, url in (("local", None), ("served", service.address())):
        process = trial.train(name, url, **ONE_BY_ONE)
        assert process.wait() == 3
        assert "4 of 4 scores failed" in paragraph(process)
        ends.append((trial.outcome(name).metrics, trial.checkpoints(name).steps()))
    assert ends[0] == ends[1]
    assert service.log()[-1]["path"] == "/v1/release", "the service was let go of"
