"""The reward model of a service scores as the reward term of kind model scores in one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from surefoot.assembly.hosts import build_hosts
from surefoot.assembly.rewards import build_reward
from surefoot.errors import ConfigError, ServiceError
from surefoot.models.reward_identity import reward_identity
from surefoot.models.reward_model import RewardModel
from surefoot.models.weight_files import HEADS_FILE
from surefoot.records import Prompt, Rollout, Trajectory
from surefoot.rewards.model import Item, ModelReward
from surefoot.serving.reward_host import RewardHost
from surefoot.serving.scores import Scores
from surefoot.serving.wire import InferRequest
from tests.serving.parts import make_toy_reward, toy_config

pytestmark = pytest.mark.usefixtures("exact")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reward")
    toy_config(place)
    return make_toy_reward(place / "reward", like=place / "toy")


@pytest.fixture
def host(folder: Path) -> RewardHost:
    host = RewardHost(lambda: RewardModel(str(folder)), "quality")
    host.open()
    return host


def make_ensemble(place: Path, *, like: Path) -> Path:
    """The reward model with two heads, which differ from its score layer by as much up as down."""
    shutil.copytree(like, place)
    weight = load_file(place / "model.safetensors")["score.weight"]
    apart = torch.linspace(-1.0, 1.0, weight.shape[1])[None]
    heads = place / HEADS_FILE
    heads.parent.mkdir()
    save_file({"weight": torch.cat([weight + apart, weight - apart])}, heads)
    return place


def asked(*items: Item) -> InferRequest:
    return InferRequest(tuple(range(len(items))), (5,) * len(items), ("scores",), items=items)


def trajectories() -> list[Trajectory]:
    chat = ({"role": "user", "content": "Write a review of this film"},)
    answers = ["a great film", "very boring and dull , really", "the plot is clever", ""]
    prompts = [Prompt("p:1", (5, 6), "Write about", None), Prompt("p:2", (5, 6), "shown", chat)]
    return [
        Trajectory((5, 6, 7), (False, False, True), prompt=prompts[n % 2], response=answer)
        for n, answer in enumerate(answers)
    ]


def test_scores_are_those_of_one_process(host: RewardHost, folder: Path) -> None:
    reward = ModelReward("quality", RewardModel(str(folder)))
    rollout = Rollout.of(trajectories())
    expected = [score.value for score in reward.score(rollout)]
    (found,) = host.scores([asked(*(reward.shown(t) for t in rollout.trajectories))])
    assert isinstance(found, Scores)
    assert list(found.values) == expected
    assert found.reasons == (None,) * 4
    assert len({round(value, 3) for value in found.values}) == 4, "scores that say nothing"


def test_joined_requests_are_scored_as_alone(host: RewardHost) -> None:
    requests = [asked("a great film"), asked("the plot", "very bad , never again", "good"), asked("dull")]
    joined = host.scores(requests)
    for request, found in zip(requests, joined, strict=True):
        (alone,) = host.scores([request])
        assert isinstance(found, Scores) and isinstance(alone, Scores)
        assert found.values == pytest.approx(alone.values, abs=1e-4)


def test_a_row_that_cannot_be_read_fails_alone_with_a_reason(host: RewardHost) -> None:
    empty, fine = asked("", "a good film"), asked("a good film")
    first, second = host.scores([empty, fine])
    assert isinstance(first, Scores) and isinstance(second, Scores)
    assert first.values == (0.0, second.values[0])
    assert first.reasons[0] is not None and "no tokens" in first.reasons[0]
    assert first.reasons[1] is None


def test_a_score_that_is_not_finite_is_a_failure_with_a_reason(host: RewardHost) -> None:
    with torch.no_grad():
        host.model._score.weight[0, 0] = torch.inf
    (found,) = host.scores([asked("a good film", "bad")])
    assert isinstance(found, Scores)
    assert found.values == (0.0, 0.0)
    assert all(reason is not None and "score is" in reason for reason in found.reasons)
    assert found.array().tolist() == [0.0, 0.0]
    with pytest.raises(ServiceError, match="not finite"):  # tried again one by one: see test_batcher.py
        host.scores([asked("a good film"), asked("bad")])


def test_conversations_without_a_template_are_refused_and_others_served(folder: Path, tmp_path: Path) -> None:
    bare = make_toy_reward(tmp_path / "bare", like=folder)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    host = RewardHost(lambda: RewardModel(str(bare)), "quality")
    host.open()
    assert not host.card.has_chat_template
    refused, scored = host.scores([asked([{"role": "user", "content": "good"}]), asked("good")])
    assert isinstance(refused, ServiceError) and refused.code == "unprocessable"
    assert isinstance(scored, Scores)


def test_the_card_tells_the_model(host: RewardHost, folder: Path) -> None:
    assert host.card.model == RewardModel(str(folder)).digest
    assert (host.card.name, host.card.has_chat_template) == ("quality", True)


def test_an_ensemble_is_served_as_the_term_reads_it(folder: Path, tmp_path: Path) -> None:
    scored = make_ensemble(tmp_path / "heads", like=folder)
    texts = ("a great film", "very boring and dull , really")
    one = {"model": {"lora": {"rank": 2}}, "critic": {"init": "quality"}}
    cards, found = set(), []
    for how, c in (("mean", 1.0), ("lower", 1.0), ("lower", 0.5), ("min", 1.0)):
        term = {"name": "quality", "kind": "model", "target": str(scored), "ensemble": how, "ensemble_c": c}
        serve = {"roles": ["critic", "reward"], "trunk": "one" if how == "min" else "separate"}
        config = toy_config(tmp_path, reward={"terms": [term]}, serve=serve, **one)
        host = build_hosts(config).reward
        assert host is not None
        host.open()
        (served,) = host.scores([asked(*texts)])
        reward = build_reward(config, None)
        (own,) = reward.terms
        assert isinstance(served, Scores) and isinstance(own, ModelReward)
        assert list(served.values) == own.model.score_tokens([own.model.encode(text) for text in texts])
        cards.add(host.card.model)
        found.append(served.values)
    assert len(cards) == 4, "replicas that read the heads in other ways are other models"
    means, lower, halfway, least = (np.array(values) for values in found)
    assert (least < means).all()
    assert halfway == pytest.approx((means + lower) / 2, abs=1e-6)


@pytest.mark.parametrize("trunk", ["separate", "one"])
def test_a_report_that_a_term_asks_for_is_asked_for_here_too(trunk: str, folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    term = {"name": "quality", "kind": "model", "target": str(folder), "report": str(report)}
    one = {"model": {"lora": {"rank": 2}}, "critic": {"init": "quality"}}
    serve = {"roles": ["critic", "reward"], "trunk": trunk}

    def opened() -> RewardHost:
        host = build_hosts(toy_config(tmp_path, reward={"terms": [term]}, serve=serve, **one)).reward
        assert host is not None
        host.open()
        return host

    with pytest.raises(ConfigError, match="there is no report"):
        opened()
    model = RewardModel(str(folder))
    for verdict, finding in (("fail", [{"severity": "error", "message": "longer wins"}]), ("pass", [])):
        report.write_text(
            json.dumps({"model": {"identity": reward_identity(model)}, "verdict": verdict, "findings": finding})
        )
        if verdict == "fail":
            with pytest.raises(ConfigError, match="did not pass its tests"):
                opened()
    assert opened().card.model == model.digest


def test_nothing_is_scored_before_the_model_is_loaded(folder: Path) -> None:
    host = RewardHost(lambda: RewardModel(str(folder)), "quality")
    assert host.waits_for == "loading the reward model"
    with pytest.raises(ServiceError, match="not loaded"):
        host.scores([asked("good")])
    host.open()
    assert host.waits_for is None
