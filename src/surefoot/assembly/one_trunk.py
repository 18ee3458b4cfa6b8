"""A critic and the reward model it starts from on one set of base weights: adapters on for values, off for scores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from surefoot.assembly.models import (
    batch_plan,
    build_critic_optimizer,
    build_reward_model,
    critic_source,
    lora_of_config,
)
from surefoot.config import Config, RewardTerm
from surefoot.errors import ConfigError
from surefoot.models.critic import SeparateCritic
from surefoot.models.load import grow_embeddings
from surefoot.models.lora import add_adapter, is_adapter
from surefoot.models.policy import enable_checkpointing, vocabulary_limits
from surefoot.models.reward_model import RewardModel
from surefoot.models.scoring import ValueHead
from surefoot.parallel.rng import derive_seed
from surefoot.serving.critic_state import TrainedCritic


class OneTrunk:
    """Both models of a service. One lock: while the critic trains, scores wait.

    Args:
        config: sections ``model``, ``critic``, ``optim``, ``batch``.
        source: the reward model's folder or hub id.
        device: where to put it.
        term: says how an ensemble is read; None: by its mean.
    Raises:
        ConfigError: the critic does not start from that reward model, or has no adapters.
    """

    def __init__(self, config: Config, source: str, device: torch.device, term: RewardTerm | None = None) -> None:
        if config.model.lora is None or critic_source(config) != source or is_adapter(source):
            raise ConfigError(
                "one trunk for both needs a critic that starts from the reward model and trains adapters on it",
                got=f"critic.init: {config.critic.init}, model.lora: {config.model.lora and 'given'}, reward: {source}",
                hint="set critic.init to the reward term and model.lora, or serve.trunk: separate",
            )
        self._config, self._source, self._device, self._term = config, source, device, term
        self._lock = threading.RLock()
        self._reward: RewardModel | None = None
        self._critic: SeparateCritic | None = None
        self._initial: dict[str, Tensor] = {}

    def reward(self) -> RewardModel:
        """The reward model; loaded at the first call of either."""
        with self._lock:
            if self._reward is None:
                self._load()
            assert self._reward is not None
            return self._reward

    def critic(self) -> TrainedCritic:
        """The critic with its initial weights, and a new optimizer. What was given before is the same one, set back."""
        with self._lock:
            self.reward()
            assert self._critic is not None
            with torch.no_grad():
                for name, parameter in self._critic.trainable().items():
                    parameter.copy_(self._initial[name])
                    parameter.grad = None
            return TrainedCritic(self._critic, build_critic_optimizer(self._config, self._critic))

    @contextmanager
    def critic_turn(self) -> Iterator[None]:
        """Within this block the trunk is the critic's."""
        with self._lock:
            yield

    @contextmanager
    def reward_turn(self) -> Iterator[None]:
        """Within this block the trunk is the reward model's."""
        with self._lock:
            if self._critic is None:
                yield
                return
            with self._critic.adapters.disable_adapter():
                yield

    def _load(self) -> None:
        config, trust = self._config, self._config.model.trust_remote_code
        reward = build_reward_model(config, self._source, self._device, self._term)
        trunk, lora = reward.trunk, lora_of_config(config)
        assert lora is not None
        rows = vocabulary_limits(self._source, self._source, trust_remote_code=trust).get("rows_needed")
        if rows is not None:
            grow_embeddings(trunk, rows)
        critic = SeparateCritic(trunk, _head_of(reward), batch_plan(config))
        seed = derive_seed(config.run.seed, "init", index=1)
        critic.adapters = add_adapter(trunk, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
        if config.model.gradient_checkpointing:
            enable_checkpointing(trunk)
        self._initial = {name: p.detach().clone() for name, p in critic.trainable().items()}
        self._reward, self._critic = reward, critic


def _head_of(reward: RewardModel) -> ValueHead:
    """A value head that begins as the reward model's score layer."""
    weight, bias = reward.head_weight(), reward.head_bias()
    head = ValueHead(len(weight), bias=bias is not None)
    head.to(device=weight.device, dtype=torch.promote_types(weight.dtype, torch.float32))
    with torch.no_grad():
        head.weight.copy_(weight[None])
        if head.bias is not None and bias is not None:
            head.bias.copy_(bias[None])
    return head
