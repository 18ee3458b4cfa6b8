"""What is wrong with a config, in words: each fault once, unknown keys with the one that was meant. Torch-free."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from surefoot.config.tree import Config

KNOWN_ELSEWHERE: Final = {
    "learning_rate": "optim.policy_lr",
    "lr": "optim.policy_lr",
    "critic_learning_rate": "optim.critic_lr",
    "clip_range": "ppo.clip_low and ppo.clip_high",
    "cliprange": "ppo.clip_low and ppo.clip_high",
    "clip_eps": "ppo.clip_low and ppo.clip_high",
    "cliprange_value": "ppo.value_clip",
    "vf_coef": "ppo.value_coef",
    "kl_coef": "ppo.kl.coef",
    "init_kl_coef": "ppo.kl.coef",
    "beta": "ppo.kl.coef",
    "target_kl": "ppo.max_update_kl",
    "batch_size": "rollout.prompts_per_step",
    "num_ppo_epochs": "ppo.epochs",
    "num_mini_batches": "ppo.minibatches",
    "response_length": "rollout.max_new_tokens",
    "total_episodes": "run.steps",
    "num_train_epochs": "run.steps",
    "output_dir": "run.dir",
    "save_steps": "checkpoint.every",
    "eval_steps": "evaluate.every",
}
"""What users of other trainers type, and where it lives here."""

HINTS: Final = {
    "rollout.temperature": "greedy decoding is for evaluation (evaluate.temperature: 0); training needs samples",
    "run.name": "use letters, digits, dots, dashes and underscores, as in run.name: first-try",
    "run.device": "run.device: auto takes a GPU if there is one",
    "critic.token_env": "name an environment variable that holds the token, not the token itself",
    "serve.token_env": "name an environment variable that holds the token, not the token itself",
}
"""What helps where a value alone does not say it."""

Location = tuple[str | int, ...]


def known_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterable[str]:
    """Every key of the tree as a dotted path, sections included."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        yield path
        for nested in _models_in(field.annotation):
            yield from known_keys(nested, f"{path}.")


def _models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            yield candidate


def describe(error: ValidationError) -> tuple[list[str], list[str]]:
    """Faults and hints in words; a value that fits none of several alternatives is one fault."""
    known = frozenset(known_keys())
    unknown: list[str] = []
    faults: dict[str, dict[str, None]] = {}
    shown: dict[str, str] = {}
    hints: dict[str, None] = {}
    for one in error.errors():
        if one["type"] == "extra_forbidden":
            place = ".".join(map(str, one["loc"]))
            unknown.append(f"unknown key {place!r}{_suggestion(one['loc'], known)}")
            continue
        place = _place(one["loc"], known)
        message, _, hint = _worded(one["type"], one["msg"]).partition("; hint: ")
        faults.setdefault(place, {})[message] = None
        value = repr(one["input"])
        shown[place] = f" (got {value})" if len(value) < 80 and one["type"] != "value_error" else ""
        if hint or place in HINTS:
            hints[hint or HINTS[place]] = None
    worded = [f"{place}: {' or '.join(messages)}{shown[place]}" for place, messages in faults.items()]
    return unknown + worded, list(hints)


def _place(location: Location, known: frozenset[str]) -> str:
    """Where in the config; the name of the alternative that was tried, which the library adds, is left off."""
    for length in range(len(location), 0, -1):
        if ".".join(part for part in location[:length] if isinstance(part, str)) in known:
            index = [part for part in location[length:] if isinstance(part, int)]
            return ".".join(map(str, [*location[:length], *index]))
    return ".".join(map(str, location)) or "config"


def _worded(kind: str, message: str) -> str:
    if kind in ("model_type", "dict_type"):
        return "must be a section with keys of its own"
    if kind == "missing":
        return "is missing"
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _suggestion(location: Location, known: frozenset[str]) -> str:
    key = str(location[-1])
    section = ".".join(part for part in location[:-1] if isinstance(part, str))
    inside = {path.rpartition(".")[2]: path for path in sorted(known) if path.rpartition(".")[0] == section}
    leaves: dict[str, list[str]] = {}
    for path in sorted(known):
        leaves.setdefault(path.rpartition(".")[2], []).append(path)
    if key in known:
        return f", write it as sections: {key.replace('.', ': {')}: ...{'}' * key.count('.')}"
    alias = KNOWN_ELSEWHERE.get(key.lower())
    if alias is not None and section and alias.startswith(f"{section}."):
        return f", it is called {alias} here"
    if key in leaves:
        return f", it belongs to {' or '.join([*([] if alias is None else [alias]), *leaves[key]][:3])}"
    # A misspelling in the right section is likelier than a misplaced key, another trainer's name likelier than both.
    if near := _near(key, KNOWN_ELSEWHERE, 0.9):
        return f", it is called {KNOWN_ELSEWHERE[near]} here"
    if near := _near(key, inside, 0.6):
        return f", did you mean {inside[near]}?"
    if near := _near(key, leaves, 0.6):
        return f", did you mean {' or '.join(leaves[near][:3])}?"
    return f", known here: {', '.join(inside)}" if inside else ""


def _near(key: str, names: Iterable[str], cutoff: float) -> str | None:
    found: Sequence[str] = difflib.get_close_matches(key.lower(), list(names), n=1, cutoff=cutoff)
    return found[0] if found else None
