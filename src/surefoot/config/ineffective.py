"""Settings that were made and change nothing: each with what it waits for. Torch-free.

They are no error, since a key may be kept for later; but a user who set one expects it to act.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from surefoot.config.sections import RewardTerm
from surefoot.config.tree import Config


class _Rule(NamedTuple):
    """Keys that do not what they seem to while ``idle`` holds, and what there is to say of them."""

    keys: tuple[str, ...]
    idle: Callable[[Config], bool]
    what: str


_EVALUATION: Final = tuple(
    f"evaluate.{key}"
    for key in ("every", "max_prompts", "samples_per_prompt", "temperature", "top_k", "top_p", "max_new_tokens", "seed")
)
_REMOTE: Final = ("token_env", "timeout_s", "patience_s", "rows", "concurrency", "overlap")
_RULES: Final = (
    _Rule(_EVALUATION, lambda c: c.evaluate.prompts is None, "has no effect: evaluate.prompts is not set"),
    _Rule(
        ("evaluate.every",),
        lambda c: c.evaluate.prompts is not None and c.run.steps is not None and c.evaluate.every > c.run.steps,
        "has no effect: the run has fewer steps",
    ),
    _Rule(
        ("evaluate.top_k", "evaluate.top_p"),
        lambda c: c.evaluate.prompts is not None and c.evaluate.temperature == 0,
        "has no effect: evaluate.temperature: 0 is greedy",
    ),
    _Rule(
        ("ppo.missing_eos_penalty",),
        lambda c: c.ppo.cut_off != "penalise",
        "has no effect: ppo.cut_off is not penalise",
    ),
    _Rule(
        ("ppo.surrogate_kl.coef", "ppo.surrogate_kl.target"),
        lambda c: c.ppo.surrogate == "clip",
        "has no effect: ppo.surrogate is not kl",
    ),
    _Rule(
        ("ppo.clip_low", "ppo.clip_high", "ppo.dual_clip"),
        lambda c: c.ppo.surrogate == "kl",
        "has no effect: ppo.surrogate: kl clips nothing",
    ),
    _Rule(
        ("ppo.kl.target", "ppo.kl.horizon"),
        lambda c: c.ppo.kl.controller == "fixed",
        "has no effect: ppo.kl.controller is fixed",
    ),
    _Rule(
        ("ppo.kl.controller",),
        lambda c: c.ppo.kl.coef == 0,
        "has no effect: it multiplies ppo.kl.coef, which is 0 and stays 0",
    ),
    _Rule(
        ("reward.max_failures",),
        lambda c: c.reward.on_failure == "stop",
        "has no effect: reward.on_failure: stop allows none",
    ),
    _Rule(
        ("critic.token_env", "critic.timeout_s", "critic.patience_s", "critic.overlap"),
        lambda c: c.critic.url is None,
        "has no effect: critic.url is not set",
    ),
    _Rule(
        ("checkpoint.every",),
        lambda c: c.run.steps is not None and c.checkpoint.every > c.run.steps,
        "has no effect: the run has fewer steps, and saves at its end anyway",
    ),
    _Rule(
        ("rollout.decode_weights",),
        lambda c: c.model.dtype in ("bfloat16", "float16"),
        "has no effect: in half precision the layers' own weights are used anyway",
    ),
    _Rule(
        ("optim.offload",),
        lambda c: c.run.device == "cpu",
        "has no effect: on a CPU the moments are in the machine's memory anyway",
    ),
    _Rule(
        ("optim.warmup_steps",),
        lambda c: 0 < c.optimizer_steps < c.optim.warmup_steps,
        "is more than the run has optimizer steps: the learning rate never reaches its full value",
    ),
)


def ineffective(config: Config) -> list[str]:
    """A sentence for each setting that differs from its default and has no effect in this config."""
    defaults = Config()
    found = []
    for rule in _RULES:
        if not rule.idle(config):
            continue
        for key in rule.keys:
            value = _value(config, key)
            if value != _value(defaults, key):
                found.append(f"{key}: {value} {rule.what}")
    return found + _of_terms(config)


def _of_terms(config: Config) -> list[str]:
    found = []
    for number, term in enumerate(config.reward.terms):
        for key in _REMOTE if term.kind != "remote" else ():
            value = getattr(term, key)
            if value != RewardTerm.model_fields[key].default:
                found.append(f"reward.terms.{number}.{key}: {value} has no effect: kind is not remote")
    return found


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
