"""Which keys of a config may change when a run is resumed, and which may not. Torch-free.

The rule: a key may change when a run that had the new value from the start would have computed the same steps so far.

* **Free**: where the run lies and ends, when it gives up, what is saved, shown and recorded.
* **Rounding**: how a step is cut for memory and where it is computed. Nothing changes but the last bits: allowed, with
  a warning.
* **Places**: files and folders may have moved. Whether they are the same is for the lineage to say, by their digests.
* Everything else is refused.

How long the run goes is free with a constant learning rate only: the other schedules are stretched over all its steps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import yaml

from surefoot.config import Config, RewardTerm
from surefoot.config.flat import flat
from surefoot.errors import RunFolderError

logger = logging.getLogger("surefoot")

FREE: Final = (
    "run.name",
    "run.dir",
    "run.time_budget_s",
    "checkpoint",
    "track",
    "stop",
    "guard",
    "evaluate.every",
    "sft.publish",
    "reward_model.publish",
    "sample",
    "optim.offload",
    "reward.on_failure",
    "reward.max_failures",
    "reward.timeout_s",
    "critic.token_env",
    "critic.timeout_s",
    "critic.patience_s",
    "data.allow",
    "data.require_card",
    "serve",
    "registry",
    "gateway",
)
ROUNDING: Final = (
    "run.device",
    "batch",
    "rollout.max_rows",
    "rollout.decode_weights",
    "model.gradient_checkpointing",
    "critic.overlap",
)
PLACES: Final = (
    "model.policy",
    "model.reference",
    "critic.init",
    "critic.url",
    "data.prompts",
    "evaluate.prompts",
    "sft.data",
    "sft.held_out",
    "reward_model.data",
    "reward_model.held_out",
    "reward_model.init",
    "reward_model.tasks",
)
LENGTHS: Final = ("run.steps", "sft.steps", "sft.epochs", "reward_model.steps", "reward_model.epochs")
"""How long a run goes: free with a constant rate."""
CALLS: Final = ("token_env", "timeout_s", "patience_s", "rows", "concurrency", "overlap")
"""How a remote term of the reward is called."""

Changes = dict[str, tuple[Any, Any]]


def check_resumed_config(stored_text: str, text: str) -> Changes:
    """Compare the config of a run folder with the one it shall be resumed with.

    Args:
        stored_text, text: both configs as YAML. A key that one of them lacks has its default there.
    Returns:
        every key that differs, with its (stored, new) value.
    Raises:
        RunFolderError: naming every key that must not change.
    """
    stored, new = _flat_config(stored_text), _flat_config(text)
    keys = dict.fromkeys((*stored, *new))
    changes = {k: (stored.get(k), new.get(k)) for k in keys if stored.get(k) != new.get(k)}
    constant = _constant_rate(stored, new)
    refused = {k: v for k, v in changes.items() if not _may_change(k, *v, constant=constant) or _names_check(k, stored)}
    if refused:
        raise RunFolderError(
            "the run was made by another config: " + ", ".join(f"{k} was {a!r}" for k, (a, _) in refused.items()),
            got=", ".join(f"{k}={b!r}" for k, (_, b) in refused.items()),
            allowed="on resume: changes that leave the steps made so far as they are",
            hint="set these keys back, or start another run under another run.name",
        )
    rounding = [k for k in changes if _within(k, ROUNDING)]
    if rounding:
        logger.warning(
            "results may differ in their last bits from an uninterrupted run: %s changed", ", ".join(rounding)
        )
    return changes


def _may_change(key: str, old: Any, new: Any, *, constant: bool) -> bool:
    if key in LENGTHS:
        return constant
    if key.startswith("reward.terms."):
        name = key.split(".", 3)[3]
        if name.endswith("_file"):
            return old is not None and new is not None
        return name in (*CALLS, "report") or (name.split(".")[0] == "target" and _moved_target(old, new))
    if key == "critic.init" and "policy" in (old, new):
        return False
    if _within(key, PLACES):
        return old is not None and new is not None
    return _within(key, (*FREE, *ROUNDING))


def _within(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _names_check(key: str, stored: Mapping[str, Any]) -> bool:
    """Whether a key is the target of a check: a name, no place that could have moved."""
    return key.endswith(".target") and stored.get(f"{key.removesuffix('target')}kind") == "check"


def _moved_target(old: str | None, new: str | None) -> bool:
    """Whether a target is the same function of a file elsewhere, a model's folder elsewhere, or other addresses."""
    addresses = [text is None or text.startswith(("http://", "https://")) for text in (old, new)]
    if all(addresses) or old is None or new is None:
        return all(addresses)
    old_file, old_colon, old_name = old.rpartition(":")
    new_file, new_colon, new_name = new.rpartition(":")
    if old_colon or new_colon:
        return old_name == new_name and old_file.endswith(".py") and new_file.endswith(".py")
    return True


def _constant_rate(*configs: Mapping[str, Any]) -> bool:
    return all(config.get("optim.schedule") == "constant" for config in configs)


def _flat_config(text: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RunFolderError("the stored config.yaml is not valid YAML", got=" ".join(str(error).split())) from error
    if not isinstance(tree, dict):
        raise RunFolderError("the stored config.yaml holds no sections", got=repr(text[:60]))
    return {**flat(Config().model_dump(mode="json")), **flat(_with_whole_terms(tree))}


def _with_whole_terms(tree: dict[str, Any]) -> dict[str, Any]:
    """With every key in each term of the reward: a folder may be older than one of them."""
    reward = tree.get("reward")
    if not isinstance(reward, dict) or not isinstance(reward.get("terms"), list):
        return tree
    default = RewardTerm(name="any", target="any").model_dump(mode="json")
    whole = [{**default, **term} if isinstance(term, dict) else term for term in reward["terms"]]
    return {**tree, "reward": {**reward, "terms": whole}}
