"""What is taken over from the sampler, and when the trainer reads the rollout itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefoot.records import Rollout
from surefoot.training.clock import StepClock
from surefoot.training.estimate import clear_failed
from surefoot.training.step import CHECK_EVERY, ppo_step, read
from tests.builders import make_prompts
from tests.training.test_step import build, give_the_critic_something_to_say, save_llama

PROMPTS = make_prompts(*((i % 7, 4, i % 5 + 1) for i in range(2 * CHECK_EVERY + 3)))
KINDS = ("shared", "separate")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


def made(llama: Path, kind: str, **ppo: Any) -> Any:
    """Config, parts, a rollout of theirs, and how many rows the policy reads at a time from now on."""
    cfg, parts = build(llama, model={"dtype": "float64"}, critic={"kind": kind}, ppo=ppo)
    give_the_critic_something_to_say(parts)
    rollout = parts.engine.rollout(PROMPTS, parts.environment, seed=(0, 1))
    policy, seen = parts.learner.policy, []
    own = policy.read

    def counted(rollout: Rollout, head: Any = None, rows: Any = None) -> Any:
        seen.append(rollout.num_rows if rows is None else len(rows))
        return own(rollout, head, rows)

    policy.read = counted
    return cfg, parts, rollout, seen


@pytest.mark.parametrize("kind", KINDS)
def test_the_samplers_numbers_are_the_trainers(llama: Path, kind: str) -> None:
    cfg, parts, rollout, seen = made(llama, kind)
    taken = read(rollout, parts, cfg)
    assert seen == [3] and taken.checked is not None and taken.checked[0] == [0, CHECK_EVERY, 2 * CHECK_EVERY]
    again = read(rollout, parts, cfg.model_copy(update={"ppo": cfg.ppo.model_copy(update={"old_logp": "read"})}))
    assert seen == [3, len(PROMPTS)] and again.checked is None
    for name in ("logp", "entropy", "values", "ref_logp"):
        found, expected = getattr(taken, name), getattr(again, name)
        assert found.dtype == expected.dtype and np.abs(expected[rollout.mask]).max() > 1e-3
        np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["logp", "entropy", "values"])
def test_a_sampler_that_disagrees_is_read_after(llama: Path, name: str, kind: str) -> None:
    cfg, parts, rollout, seen = made(llama, kind)
    array = getattr(rollout, name)
    if array is None:
        assert (name, kind) == ("values", "separate")
        return
    shifted = replace(rollout, **{name: np.where(rollout.mask, array + 2e-4, 0.0)})
    assert read(shifted, parts, cfg).checked is None
    assert seen == [3, len(PROMPTS)]


@pytest.mark.parametrize("missing", ["logp", "entropy", "values", "trainer's code"])
def test_what_the_sampler_does_not_say_is_read(llama: Path, missing: str) -> None:
    cfg, parts, rollout, seen = made(llama, "shared")
    if missing == "trainer's code":
        parts.engine.is_trainer_code = False
    else:
        rollout = replace(rollout, **{missing: None})
    assert read(rollout, parts, cfg).checked is None
    assert seen == [len(PROMPTS)]


@pytest.mark.parametrize(("kind", "reads"), [("shared", [len(PROMPTS)]), ("separate", [3])])
def test_bootstrapping_needs_the_state_after_the_last_token(llama: Path, kind: str, reads: list[int]) -> None:
    cfg, parts, rollout, seen = made(llama, kind, cut_off="bootstrap")
    assert np.abs(read(rollout, parts, cfg).after).max() > 1e-3
    assert seen == reads


def test_failed_rows_are_neither_checked_nor_taken_over(llama: Path) -> None:
    cfg, parts, rollout, _ = made(llama, "shared")
    scores = parts.reward.score(rollout)
    scores[0] = replace(scores[0], value=None, reason="made to fail")
    cleared = clear_failed(rollout, scores)
    taken = read(cleared, parts, cfg)
    assert taken.checked is not None and taken.checked[0][0] == 1
    assert not taken.logp[0].any() and not taken.entropy[0].any() and not taken.values[0].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_same_either_way(llama: Path, kind: str) -> None:
    found = []
    for how in ("sampled", "read"):
        cfg, parts, _, _ = made(llama, kind, old_logp=how)
        metrics = ppo_step(1, PROMPTS, parts, cfg, StepClock()).report.metrics
        found.append({k: v for k, v in metrics.items() if not k.startswith(("time/", "memory/", "throughput/"))})
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        other = found[1][key]
        assert value is other or value == pytest.approx(other, rel=1e-6, abs=1e-8), key
