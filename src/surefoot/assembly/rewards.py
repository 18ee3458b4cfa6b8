"""The reward from a config."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from surefoot.assembly.models import build_reward_model, choose_device
from surefoot.assembly.services import remote_reward
from surefoot.config import Config, RewardTerm
from surefoot.models.tokenizer import TextCodec
from surefoot.rewards import (
    CheckReward,
    CompositeReward,
    FunctionReward,
    HumanReward,
    ModelReward,
    Ratings,
    Standing,
)
from surefoot.rewards.checks import check_type
from surefoot.rewards.composite import Term
from surefoot.training.lineage import describe_function, describe_input, describe_ratings

TASKS_FILE: Final = "to_judge.jsonl"
"""What of a run waits for people's judgements."""


def build_reward(config: Config, codec: TextCodec | None) -> CompositeReward:
    """The weighted sum of the config's terms; functions, models and ratings are loaded, and services are met.

    Args:
        config: section ``reward``.
        codec: the policy's, for rewards by span of text; None where none is at hand.
    Raises:
        ConfigError, DataError, ModelError, MissingExtra, ServiceError: a term cannot be used.
    """
    section = config.reward
    terms: list[Term] = []
    try:
        for term in section.terms:
            terms.append(_term(config, term, codec))
    except BaseException:
        for built in terms:
            built.close()
        raise
    standings = [_standing(term) for term in section.terms]
    return CompositeReward(terms, [t.weight for t in section.terms], [t.clip for t in section.terms], standings)


def _standing(term: RewardTerm) -> Standing:
    missing = term.when_missing
    return Standing(term.center, term.scale, "fail" if missing == "wait" else missing, term.stand_in)


def _term(config: Config, term: RewardTerm, codec: TextCodec | None) -> Term:
    if term.kind == "model":
        model = build_reward_model(config, term.place, choose_device(config.run.device), term)
        return ModelReward(term.name, model)
    if term.kind == "remote":
        return remote_reward(term)
    if term.kind == "check":
        return CheckReward(term, timeout_s=config.reward.timeout_s, seed=config.run.seed)
    if term.kind == "human":
        return HumanReward(term.name, Ratings(term.place), waits=term.when_missing == "wait")
    offsets = None if codec is None else codec.spans
    return FunctionReward(term, timeout_s=config.reward.timeout_s, seed=config.run.seed, offsets=offsets)


def required_columns(reward: CompositeReward) -> dict[str, tuple[str, ...]]:
    """Columns of the prompts that each function and check needs, by term."""
    return {t.name: t.required_columns for t in reward.terms if isinstance(t, FunctionReward | CheckReward)}


def ask_people(reward: CompositeReward, folder: Path) -> None:
    """Let what waits for judgements be written into a run folder."""
    for term in reward.terms:
        if isinstance(term, HumanReward):
            term.ask_in(folder / TASKS_FILE)


def describe_term(term: RewardTerm, served: str | None = None) -> dict[str, Any]:
    """A term as the lineage holds it: with the sha256 of code, model, ratings, or of a check and its options' files.

    Args:
        term: of the config.
        served: for a remote one the sha256 of the model behind it, where it is known.
    """
    if term.kind == "remote":
        return {"kind": "service", "path": ", ".join(term.addresses), "sha256": served}
    if term.kind == "function":
        return describe_function(term.place)
    if term.kind == "human":
        return describe_ratings(term.place)
    if term.kind == "model":
        report = {} if term.report is None else {"report": describe_input(term.report, "report")}
        return describe_input(term.place, "model") | report
    found = {**describe_function(f"{check_type(term.place).__module__}:{term.place}"), "target": term.place}
    files = {k: describe_input(v, "code") for k, v in term.options.items() if k.endswith("_file") and v is not None}
    if files:
        listing = [found["sha256"], *(files[name]["sha256"] for name in sorted(files))]
        found |= {"sha256": hashlib.sha256(" ".join(map(str, listing)).encode()).hexdigest(), "files": files}
    return {**found, "options": dict(term.options)}
