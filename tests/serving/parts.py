"""Toy critics, batches and requests for the tests of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, LlamaForSequenceClassification

from surefoot.assembly.hosts import describe_critic
from surefoot.assembly.models import build_critic_optimizer, build_separate_critic
from surefoot.assembly.train import exact_arithmetic
from surefoot.config import Config
from surefoot.errors import ServiceError
from surefoot.models.load import quiet_library
from surefoot.models.tokenizer import load_codec
from surefoot.records import Rollout
from surefoot.serving.control import RestoreRequest
from surefoot.serving.critic_host import CriticHost
from surefoot.serving.critic_state import TrainedCritic
from surefoot.serving.wire import InferRequest, TrainRequest
from surefoot.training.critic_update import Minibatches, Update, update_critic
from tests.builders import CPU, make_rollout, merged, toy_run

VOCABULARY = 60
RUN = "run-1"


def toy_config(folder: Path, **sections: Any) -> Config:
    """A toy run with a service; the critic trains fast enough for its values to move."""
    return toy_run(folder, **merged({"serve": {"dir": str(folder / "service")}, "run": {"threads": 1}}, sections))


def build_toy_critic(cfg: Config) -> TrainedCritic:
    """As one process builds it."""
    critic = build_separate_critic(cfg, CPU)
    return TrainedCritic(critic, build_critic_optimizer(cfg, critic))


def toy_host(cfg: Config, **options: Any) -> CriticHost:
    """A host of that critic, opened."""
    assert cfg.serve is not None and cfg.model.policy is not None
    codec = load_codec(cfg.model.policy)
    host = CriticHost(
        options.pop("build", lambda: build_toy_critic(cfg)),
        lambda held: describe_critic(cfg, codec, held),
        cfg,
        Path(cfg.serve.dir),
        lease_s=options.pop("lease_s", 300.0),
    )
    host.open()
    return host


def make_toy_reward(folder: Path, *, like: Path, seed: int = 3) -> Path:
    """A random reward model with the tokenizer of the model in ``like``."""
    config = AutoConfig.from_pretrained(like, num_labels=1)
    with torch.random.fork_rng(devices=[]), quiet_library():
        torch.manual_seed(seed)
        model = LlamaForSequenceClassification(config)
        torch.nn.init.normal_(model.score.weight, std=0.3)
        model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """Arithmetic as in a run on one thread."""
    with exact_arithmetic(1):
        yield


def toy_rollout(rows: int, seed: int, *, longest: int = 14) -> Rollout:
    """Random trajectories of different lengths."""
    dice = np.random.default_rng(seed)
    made = []
    for _ in range(rows):
        given, actions = (dice.integers(1, longest // 2, size=2) + 1).tolist()
        made.append(
            (dice.integers(4, VOCABULARY, size=given).tolist(), dice.integers(4, VOCABULARY, size=actions).tolist())
        )
    return make_rollout(*made)


@dataclass(frozen=True)
class ToyBatch:
    """What a critic is trained on."""

    rollout: Rollout
    mask: Tensor
    values: Tensor
    returns: Tensor
    plan: Minibatches


def toy_batch(critic: TrainedCritic, step: int, *, rows: int = 6) -> ToyBatch:
    """A step's batch with old values of the critic as it is, and returns that pull at it."""
    rollout = toy_rollout(rows, seed=100 + step)
    values = torch.from_numpy(critic.critic.values(rollout).values)
    mask = torch.from_numpy(rollout.mask.copy())
    dice = torch.Generator().manual_seed(step)
    returns = torch.where(mask, values + torch.randn(values.shape, generator=dice, dtype=values.dtype), 0.0)
    order = [int(i) for i in torch.randperm(rows, generator=dice)]
    plan = [[order[: rows // 2], order[rows // 2 :]], [order[rows // 3 :], order[: rows // 3]]]
    return ToyBatch(rollout, mask, values, returns, plan)


def train_locally(critic: TrainedCritic, batch: ToyBatch, cfg: Config) -> list[Update]:
    """As one process trains it."""
    return list(update_critic(critic.critic, critic.optimizer, batch, batch.plan, cfg))


def infer_request(rollout: Rollout, **fields: Any) -> InferRequest:
    """Ask for a rollout's values."""
    lengths = tuple(int(n) for n in rollout.lengths)
    tokens = rollout.tokens.astype(np.int32)
    return InferRequest(tuple(range(len(lengths))), lengths, ("values",), tokens, rollout.mask, **fields)


def train_request(batch: ToyBatch, step: int, *, run: str = RUN) -> TrainRequest:
    """Ask for a step's training."""
    rollout = batch.rollout
    return TrainRequest(
        run,
        step,
        tuple(int(n) for n in rollout.lengths),
        batch.plan,
        rollout.tokens.astype(np.int32),
        rollout.mask,
        batch.values.numpy(),
        batch.returns.numpy(),
    )


def train_requests(cfg: Config, steps: int, *, run: str = RUN) -> list[TrainRequest]:
    """The requests of a run of so many steps, each with the values of the critic as it is by then."""
    critic, requests = build_toy_critic(cfg), []
    for step in range(1, steps + 1):
        batch = toy_batch(critic, step)
        requests.append(train_request(batch, step, run=run))
        train_locally(critic, batch, cfg)
    return requests


# -------------------------------------------------------------------------------------------------- a host in this test


def begun(cfg: Config, **options: Any) -> CriticHost:
    """A host that belongs to RUN, at its beginning."""
    host = toy_host(cfg, **options)
    host.restore(RestoreRequest(RUN, 0))
    return host


def train(host: CriticHost, request: TrainRequest) -> list[dict[str, Any]]:
    """Train a host on a step; the numbers of its updates."""
    return host.train(request, request.pack()).numbers


def digest_of(host: CriticHost) -> str:
    """sha256 of its weights."""
    return host._keeper.critic.digest()


def journal_of(cfg: Config, run: str = RUN) -> Path:
    """The folder of a run's journal."""
    assert cfg.serve is not None
    return Path(cfg.serve.dir) / "runs" / run / "journal"


def names_in(folder: Path) -> list[str]:
    """What is in a folder, sorted; nothing when there is none."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def refused(call: Callable[[], Any]) -> ServiceError:
    """The error of the protocol that a call ends in."""
    with pytest.raises(ServiceError) as found:
        call()
    return found.value
