"""The models that a run holds in memory, by role, and what each keeps there all the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from surefoot.assembly.model_shape import ModelShape, shape_of
from surefoot.assembly.models import critic_source
from surefoot.config import Config
from surefoot.errors import ModelError
from surefoot.models.load import DTYPES, load_model_config, read_json
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.quantise import stored_bytes

POLICY, CRITIC, VALUE_HEAD, REFERENCE, REWARD = "policy", "critic", "value head", "reference", "reward"


@dataclass(frozen=True)
class Role:
    """Bytes that a role needs: its weights, and where it is trained gradients and Adam's two moments.

    Attributes:
        parameters, gradients: bytes.
        offloaded: the moments are in the machine's memory, and the role on a GPU.
    """

    parameters: int
    gradients: int = 0
    offloaded: bool = False

    @property
    def optimizer(self) -> int:
        """Bytes of the moments where the role is."""
        return 0 if self.offloaded else 2 * self.gradients

    def as_json(self) -> dict[str, int]:
        """The three parts."""
        return {"parameters": self.parameters, "gradients": self.gradients, "optimizer": self.optimizer}


@dataclass(frozen=True)
class Lora:
    """The adapters that a role trains.

    Attributes:
        rank: of each.
        targets: where they are.
        copies: how many are held: the trained one, and perhaps the one that it started from.
    """

    rank: int
    targets: str | list[str]
    copies: int = 1

    def parameters(self, shape: ModelShape) -> int:
        """Parameters of one adapter: two matrices at each adapted layer."""
        return self.rank * sum(map(sum, shape.adapted(self.targets)))


def width_of(config: Config) -> int:
    """Bytes of a weight."""
    return int(DTYPES[config.model.dtype].itemsize)


def lora_of(config: Config, role: str) -> Lora | None:
    """What a role trains instead of all its weights; a critic starts with any adapter merged."""
    if config.model.lora is not None:
        return Lora(config.model.lora.rank, config.model.lora.targets)
    folder = str(config.model.policy)
    if role != POLICY or not is_adapter(folder):
        return None
    saved = read_json(Path(folder) / "adapter_config.json")
    rank, targets = saved.get("r", 8), saved.get("target_modules") or "all-linear"
    names = [targets] if isinstance(targets, str) else targets
    if not isinstance(rank, int) or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(
            "the adapter's config could not be read",
            got=f"{folder} (r: {rank!r}, target_modules: {targets!r})",
            allowed="a whole number, and a list of module names",
            hint="correct adapter_config.json",
        )
    return Lora(rank, targets, copies=2)


def shapes_of(config: Config, model_config: Any) -> dict[str, ModelShape]:
    """Every model by its role; a value head has the shape of the trunk that it sits on.

    Args:
        config: the run.
        model_config: the policy's transformers config.
    Raises:
        ModelError: a critic, reference or reward model is not there.
    """
    remote = config.model.trust_remote_code
    policy = shape_of(model_config, trust_remote_code=remote)

    def of(source: str) -> ModelShape:
        if source == config.model.policy:
            return policy
        base = base_of_adapter(source) if is_adapter(source) else source
        return shape_of(load_model_config(base, trust_remote_code=remote), trust_remote_code=remote)

    shapes = {POLICY: policy}
    if config.critic.kind == "shared":
        shapes[VALUE_HEAD] = policy
    elif config.critic.url is None:
        shapes[CRITIC] = of(critic_source(config))
    if config.model.reference is not None or lora_of(config, POLICY) is None:
        shapes[REFERENCE] = of(config.model.reference or str(config.model.policy))
    return shapes | {f"{REWARD} {t.name}": of(t.place) for t in config.reward.terms if t.kind == "model"}


def roles_of(config: Config, shapes: Mapping[str, ModelShape], device: torch.device) -> dict[str, Role]:
    """What each role keeps in a device's memory."""
    away = config.optim.offload and device.type == "cuda"
    return {name: replace(role_of(config, name, shape), offloaded=away) for name, shape in shapes.items()}


def role_of(config: Config, name: str, shape: ModelShape) -> Role:
    """What a role keeps in memory."""
    width = width_of(config)
    wide = max(width, 4)  # value heads and adapters are in float32 at least
    head = shape.hidden * wide
    if name == VALUE_HEAD:
        return Role(head, head)
    if name == REFERENCE:
        return Role(shape.parameters * width - _saved_by_quantising(config, shape))
    if name.startswith(REWARD):
        return Role((shape.trunk + shape.hidden) * width)
    critic = name == CRITIC
    weights, extra = (shape.trunk if critic else shape.parameters) * width, head if critic else 0
    weights -= _saved_by_quantising(config, shape)
    lora = lora_of(config, name)
    if lora is None:
        return Role(weights + extra, weights + extra)
    adapter = lora.parameters(shape) * wide
    return Role(weights + lora.copies * adapter + extra, adapter + extra)


def _saved_by_quantising(config: Config, shape: ModelShape) -> int:
    kind, width = config.model.quantize, width_of(config)
    if kind is None:
        return 0
    return sum(
        outputs * inputs * width - stored_bytes(kind, outputs, inputs, width) for outputs, inputs in shape.maps.values()
    )


def made_for_use(config: Config, shape: ModelShape) -> int:
    """Bytes of the largest weight that is made anew for each use; 0 where none is."""
    if config.model.quantize is None:
        return 0
    return max((outputs * inputs for outputs, inputs in shape.maps.values()), default=0) * width_of(config)


def in_full(config: Config, shape: ModelShape) -> int:
    """Bytes of a model as it is in files: not quantised."""
    return shape.parameters * width_of(config)
