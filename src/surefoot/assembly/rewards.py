"""The reward from a config."""

from __future__ import annotations

from surefoot.assembly.models import choose_device
from surefoot.assembly.services import remote_reward
from surefoot.config import Config, RewardTerm
from surefoot.models.reward_model import RewardModel
from surefoot.models.tokenizer import TextCodec
from surefoot.rewards import CompositeReward, FunctionReward
from surefoot.rewards.composite import Term
from surefoot.rewards.model import ModelReward


def build_reward(config: Config, codec: TextCodec | None) -> CompositeReward:
    """The weighted sum of the config's terms; functions are loaded, reward models too, and services are met.

    Args:
        config: section ``reward``.
        codec: the policy's, for rewards by span of text; None where none is at hand.
    Raises:
        ConfigError, ModelError, ServiceError: a term cannot be used.
    """
    section = config.reward
    terms: list[Term] = []
    try:
        terms += [_term(config, term, codec) for term in section.terms]
    except BaseException:
        for term in terms:
            term.close()
        raise
    return CompositeReward(terms, [t.weight for t in section.terms], [t.clip for t in section.terms])


def _term(config: Config, term: RewardTerm, codec: TextCodec | None) -> Term:
    if term.kind == "model":
        model = RewardModel(
            term.place,
            dtype=config.model.dtype,
            device=str(choose_device(config.run.device)),
            batch_tokens=config.batch.tokens,
            trust_remote_code=config.model.trust_remote_code,
        )
        return ModelReward(term.name, model)
    if term.kind == "remote":
        return remote_reward(term)
    offsets = None if codec is None else codec.spans
    return FunctionReward(term, timeout_s=config.reward.timeout_s, seed=config.run.seed, offsets=offsets)


def required_columns(reward: CompositeReward) -> dict[str, tuple[str, ...]]:
    """Columns of the prompts that each function needs, by term."""
    return {term.name: term.required_columns for term in reward.terms if isinstance(term, FunctionReward)}
