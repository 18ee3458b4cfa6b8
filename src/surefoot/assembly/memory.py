"""How much memory a run will need, from the model's config alone: an estimate, and what the machine has.

Weights, gradients and optimizer state are counted; cache and activations are approximated by the formulas below.
Nothing is loaded: models are made without storage.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from surefoot.assembly.models import critic_source
from surefoot.config import Config
from surefoot.models.load import DTYPES, load_model_config, read_json
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.output_head import CHUNK_BYTES

PROCESS_BYTES: Final = 600 * 10**6
"""Python, torch and transformers before any model."""
SAMPLING_BYTES: Final = 32
"""Per row and vocabulary entry while a token is drawn: logits, probabilities, and their sum in float64."""


@dataclass(frozen=True)
class Size:
    """A model in numbers: all parameters, those that are trained, and the bytes of one."""

    parameters: int
    trained: int
    width: int

    @property
    def fixed(self) -> int:
        """Bytes of weights, gradients, and Adam's two moments."""
        return self.width * (self.parameters + 3 * self.trained)


@dataclass(frozen=True)
class Estimate:
    """Bytes by what needs them; ``rollout`` and ``update`` come and go, the larger one counts."""

    fixed: Mapping[str, int]
    rollout: int
    update: int
    checkpoint: int
    model: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The most at one time."""
        return sum(self.fixed.values()) + max(self.rollout, self.update)


def estimate_memory(config: Config, model_config: Any, longest_prompt: int) -> Estimate:
    """Estimate the memory of a run.

    Args:
        config: the run.
        model_config: the policy's transformers config.
        longest_prompt: in tokens.
    """
    width = DTYPES[config.model.dtype].itemsize
    policy = _policy_size(config, model_config, width)
    critic = _critic_size(config, model_config, width)
    copies = config.model.reference is not None or policy.trained == policy.parameters
    rewards = sum(_parameters(term.target) * 4 for term in config.reward.terms if term.kind == "model")
    fixed = {
        "process": PROCESS_BYTES,
        "policy": policy.fixed,
        "critic": critic.fixed,
        "reference": policy.parameters * width if copies else 0,
        "reward models": rewards,
    }
    trained = policy.trained + critic.trained
    return Estimate(
        fixed=fixed,
        rollout=_rollout_bytes(config, model_config, longest_prompt, width),
        update=_update_bytes(config, model_config, longest_prompt, width),
        checkpoint=3 * trained * width,
        model=policy.parameters * width,
        counts={"parameters": policy.parameters, "trained": trained},
    )


def _policy_size(config: Config, model_config: Any, width: int) -> Size:
    model = _shape_of(model_config)
    parameters = _count(model)
    policy = config.model.policy
    if config.model.lora is not None:
        adapter = _adapter_parameters(model, config.model.lora.rank, config.model.lora.targets)
        return Size(parameters + adapter, adapter, width)
    if policy is not None and is_adapter(policy):
        saved = read_json(Path(policy) / "adapter_config.json")
        adapter = _adapter_parameters(model, int(saved.get("r", 8)), saved.get("target_modules") or "all-linear")
        return Size(parameters + 2 * adapter, adapter, width)
    return Size(parameters, parameters, width)


def _critic_size(config: Config, model_config: Any, width: int) -> Size:
    if config.critic.kind == "shared":
        return Size(0, 0, width)
    source = critic_source(config)
    if source != config.model.policy:
        base = base_of_adapter(source) if is_adapter(source) else source
        model_config = load_model_config(base, trust_remote_code=config.model.trust_remote_code)
    trunk = _shape_of(model_config).base_model
    parameters = _count(trunk)
    if config.model.lora is None:
        return Size(parameters, parameters, width)
    adapter = _adapter_parameters(trunk, config.model.lora.rank, config.model.lora.targets)
    return Size(parameters + adapter, adapter, width)


def _shape_of(model_config: Any) -> Any:
    """The model without storage: shapes only."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(model_config)


def _parameters(folder: str) -> int:
    return _count(_shape_of(load_model_config(folder)))


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _adapter_parameters(model: Any, rank: int, targets: str | list[str]) -> int:
    """Parameters of LoRA's two matrices at each adapted layer."""
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    total = 0
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, Conv1D)) or module is output:
            continue
        if targets == "all-linear" or any(name == t or name.endswith(f".{t}") for t in targets):
            total += rank * sum(module.weight.shape)
    return total


def _rollout_bytes(config: Config, model_config: Any, longest_prompt: int, width: int) -> int:
    """The KV cache of the rows decoded at once, and what drawing a token takes."""
    text = model_config.get_text_config()
    rows = min(config.rollout.max_rows or config.rows_per_step, config.rows_per_step)
    heads = int(text.num_attention_heads)
    per_head = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    length = longest_prompt + config.rollout.max_new_tokens
    cache = rows * length * int(text.num_hidden_layers) * 2 * kv_heads * per_head * width
    return cache + rows * int(text.vocab_size) * SAMPLING_BYTES


def _update_bytes(config: Config, model_config: Any, longest_prompt: int, width: int) -> int:
    """Activations of one micro-batch, and the chunk of logits.

    Per token and layer a transformer of width H and feed-forward width F keeps about 12 H + 4 F numbers for the
    backward pass; with gradient checkpointing H, and one layer in full.
    """
    text = model_config.get_text_config()
    hidden = int(text.hidden_size)
    inner = int(getattr(text, "intermediate_size", None) or 4 * hidden)
    length = longest_prompt + config.rollout.max_new_tokens
    rows = -(-config.rows_per_step // config.ppo.minibatches)
    tokens = min(max(config.batch.tokens, length), rows * length)
    per_layer = 12 * hidden + 4 * inner
    layers = int(text.num_hidden_layers)
    kept = layers * hidden + per_layer if config.model.gradient_checkpointing else layers * per_layer
    return tokens * kept * width + 4 * CHUNK_BYTES


def memory_of(device: torch.device) -> tuple[int, int]:
    """(bytes free now, bytes in all) of a GPU, or of this machine as far as this process may use it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    fields = _meminfo()
    total = fields.get("MemTotal", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    free = fields.get("MemAvailable", total)
    limit, used = _container_limit()
    if limit is not None and limit < total:
        return min(free, max(limit - used, 0)), limit
    return free, total


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs if rest.split()[:1]}


def _container_limit() -> tuple[int | None, int]:
    """The control group's limit and what it uses, where there is one (version 2, then version 1)."""
    root = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return int((root / limit).read_text()), int((root / used).read_text())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return None, 0


def free_disk(folder: Path) -> int:
    """Bytes free where a folder is or will be."""
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
