"""PPO for language models: right, resumable, explained; from a laptop's CPU to production.

The public names load on first use, so that importing the package loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.assembly.train import train
    from surefoot.config import Config, load_config
    from surefoot.models.critic import load_critic
    from surefoot.models.policy import load_policy
    from surefoot.records import Prompt, Rollout, Score, StopReason, Trajectory

__version__ = "0.1.0.dev0"

_HOMES = {
    "Config": "surefoot.config",
    "Prompt": "surefoot.records",
    "Rollout": "surefoot.records",
    "Score": "surefoot.records",
    "StopReason": "surefoot.records",
    "Trajectory": "surefoot.records",
    "load_config": "surefoot.config",
    "load_critic": "surefoot.models.critic",
    "load_policy": "surefoot.models.policy",
    "train": "surefoot.assembly.train",
}

__all__ = [
    "Config",
    "Prompt",
    "Rollout",
    "Score",
    "StopReason",
    "Trajectory",
    "__version__",
    "load_config",
    "load_critic",
    "load_policy",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
