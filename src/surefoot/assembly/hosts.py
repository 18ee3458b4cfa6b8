"""The models of a service from a config: the same critic, optimizer and reward model that one process would build."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import torch

from surefoot.assembly.models import (
    build_critic_optimizer,
    build_reward_model,
    build_separate_critic,
    check_critic_vocabulary,
    choose_device,
)
from surefoot.assembly.one_trunk import OneTrunk
from surefoot.assembly.serve import critic_settings
from surefoot.assembly.train import exact_arithmetic, refuse_float16
from surefoot.config import Config, RewardTerm
from surefoot.models.lora import is_adapter
from surefoot.models.policy import has_tokenizer
from surefoot.models.reward_model import RewardModel
from surefoot.models.tokenizer import TextCodec, load_codec
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.serving.control import CriticCard
from surefoot.serving.critic_host import CriticHost
from surefoot.serving.critic_keeper import Turn
from surefoot.serving.critic_state import TrainedCritic
from surefoot.serving.reward_host import RewardHost
from surefoot.serving.service import Hosts
from surefoot.serving.turns import Turns

logger = logging.getLogger("surefoot.serving")


class ExactThreads:
    """Deterministic algorithms for as long as this lives; called in a thread, it gives that its number of threads."""

    def __init__(self, threads: int | None) -> None:
        self._exact = ExitStack()
        self._exact.enter_context(exact_arithmetic(threads))
        self._threads = torch.get_num_threads()

    def __call__(self) -> None:
        """OpenMP keeps the number by thread."""
        torch.set_num_threads(self._threads)


def build_hosts(config: Config) -> Hosts:
    """The models of a service, which are loaded when they are opened.

    Raises:
        UserError: something that can be seen before weights are loaded.
    """
    assert config.serve is not None
    keep_freed_memory()
    prepare = ExactThreads(config.run.threads)
    device = choose_device(config.run.device)
    if "critic" in config.serve.roles:
        refuse_float16(config)
    if config.serve.trunk == "one":
        one = OneTrunk(config, _reward_source(config), device, _reward_term(config))
        return Hosts(
            _critic_host(config, one.critic, one.critic_turn),
            _reward_host(config, one.reward, one.reward_turn),
            prepare,
        )
    turns = Turns(device) if config.serve.memory == "turns" and device.type != "cpu" else None
    if config.serve.memory == "turns" and turns is None:
        logger.info("serve.memory: turns changes nothing on a CPU: both models are in its memory")
    critic = reward = None
    if "critic" in config.serve.roles:
        critic = _critic_host(config, partial(_build_critic, config, device), _turn_of(turns, "critic"))
    if "reward" in config.serve.roles:
        reward = _reward_host(config, partial(_build_reward, config, device), _turn_of(turns, "reward"))
    if turns is not None and critic is not None and reward is not None:
        turns.join("critic", critic.move)
        turns.join("reward", reward.move)
    return Hosts(critic, reward, prepare)


def _turn_of(turns: Turns | None, name: str) -> Turn:
    return nullcontext if turns is None else partial(turns.of, name)


def _critic_host(config: Config, build: Callable[[], TrainedCritic], turn: Turn) -> CriticHost:
    assert config.serve is not None
    codec = _policy_codec(config)
    if codec is not None:
        check_critic_vocabulary(config, codec)
    folder = Path(config.serve.dir).expanduser()
    describe = partial(describe_critic, config, codec)
    return CriticHost(build, describe, config, folder, lease_s=config.serve.lease_s, turn=turn)


def _build_critic(config: Config, device: torch.device) -> TrainedCritic:
    critic = build_separate_critic(config, device)
    return TrainedCritic(critic, build_critic_optimizer(config, critic))


def describe_critic(config: Config, codec: TextCodec | None, held: TrainedCritic) -> CriticCard:
    """What a service says of a critic that has not been trained yet.

    Args:
        config: sections as in :func:`surefoot.assembly.serve.critic_settings`.
        codec: the policy's, whose ids the critic reads.
        held: the critic.
    """
    return CriticCard(
        model=held.digest(),
        tokenizer=None if codec is None else codec.vocabulary_fingerprint(),
        vocabulary=held.rows,
        context=held.context,
        dtype=held.dtype,
        threads=torch.get_num_threads(),
        settings=critic_settings(config),
    )


def _policy_codec(config: Config) -> TextCodec | None:
    """The policy's tokenizer; None for a folder without one."""
    policy = config.model.policy
    assert policy is not None
    if Path(policy).is_dir() and not has_tokenizer(policy) and not is_adapter(policy):
        return None
    trust = config.model.trust_remote_code
    return load_codec(policy, chat_template=config.model.chat_template, trust_remote_code=trust)


def _reward_host(config: Config, build: Callable[[], RewardModel], turn: Turn) -> RewardHost:
    term = _reward_term(config)
    return RewardHost(build, term.name if term is not None else Path(_reward_source(config)).name, turn=turn)


def _reward_source(config: Config) -> str:
    """The reward model's folder or hub id."""
    assert config.serve is not None
    return config.serve.reward or next(term.place for term in config.reward.terms if term.kind == "model")


def _reward_term(config: Config) -> RewardTerm | None:
    """The first term of that reward model; None where the config has none."""
    source = _reward_source(config)
    return next((term for term in config.reward.terms if term.kind == "model" and term.place == source), None)


def _build_reward(config: Config, device: torch.device) -> RewardModel:
    return build_reward_model(config, _reward_source(config), device, _reward_term(config))
