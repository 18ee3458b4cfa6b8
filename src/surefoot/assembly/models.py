"""Policy, critic, reference and their optimizers from a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from surefoot import algo
from surefoot.config import Config, RewardTerm
from surefoot.errors import ConfigError
from surefoot.evals.gate import check_report
from surefoot.models.critic import SeparateCritic, SharedCritic, load_critic, shared_critic
from surefoot.models.policy import CausalPolicy, FrozenReference, Lora, StartingReference, has_tokenizer, load_policy
from surefoot.models.reward_identity import reward_identity
from surefoot.models.reward_model import Ensemble, RewardModel
from surefoot.models.scoring import BatchPlan
from surefoot.models.tokenizer import TextCodec, VocabularyPlan, load_codec
from surefoot.parallel.rng import derive_seed
from surefoot.rollout import Sampling
from surefoot.training.critic_update import ServedCritic
from surefoot.training.optimizer import Optimizer
from surefoot.training.update import Learner


def choose_device(name: str) -> torch.device:
    """The device that ``run.device`` means here.

    Raises:
        ConfigError: a GPU was asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("run.device asks for a GPU and torch sees none", got=name, hint="run.device: auto or cpu")
    return torch.device(name)


def batch_plan(cfg: Config) -> BatchPlan:
    """How forward passes are cut."""
    return BatchPlan(cfg.batch.tokens, cfg.batch.packing)


def lora_of_config(cfg: Config) -> Lora | None:
    """The adapters that are trained, None where all weights are."""
    lora = cfg.model.lora
    return None if lora is None else Lora(lora.rank, lora.alpha, lora.targets)


def build_policy(cfg: Config, vocabulary: VocabularyPlan, device: torch.device) -> CausalPolicy:
    """The policy, at the config's temperature."""
    assert cfg.model.policy is not None
    return load_policy(
        cfg.model.policy,
        temperature=cfg.rollout.temperature,
        dtype=cfg.model.dtype,
        device=str(device),
        lora=lora_of_config(cfg),
        plan=batch_plan(cfg),
        seed=derive_seed(cfg.run.seed, "init", index=0),
        trust_remote_code=cfg.model.trust_remote_code,
        gradient_checkpointing=cfg.model.gradient_checkpointing,
        quantize=cfg.model.quantize,
        **vocabulary_options(vocabulary),
    )


def vocabulary_options(vocabulary: VocabularyPlan) -> dict[str, Any]:
    """What a model must know of the tokenizer's vocabulary."""
    return {"rows_needed": vocabulary.rows_needed, "banned": vocabulary.banned_ids}


def build_sampling(cfg: Config, codec: TextCodec) -> Sampling:
    """How a step draws tokens."""
    return Sampling(
        max_new_tokens=cfg.rollout.max_new_tokens,
        stop_ids=codec.stop_ids,
        stop_strings=tuple(cfg.rollout.stop),
        max_rows=cfg.rollout.max_rows,
        laid_out=cfg.rollout.decode_weights == "laid_out",
    )


def build_reference(
    cfg: Config, policy: CausalPolicy, vocabulary: VocabularyPlan, device: torch.device
) -> FrozenReference | StartingReference:
    """The frozen policy: the policy's own weights with its adapters undone where that is the start, else a copy."""
    if cfg.model.reference is None and policy.lm.adapters is not None:
        return StartingReference(policy)
    source = cfg.model.reference or cfg.model.policy
    assert source is not None
    policy_of_source = load_policy(
        source,
        temperature=cfg.rollout.temperature,
        dtype=cfg.model.dtype,
        device=str(device),
        trust_remote_code=cfg.model.trust_remote_code,
        quantize=cfg.model.quantize,
        **vocabulary_options(vocabulary),
    )
    return FrozenReference(policy_of_source.lm, batch_plan(cfg))


def build_critic(cfg: Config, policy: CausalPolicy, device: torch.device) -> SeparateCritic | SharedCritic:
    """The critic: a head on the policy's trunk, or a model of its own from policy, reward model or folder."""
    return shared_critic(policy) if cfg.critic.kind == "shared" else build_separate_critic(cfg, device)


def build_reward_model(cfg: Config, source: str, device: torch.device, term: RewardTerm | None = None) -> RewardModel:
    """The reward model in a folder or of a hub id; the heads of an ensemble are read as the term says.

    Raises:
        ModelError: it is none, or an ensemble is asked for and it has one head.
        ConfigError: the term asks for a report on it, and there is none of it that passed.
    """
    model = RewardModel(
        source,
        dtype=cfg.model.dtype,
        device=device,
        batch_tokens=cfg.batch.tokens,
        trust_remote_code=cfg.model.trust_remote_code,
        ensemble=None if term is None else Ensemble(term.ensemble, term.ensemble_c),
    )
    if term is not None and term.report is not None:
        check_report(Path(term.report), model=source, identity=reward_identity(model))
    return model


def build_separate_critic(cfg: Config, device: torch.device) -> SeparateCritic:
    """A critic with a model of its own, wherever it lives; it needs no policy in memory."""
    return load_critic(
        critic_source(cfg),
        dtype=cfg.model.dtype,
        device=str(device),
        lora=lora_of_config(cfg),
        plan=batch_plan(cfg),
        seed=derive_seed(cfg.run.seed, "init", index=1),
        trust_remote_code=cfg.model.trust_remote_code,
        gradient_checkpointing=cfg.model.gradient_checkpointing,
        quantize=cfg.model.quantize,
    )


def critic_source(cfg: Config) -> str:
    """The folder or hub id that a separate critic starts from."""
    init = cfg.critic.init
    if init == "policy":
        assert cfg.model.policy is not None
        return cfg.model.policy
    for term in cfg.reward.terms:
        if term.name == init:
            if term.kind != "model":
                raise ConfigError(
                    "critic.init names a reward term that is not a model", got=init, allowed="kind: model"
                )
            return term.place
    return init


def _other_vocabulary(cfg: Config, source: str, codec: TextCodec) -> bool:
    """Whether a model folder's own tokenizer has other ids than the policy's; a folder without one says nothing."""
    if not Path(source).is_dir() or not has_tokenizer(source):
        return False
    own = load_codec(source, trust_remote_code=cfg.model.trust_remote_code)
    return own.vocabulary_fingerprint() != codec.vocabulary_fingerprint()


def check_critic_vocabulary(cfg: Config, codec: TextCodec) -> None:
    """Refuse a critic that reads the policy's token ids with another vocabulary.

    Raises:
        ConfigError: the critic starts from a model whose tokenizer has other ids.
    """
    if cfg.critic.kind != "separate" or cfg.critic.init == "policy":
        return
    source = critic_source(cfg)
    if _other_vocabulary(cfg, source, codec):
        raise ConfigError(
            "the critic would read the policy's token ids with another vocabulary",
            got=f"critic.init: {cfg.critic.init} ({source})",
            hint="start the critic from the policy, or from a model with the policy's tokenizer",
        )


def check_reference_vocabulary(cfg: Config, codec: TextCodec) -> None:
    """Refuse a reference that reads the policy's token ids with another vocabulary: every KL would mean nothing.

    Raises:
        ConfigError: the reference's tokenizer has other ids.
    """
    source = cfg.model.reference
    if source is not None and _other_vocabulary(cfg, source, codec):
        raise ConfigError(
            "the reference would read the policy's token ids with another vocabulary",
            got=f"model.reference: {source}",
            hint="take a reference with the policy's tokenizer, or leave model.reference out",
        )


def build_learner(cfg: Config, policy: CausalPolicy, critic: SeparateCritic | SharedCritic | ServedCritic) -> Learner:
    """Models with their optimizers; the policy's also trains a shared critic's head, at the critic's rate.

    The head is clipped apart: its gradient is the states' size times the error, many times the policy's early on, and
    in one norm with it would set how much a minibatch counts in the policy's steps.
    """
    options = {**_optimizer_options(cfg), "clip_apart": True}
    groups = [(cfg.optim.policy_lr, policy.trainable())]
    if isinstance(critic, SharedCritic):
        groups.append((cfg.optim.critic_lr, critic.trainable()))
        return Learner(policy, critic, Optimizer(groups, cfg.optim, **options), None)
    own = build_critic_optimizer(cfg, critic) if isinstance(critic, SeparateCritic) else None
    return Learner(policy, critic, Optimizer(groups, cfg.optim, **options), own)


def build_critic_optimizer(cfg: Config, critic: SeparateCritic) -> Optimizer:
    """The optimizer of a critic with a model of its own."""
    return Optimizer([(cfg.optim.critic_lr, critic.trainable())], cfg.optim, **_optimizer_options(cfg))


def _optimizer_options(cfg: Config) -> dict[str, Any]:
    return {"total_steps": cfg.optimizer_steps, "max_skipped": cfg.guard.max_skipped}


def build_controllers(cfg: Config) -> tuple[algo.AdaptiveKL | algo.FixedKL, algo.AdaptivePenalty]:
    """Controllers of the KL to the reference, and of the KL between old and new policy."""
    kl = cfg.ppo.kl
    penalty = algo.AdaptivePenalty(cfg.ppo.surrogate_kl.coef, cfg.ppo.surrogate_kl.target)
    if kl.controller == "fixed":
        return algo.FixedKL(kl.coef), penalty
    assert kl.target is not None and kl.horizon is not None
    return algo.AdaptiveKL(kl.coef, kl.target, kl.horizon), penalty
