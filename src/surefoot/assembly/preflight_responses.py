"""Real samples of the starting policy, and whether they end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from surefoot.assembly.models import build_sampling
from surefoot.assembly.preflight_tokenizer import closes_with_stop
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config
from surefoot.envs import SingleTurn
from surefoot.models.batching import micro_batches
from surefoot.models.policy import CausalPolicy
from surefoot.models.tokenizer import TextCodec
from surefoot.records import Prompt, Rollout, StopReason
from surefoot.rollout import NativeEngine

PROMPTS: Final = 8
RESPONSES: Final = 16
NEW_TOKENS: Final = 64
"""Responses are sampled this far: a check has seconds."""
OFTEN: Final = 0.5
RARELY: Final = 0.1


@dataclass(frozen=True)
class Samples:
    """Responses of the starting policy.

    Attributes:
        rollout: of a few of the run's prompts, several each.
        seconds: that sampling took.
        whole: whether responses could be as long as in training.
    """

    rollout: Rollout
    seconds: float
    whole: bool


def sample(config: Config, policy: CausalPolicy, codec: TextCodec, prompts: Sequence[Prompt]) -> Samples:
    """Sample as training will, a few prompts and a limited length."""
    new_tokens = min(config.rollout.max_new_tokens, NEW_TOKENS)
    sampling = replace(build_sampling(config, codec), max_new_tokens=new_tokens)
    each = max(2, RESPONSES // len(prompts[:PROMPTS]))
    engine = NativeEngine(policy, sampling, codec, samples_per_prompt=each, purpose="samples")
    start = time.perf_counter()
    rollout = engine.rollout(prompts[:PROMPTS], SingleTurn(), seed=(config.run.seed, 0))
    return Samples(rollout, time.perf_counter() - start, new_tokens == config.rollout.max_new_tokens)


def check_responses(
    config: Config, policy: CausalPolicy, codec: TextCodec, samples: Samples, verdicts: Verdicts
) -> None:
    """Whether the policy ends its responses, and how likely it is to."""
    rollout, name = samples.rollout, "responses/end"
    ended = sum(reason in (StopReason.EOS, StopReason.STOP) for reason in rollout.stop_reasons)
    tokens = [int(n) for n in rollout.mask.sum(axis=1)]
    few = Rollout.of(rollout.trajectories[::2])
    likely = stop_probability(policy, few, codec.stop_ids)
    evidence = {"ended": ended, "responses": rollout.num_rows, "stop_probability": likely, "within": max(tokens)}
    limit = config.rollout.max_new_tokens
    what = f"{ended} of {rollout.num_rows} responses ended by themselves within {min(limit, NEW_TOKENS)} tokens"
    share = ended / rollout.num_rows
    if not codec.stop_ids and not config.rollout.stop:
        verdicts.warn(
            name, f"{what}: nothing ends one", "set rollout.stop, or give the tokenizer an eos_token", **evidence
        )
    elif likely == 0.0 and not ended:
        verdicts.problem(
            name,
            f"{what}: the end has probability 0",
            "the end-of-sequence token is not one the model can choose",
            **evidence,
        )
    elif not ended and samples.whole and _never_closes(config, codec, rollout):
        verdicts.problem(
            name,
            f"{what}: the chat template closes turns with a token that does not end a response",
            "see tokenizer/end",
            **evidence,
        )
    elif share < RARELY and samples.whole:
        verdicts.warn(
            name,
            f"{what} (probability of an end per token: {likely:.2g}); cut-off ones {_cost_of_cut_off(config)}",
            "raise rollout.max_new_tokens, ask for shorter answers in the prompts, or set ppo.cut_off: penalise",
            **evidence,
        )
    elif share < OFTEN and samples.whole and config.ppo.cut_off == "terminal":
        verdicts.warn(
            name,
            f"{what}; cut-off ones lose nothing, so nothing teaches the policy to end",
            "raise rollout.max_new_tokens, or set ppo.cut_off: penalise",
            **evidence,
        )
    elif share < RARELY:
        verdicts.note(
            name,
            f"{what} (probability of an end per token: {likely:.2g}); training allows {limit}",
            "look at response/cut_off_share in the first steps",
            **evidence,
        )
    else:
        verdicts.ok(name, what, **evidence)
    distinct = len({t.response for t in rollout.trajectories})
    _check_distinct(distinct, rollout, verdicts)


def _check_distinct(distinct: int, rollout: Rollout, verdicts: Verdicts) -> None:
    name, text = "responses/distinct", f"{distinct} different texts in {rollout.num_rows} responses"
    empty = sum(not t.response.strip() for t in rollout.trajectories)
    if distinct == 1 or empty * 2 > rollout.num_rows:
        verdicts.warn(
            name,
            f"{text}, {empty} of them empty",
            "PPO learns from differences: look at the prompts, the template, and rollout.temperature",
            distinct=distinct,
            empty=empty,
        )
    else:
        verdicts.ok(name, text, distinct=distinct, empty=empty)


def _never_closes(config: Config, codec: TextCodec, rollout: Rollout) -> bool:
    closing = closes_with_stop(codec, config.rollout.stop)
    chats = any(t.prompt is not None and t.prompt.messages is not None for t in rollout.trajectories)
    return chats and closing is not None and not closing[0]


def _cost_of_cut_off(config: Config) -> str:
    penalty = config.ppo.missing_eos_penalty
    return f"lose {penalty:g} of their score" if config.ppo.cut_off == "penalise" else "lose nothing"


@torch.no_grad()
def stop_probability(policy: CausalPolicy, rollout: Rollout, stop_ids: frozenset[int]) -> float:
    """Mean probability of an end-of-sequence token where the policy chose its tokens; 0 without such a token."""
    if not stop_ids:
        return 0.0
    ends = torch.tensor(sorted(stop_ids), device=policy.lm.device)
    total_probability, count = 0.0, 0
    plan, device = policy.plan, policy.lm.device
    rows = range(rollout.num_rows)
    for micro in micro_batches(rollout, rows, tokens=plan.tokens, packed=plan.packed(device), device=device):
        states = policy.lm.hidden(micro).index_select(0, micro.states)
        for chunk in states.split(64):
            logits = policy.lm.head.logits(chunk)
            log_ends = torch.logsumexp(logits[:, ends], dim=-1) - torch.logsumexp(logits, dim=-1)
            total_probability += float(log_ends.exp().sum())
            count += len(chunk)
    return total_probability / max(count, 1)
