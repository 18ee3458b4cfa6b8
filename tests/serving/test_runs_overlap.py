"""Overlap: what has ended is sent off while the rest is decoded, and the critic trains while the policy trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from surefoot.assembly.services import bind_run
from surefoot.assembly.train import build_parts, read_inputs
from surefoot.envs import SingleTurn
from surefoot.protocols import Turn
from surefoot.records import Prompt
from surefoot.serving.remote_critic import RemoteCritic
from surefoot.training.clock import StepClock
from surefoot.training.step import Parts, ppo_step
from surefoot.training.update import optimise
from tests.serving.parts import one_thread
from tests.serving.processes import raw
from tests.serving.whole_runs import Trial, wait_until

CLOSE = 1e-4
LONG = {
    "run": {"steps": 1},
    "rollout": {"prompts_per_step": 6, "samples_per_prompt": 3, "max_new_tokens": 40},
    "track": {"samples_every": 1},
}
"""Responses long enough for some to end before others."""


@pytest.fixture
def both(trial: Trial) -> Trial:
    """A service with critic and reward model that joins requests."""
    reward = {"terms": [{"name": "quality", "kind": "model", "target": str(trial.toy / "quality")}]}
    serve = {"roles": ["critic", "reward"], "batch_wait_ms": 2}
    return replace(trial, sections={**LONG, "reward": reward, "serve": serve})


def remote(url: str, **options: Any) -> dict[str, Any]:
    """The sections of a trainer that asks a service for everything."""
    term = {"name": "quality", "kind": "remote", "target": url, **options}
    return {"critic": {"url": url}, "reward": {"terms": [term]}}


def counters(url: str) -> dict[str, float]:
    """What the service has counted."""
    with raw(url) as client:
        lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_overlap_and_batching_change_the_last_bits_only(both: Trial) -> None:
    service = both.serve()
    both.finish("local")
    both.finish("served", **remote(service.address()))
    local, served = both.records("local", 1), both.records("served", 1)
    assert len(local) == len(served) == 18
    for ours, theirs in zip(served, local, strict=True):
        assert ours["tokens"] == theirs["tokens"], "the rollout is not the same"
        assert ours["score"] == pytest.approx(theirs["score"], abs=CLOSE)
        np.testing.assert_allclose(ours["values"], theirs["values"], atol=CLOSE, rtol=0)
    assert part_changed(both, "policy") < CLOSE
    assert part_changed(both, "critic") < CLOSE
    batches, requests = (
        counters(service.address())[f'surefoot_batch_requests_{n}{{model="critic"}}'] for n in ("count", "sum")
    )
    assert requests >= 2, "all rows went in one request"
    assert batches <= requests


class Waiting:
    """An environment that ends the second response only once the service has answered for the first."""

    def __init__(self, url: str) -> None:
        self.url, self.ended = url, 0

    def respond(self, prompt: Prompt, tokens: Sequence[int], mask: Sequence[bool]) -> Turn:
        """Nothing is given back."""
        self.ended += 1
        if self.ended == 2:
            for work in ("values", "scores"):
                wait_until(lambda: counters(self.url).get(f'surefoot_rows_total{{work="{work}"}}', 0.0) >= 1)
        return SingleTurn().respond(prompt, tokens, mask)


@pytest.fixture
def parts(both: Trial) -> Iterator[tuple[Parts, Any, Sequence[Prompt]]]:
    """A step's parts in this process, its critic and its reward behind a service."""
    cfg = both.config("here", **remote(both.serve().address()))
    with one_thread():
        inputs = read_inputs(cfg)
        parts = build_parts(cfg, inputs)
        critic = parts.learner.critic
        assert isinstance(critic, RemoteCritic)
        bind_run(critic, both.folder, "here")
        critic.restore(None)
        yield parts, cfg, inputs.prompts.prompts
        critic.close()
        inputs.reward.close()


def test_rows_are_answered_for_while_others_are_decoded_and_both_train_at_once(
    parts: tuple[Parts, Any, Sequence[Prompt]],
) -> None:
    made, cfg, prompts = parts
    made.environment = Waiting(cfg.critic.url)
    optimizer: Any = made.learner.policy_optimizer
    policy_step, steps = optimizer.step, []

    def step(loss: float) -> Any:
        steps.append(loss)
        if len(steps) == cfg.ppo.epochs * cfg.ppo.minibatches:
            wait_until(lambda: counters(cfg.critic.url)["surefoot_trained_steps_total"] == 1)
        return policy_step(loss)

    optimizer.step = step
    result = ppo_step(1, prompts[:6], made, cfg, StepClock())
    assert made.environment.ended == 18
    assert len(steps) == cfg.ppo.epochs * cfg.ppo.minibatches
    metrics = result.report.metrics
    train, waited = metrics["time/critic_train_s"], metrics["time/critic_wait_s"]
    assert train is not None and waited is not None
    assert 0 <= waited < train
    # The step has waited for it: the next values are those of the trained critic.
    assert made.learner.critic.step == 1
    again = made.learner.critic.values(result.batch.rollout)
    assert np.abs(again.values - result.reading.values).max() > 0
    # A batch without a row to train on is a step too, and changes nothing.
    empty = replace(result.batch, rollout=result.batch.rollout, mask=result.batch.mask & False)
    assert not empty.trained_rows
    optimise(made.learner, empty, cfg, None, step=2)
    assert made.learner.critic.step == 2
    np.testing.assert_array_equal(made.learner.critic.values(result.batch.rollout).values, again.values)


def part_changed(trial: Trial, name: str) -> float:
    """How far two runs' updates are apart, as a share of the update's size."""
    start = load_file(trial.toy / "toy" / "model.safetensors")
    local = load_file(trial.checkpoints("local").folder / "step-1" / f"{name}.safetensors")
    home = trial.checkpoints("served") if name == "policy" else trial.service_checkpoints("served")
    served = load_file(home.folder / "step-1" / f"{name}.safetensors")
    update = [local[key] - start.get(key.removeprefix("trunk."), 0.0) for key in local]
    apart = [served[key] - local[key] for key in local]
    return float(norm(apart) / norm(update))


def norm(arrays: Sequence[Any]) -> float:
    return float(np.sqrt(sum(float(np.square(np.asarray(a, np.float64)).sum()) for a in arrays)))
