"""Tiny models, configs and parts that tests of several packages build on."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from surefoot.assembly.models import build_controllers, build_critic, build_learner, build_policy, build_reference
from surefoot.config import Config
from surefoot.config.load import build_config
from surefoot.envs import SingleTurn
from surefoot.models.critic import SharedCritic
from surefoot.models.tokenizer import VocabularyPlan
from surefoot.models.toy import make_toy_model
from surefoot.protocols import Environment
from surefoot.records import Prompt, Rollout, Score, StopReason, Trajectory
from surefoot.rewards import ScoreNormaliser
from surefoot.rollout import NativeEngine, Sampling
from surefoot.training.step import Parts

CPU = torch.device("cpu")


# ------------------------------------------------------------------------------------------------------- models


def save_llama(
    folder: Path, *, vocabulary: int = 12, hidden: int = 16, layers: int = 1, seed: int = 0, spread: float = 0.3
) -> Path:
    """A random Llama without a tokenizer; ``spread`` is the deviation of its weights."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _save(LlamaForCausalLM, config, folder, seed)


def save_gpt2(
    folder: Path, *, vocabulary: int = 12, hidden: int = 16, layers: int = 1, seed: int = 0, spread: float = 0.3
) -> Path:
    """A random GPT-2: learned positions, tied embeddings, and dropout in its config."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=layers,
        n_head=2,
        n_positions=64,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _save(GPT2LMHeadModel, config, folder, seed)


def _save(kind: type[PreTrainedModel], config: PretrainedConfig, folder: Path, seed: int) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    folder.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()
    model.save_pretrained(folder)
    return folder


# ------------------------------------------------------------------------------------------------------ configs


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dict with the changes laid over it."""
    out = copy.deepcopy(dict(base))
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if nested else value
    return out


def make_config(folder: Path, **sections: Any) -> Config:
    """A config for a model folder; sections are nested dicts laid over small defaults."""
    base = {
        "run": {"name": "tiny", "steps": 4, "device": "cpu"},
        "model": {"policy": str(folder), "dtype": "float64"},
        "rollout": {"prompts_per_step": 4, "max_new_tokens": 4},
        "optim": {"policy_lr": 1e-2, "critic_lr": 1e-2},
        "reward": {"terms": [{"name": "table", "target": "unused.py:table"}]},
    }
    return build_config(merged(base, sections))


# -------------------------------------------------------------------------------------------------------- parts


class ActionReward:
    """Scores a trajectory by its action tokens; None is a failure."""

    def __init__(self, value: Callable[[tuple[int, ...]], float | None]) -> None:
        self.value = value

    def score(self, rollout: Rollout) -> list[Score]:
        """One Score a trajectory."""
        scores = []
        for trajectory in rollout.trajectories:
            value = self.value(tuple(t for t, m in zip(trajectory.tokens, trajectory.mask, strict=True) if m))
            scores.append(Score(value, None if value is not None else "no value", {"table": value}))
        return scores


def make_parts(
    cfg: Config,
    value: Callable[[tuple[int, ...]], float | None],
    *,
    vocabulary: int = 12,
    stop_ids: Sequence[int] = (),
    environment: Environment | None = None,
) -> Parts:
    """What :func:`surefoot.assembly.train.build_parts` makes, for a model without a tokenizer."""
    plan = VocabularyPlan(embedding_rows=vocabulary, rows_needed=vocabulary, banned_ids=())
    policy = build_policy(cfg, plan, CPU)
    critic = build_critic(cfg, policy, CPU)
    kl, penalty = build_controllers(cfg)
    sampling = Sampling(max_new_tokens=cfg.rollout.max_new_tokens, stop_ids=frozenset(stop_ids))
    mode = cfg.reward.normalise
    return Parts(
        learner=build_learner(cfg, policy, critic),
        reference=build_reference(cfg, policy, plan, CPU),
        engine=NativeEngine(
            policy,
            sampling,
            samples_per_prompt=cfg.rollout.samples_per_prompt,
            value_head=critic.head if isinstance(critic, SharedCritic) else None,
        ),
        environment=environment or SingleTurn(),
        reward=ActionReward(value),
        kl=kl,
        penalty=penalty,
        normaliser=ScoreNormaliser("reference" if mode == "reference" else "running") if mode else None,
    )


class ScriptedEngine:
    """An engine that hands out rollouts made by hand, the last one again and again."""

    is_trainer_code = True

    def __init__(self, *rollouts: Rollout) -> None:
        self.rollouts = list(rollouts)
        self.published: list[int] = []

    def rollout(self, prompts: Sequence[Prompt], environment: Environment, *, seed: tuple[int, int]) -> Rollout:
        """The next one."""
        return self.rollouts.pop(0) if len(self.rollouts) > 1 else self.rollouts[0]

    def publish(self, policy: Any, *, version: int) -> None:
        """Note the version."""
        self.published.append(version)


def make_prompts(*tokens: Sequence[int]) -> tuple[Prompt, ...]:
    """Prompts of these ids."""
    return tuple(Prompt(id=f"prompts:{i + 1}", tokens=tuple(ids)) for i, ids in enumerate(tokens))


def make_rollout(
    *rows: tuple[Sequence[int], Sequence[int]],
    stop_reasons: Sequence[StopReason] | None = None,
    logp: Sequence[Sequence[float]] | None = None,
) -> Rollout:
    """A rollout from (given tokens, action tokens); ``logp`` holds the engine's numbers of the action tokens."""
    trajectories = []
    for i, (given, actions) in enumerate(rows):
        trajectories.append(
            Trajectory(
                tokens=(*given, *actions),
                mask=(False,) * len(given) + (True,) * len(actions),
                stop_reason=StopReason.EOS if stop_reasons is None else stop_reasons[i],
                logp=None if logp is None else (0.0,) * len(given) + tuple(logp[i]),
                prompt=Prompt(id=f"prompts:{i + 1}", tokens=tuple(given)),
                group=i,
            )
        )
    return Rollout.of(trajectories)


# ------------------------------------------------------------------------------------------------ whole toy runs

POSITIVE = ("great", "wonderful", "superb", "lovely", "good", "funny", "charming", "clever")
REWARD = f'''
POSITIVE = {POSITIVE!r}

def positive(completions, **_):
    """Share of words that praise."""
    return [sum(w in POSITIVE for w in c.split()) / max(1, len(c.split())) for c in completions]
'''


def toy_run(folder: Path, **sections: Any) -> Config:
    """A toy model, prompts, a reward function and the config of a run on them, all below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "toy").exists():
        make_toy_model(folder / "toy", hidden_size=16, layers=1)
        (folder / "reward.py").write_text(REWARD, encoding="utf-8")
        prompts = [f"Write a one sentence review of {w} film" for w in ("a", "the", "this", "that", "old", "new", "it")]
        lines = [json.dumps({"prompt": [{"role": "user", "content": text}]}) for text in prompts]
        (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    base = {
        "run": {"name": "run", "dir": str(folder / "runs"), "steps": 6, "device": "cpu"},
        "model": {"policy": str(folder / "toy")},
        "reward": {"terms": [{"name": "positive", "target": f"{folder / 'reward.py'}:positive"}]},
        "data": {"prompts": str(folder / "prompts.jsonl")},
        "rollout": {"prompts_per_step": 4, "max_new_tokens": 6},
        "optim": {"policy_lr": 3e-3, "critic_lr": 3e-3},
        "checkpoint": {"every": 2},
        "track": {"samples_every": 3},
    }
    return build_config(merged(base, sections))
