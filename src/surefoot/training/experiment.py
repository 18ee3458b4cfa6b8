"""``experiment.yaml``: the experiment on one page, filled from config and lineage. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from surefoot.config import Config
from surefoot.records import Lineage
from surefoot.training.durable import write_file, writing


def experiment_page(config: Config, lineage: Lineage) -> dict[str, Any]:
    """What was trained, from what, against what; null where there is no such stage.

    Besides the usual keys each input has its ``sha256``; reward functions, checks and ratings stand under
    ``reward_functions``.
    """
    inputs = lineage.inputs
    policy = inputs.get("policy", {})
    base = inputs.get("base", policy)
    functions = {t.name: t.place for t in config.reward.terms if t.kind not in ("model", "remote")}
    models = [_checkpoint(t.place, inputs.get(f"reward/{t.name}")) for t in config.reward.terms if t.kind == "model"]
    clip = (config.ppo.clip_low, config.ppo.clip_high)
    return {
        "experiment": {
            "name": config.run.name,
            "base_model": {
                "name": base.get("path", config.model.policy),
                "revision": base.get("revision") or base.get("sha256"),
            },
            "sft": _checkpoint(inputs["sft"].get("path"), inputs["sft"]) if "sft" in inputs else {"checkpoint": None},
            "reward_model": (models if len(models) > 1 else models[0]) if models else {"checkpoint": None},
            "reward_functions": functions or None,
            "reference_policy": _checkpoint(
                config.model.reference or config.model.policy, inputs.get("reference", policy)
            ),
            "ppo": {
                "clip_range": clip[0] if clip[0] == clip[1] else list(clip),
                "kl_coefficient": config.ppo.kl.coef,
                "learning_rate": config.optim.policy_lr,
                "epochs": config.ppo.epochs,
            },
            "evaluation": {
                "dataset": config.evaluate.prompts,
                "sha256": inputs.get("evaluate", {}).get("sha256"),
            },
        }
    }


def _checkpoint(place: str | None, found: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"checkpoint": place, "sha256": (found or {}).get("sha256")}


def write_experiment(path: Path, config: Config, lineage: Lineage) -> None:
    """Write ``experiment.yaml`` whole; RunError when that fails."""
    text = yaml.safe_dump(experiment_page(config, lineage), sort_keys=False, allow_unicode=True)
    with writing(path):
        write_file(path, text.encode())
