"""Settings that were made and change nothing are named: a user who set one expects it to act."""

from __future__ import annotations

import pytest

from surefoot.config import build_config, ineffective

HELD_OUT = {"evaluate": {"prompts": "held.jsonl"}}


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"evaluate": {"every": 5}}, "evaluate.every"),
        ({"evaluate": {"max_prompts": 5}}, "evaluate.max_prompts"),
        ({"evaluate": {"prompts": "x", "every": 9}, "run": {"steps": 8}}, "evaluate.every"),
        ({"evaluate": {"prompts": "x", "temperature": 0, "top_p": 0.5}}, "evaluate.top_p"),
        ({"ppo": {"missing_eos_penalty": 2}}, "ppo.missing_eos_penalty"),
        ({"ppo": {"surrogate_kl": {"target": 1}}}, "ppo.surrogate_kl.target"),
        ({"ppo": {"surrogate": "kl", "clip_high": 0.3}}, "ppo.clip_high"),
        ({"ppo": {"kl": {"target": 6, "horizon": 10}}}, "ppo.kl.target"),
        ({"ppo": {"kl": {"coef": 0, "controller": "adaptive", "target": 6, "horizon": 10}}}, "ppo.kl.controller"),
        ({"reward": {"on_failure": "stop", "max_failures": 0.2}}, "reward.max_failures"),
        ({"checkpoint": {"every": 20}, "run": {"steps": 15}}, "checkpoint.every"),
        ({"optim": {"warmup_steps": 30}, "run": {"steps": 5}}, "optim.warmup_steps"),
        ({"critic": {"timeout_s": 5}}, "critic.timeout_s"),
        ({"reward": {"terms": [{"name": "a", "target": "b:c", "rows": 5}]}}, "reward.terms.0.rows"),
    ],
)
def test_a_setting_without_effect_is_named(tree: dict[str, object], key: str) -> None:
    found = ineffective(build_config(tree))
    assert [sentence for sentence in found if sentence.startswith(f"{key}: ")], found


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"evaluate": {"prompts": "x", "every": 2, "temperature": 0.5, "top_p": 0.5}, "run": {"steps": 8}},
        {"ppo": {"cut_off": "penalise", "missing_eos_penalty": 2}},
        {"ppo": {"surrogate": "kl", "surrogate_kl": {"target": 1}}},
        {"ppo": {"clip_high": 0.3}},
        {"ppo": {"kl": {"coef": 0.1, "controller": "adaptive", "target": 6, "horizon": 10}}},
        {"reward": {"max_failures": 0.2}},
        {"checkpoint": {"every": 5}, "run": {"steps": 15}},
        {"optim": {"warmup_steps": 3}, "run": {"steps": 5}},
        {"critic": {"timeout_s": 5, "url": "http://x"}},
        {"reward": {"terms": [{"name": "a", "kind": "remote", "target": "http://x", "rows": 5}]}},
    ],
)
def test_settings_with_an_effect_are_left_alone(tree: dict[str, object]) -> None:
    assert ineffective(build_config(tree)) == []
