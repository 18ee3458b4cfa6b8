"""One trunk with both heads, and two models that take turns: the numbers are those of two models side by side."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.assembly.hosts import build_hosts
from surefoot.assembly.models import build_critic_optimizer, build_separate_critic
from surefoot.config import Config
from surefoot.errors import ConfigError
from surefoot.protocols import Values
from surefoot.serving.control import RestoreRequest
from surefoot.serving.critic_state import TrainedCritic
from surefoot.serving.scores import Scores
from surefoot.serving.service import Hosts
from surefoot.serving.turns import CPU, Turns
from surefoot.serving.wire import InferRequest
from tests.builders import merged
from tests.serving.parts import (
    RUN,
    build_toy_critic,
    infer_request,
    toy_batch,
    toy_config,
    toy_rollout,
    train,
    train_locally,
    train_request,
    train_requests,
)

pytestmark = pytest.mark.usefixtures("exact")


def config_of(toy: Path, folder: Path, **sections: Any) -> Config:
    both: dict[str, Any] = {
        "model": {"lora": {"rank": 2}},
        "critic": {"init": "quality"},
        "reward": {"terms": [{"name": "quality", "kind": "model", "target": str(toy / "reward")}]},
        "serve": {"dir": str(folder / "service"), "roles": ["critic", "reward"], "trunk": "one"},
    }
    return toy_config(toy, **merged(both, sections))


def opened(cfg: Config) -> tuple[Any, Any]:
    hosts: Hosts = build_hosts(cfg)
    assert hosts.critic is not None and hosts.reward is not None
    hosts.critic.open()
    hosts.reward.open()
    hosts.critic.restore(RestoreRequest(RUN, 0))
    return hosts.critic, hosts.reward


SCORED = InferRequest((0, 1), (3, 3), ("scores",), items=("a great film", "the plot is very dull , really"))


def test_one_trunk_computes_what_two_models_compute(toy: Path, tmp_path: Path) -> None:
    cfg = config_of(toy, tmp_path)
    critic, reward = opened(cfg)
    local, before = build_toy_critic(cfg), reward.scores([SCORED])[0]
    assert critic.card.model == local.digest()
    apart = merged({"serve": {"trunk": "separate", "dir": str(tmp_path / "apart")}}, {})
    other_critic, other_reward = opened(config_of(toy, tmp_path, **apart))
    assert other_critic.card == critic.card and other_reward.card == reward.card
    for step in (1, 2, 3):
        batch = toy_batch(local, step)
        assert train(critic, train_request(batch, step)) == [vars(u) for u in train_locally(local, batch, cfg)]
        assert reward.scores([SCORED]) == [before] == other_reward.scores([SCORED])
        rollout = toy_rollout(3, seed=step)
        (found,) = critic.values([infer_request(rollout)])
        assert isinstance(found, Values)
        np.testing.assert_array_equal(found.values, local.critic.values(rollout).values)
    assert isinstance(before, Scores) and len(set(before.values)) == 2
    trunks = {id(critic._keeper.critic.critic.trunk), id(reward.model.trunk)}
    assert len(trunks) == 1, "there are two trunks"


def test_one_trunk_goes_back_to_its_beginning(toy: Path, tmp_path: Path) -> None:
    cfg = config_of(toy, tmp_path)
    critic, reward = opened(cfg)
    scores = reward.scores([SCORED])
    requests = train_requests(cfg, 2)
    first = [train(critic, request) for request in requests]
    critic.restore(RestoreRequest(RUN, 0))
    assert [train(critic, request) for request in requests] == first
    assert reward.scores([SCORED]) == scores
    again, _ = opened_again(cfg)
    assert again.trained_step == 2
    assert again._keeper.critic.digest() == critic._keeper.critic.digest()


def opened_again(cfg: Config) -> tuple[Any, Any]:
    hosts = build_hosts(cfg)
    assert hosts.critic is not None and hosts.reward is not None
    hosts.reward.open()
    hosts.critic.open()
    return hosts.critic, hosts.reward


def test_values_and_scores_at_the_same_time_do_not_mix(toy: Path, tmp_path: Path) -> None:
    critic, reward = opened(config_of(toy, tmp_path))
    for request in train_requests(config_of(toy, tmp_path), 2):
        train(critic, request)
    asked = infer_request(toy_rollout(3, seed=1))
    (values,), (scores,) = critic.values([asked]), reward.scores([SCORED])
    with ThreadPoolExecutor(2) as pool:
        both = [(pool.submit(critic.values, [asked]), pool.submit(reward.scores, [SCORED])) for _ in range(40)]
        for found, scored in both:
            np.testing.assert_array_equal(found.result()[0].values, values.values)
            assert scored.result() == [scores]


@pytest.mark.parametrize("sections", [{"model": {"lora": None}}, {"critic": {"init": "policy"}}])
def test_one_trunk_that_cannot_be_is_refused(toy: Path, tmp_path: Path, sections: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="one trunk for both needs"):
        build_hosts(config_of(toy, tmp_path, **sections))


# --------------------------------------------------------------------------------------------------------------- turns


def test_one_model_is_there_at_a_time() -> None:
    there, moves = {"critic": CPU, "reward": CPU}, []
    turns = Turns(torch.device("meta"))

    def mover(name: str) -> Any:
        def move(device: torch.device) -> None:
            moves.append((name, device.type))
            there[name] = device

        return move

    for name in there:
        turns.join(name, mover(name))
    busy: list[str] = []

    def work(name: str) -> None:
        for _ in range(30):
            with turns.of(name):
                assert not busy, "both at once"
                busy.append(name)
                assert [n for n, device in there.items() if device.type == "meta"] == [name]
                busy.remove(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in there]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with turns.of("reward"):
        pass
    moves.clear()
    with turns.of("reward"), turns.of("reward"):
        assert moves == [], "it was there already"


def test_a_critic_that_was_moved_trains_on_as_before(toy: Path, tmp_path: Path) -> None:
    cfg = config_of(toy, tmp_path)
    moved, stayed = (_trained(cfg, move=move) for move in (True, False))
    assert moved.digest() == stayed.digest()


def _trained(cfg: Config, *, move: bool) -> TrainedCritic:
    critic = build_separate_critic(cfg, CPU)
    held = TrainedCritic(critic, build_critic_optimizer(cfg, critic))
    for step in (1, 2):
        train_locally(held, toy_batch(held, step), cfg)
        if move:
            held.move(CPU)
    return held
