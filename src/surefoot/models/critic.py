"""Critics: a value head on a trunk of its own, or on the policy's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from surefoot.errors import ModelError
from surefoot.models.batching import MicroBatch
from surefoot.models.layers import use_kernels
from surefoot.models.load import (
    DTYPES,
    first_line,
    from_pretrained,
    grow_embeddings,
    hidden_states,
    load_model_config,
    read_json,
)
from surefoot.models.lora import CONFIG_FILE, add_adapter, base_of_adapter, is_adapter, merge_adapter
from surefoot.models.policy import CausalPolicy, Lora, enable_checkpointing, has_tokenizer, vocabulary_limits
from surefoot.models.probe import probe
from surefoot.models.quantise import quantise, require_codec
from surefoot.models.scoring import BatchPlan, ValueHead, score_rollout
from surefoot.protocols import Values
from surefoot.records import Rollout

HEAD_FILE = "value_head.safetensors"
POINTER_FILE = "critic.json"
CLASSIFIER = "ForSequenceClassification"


class SeparateCritic:
    """A value function with weights of its own.

    Args:
        trunk: a transformers trunk, adapters injected where they are trained.
        head: from states to values.
        plan: how forward passes are cut.
    """

    shared = False

    def __init__(self, trunk: nn.Module, head: ValueHead, plan: BatchPlan) -> None:
        self.trunk, self.head, self.plan = trunk, head, plan
        self.adapters: Any = None

    def trainable(self) -> dict[str, nn.Parameter]:
        """What training changes, by name."""
        module = self.adapters if self.adapters is not None else self.trunk
        named = {f"trunk.{name}": p for name, p in module.named_parameters() if p.requires_grad}
        return named | {f"head.{name}": p for name, p in self.head.named_parameters()}

    def values(self, rollout: Rollout) -> Values:
        """Values of the states in which tokens were chosen, and after the last token.

        Args:
            rollout: B trajectories.
        Returns:
            ``.values`` ``[B, T]``, 0 off the mask, and ``.after`` ``[B]``.
        """
        scores = score_rollout(self.trunk, rollout, self.plan, value_head=self.head)
        assert scores.values is not None and scores.after is not None
        return Values(scores.values, scores.after)

    def forward(self, batch: MicroBatch) -> Tensor:
        """``[n]`` values of the states in which a micro-batch's n action tokens were chosen, differentiable."""
        out: Tensor = self.head(hidden_states(self.trunk, batch).index_select(0, batch.states))
        return out


class SharedCritic:
    """A value head on the policy's trunk: one forward pass serves both."""

    shared = True

    def __init__(self, policy: CausalPolicy, head: ValueHead) -> None:
        self.policy, self.head = policy, head

    def trainable(self) -> dict[str, nn.Parameter]:
        """The head's parameters; the trunk's are the policy's."""
        return {f"head.{name}": p for name, p in self.head.named_parameters()}

    def values(self, rollout: Rollout) -> Values:
        """As :meth:`SeparateCritic.values`."""
        scores = score_rollout(self.policy.lm.trunk, rollout, self.policy.plan, value_head=self.head)
        assert scores.values is not None and scores.after is not None
        return Values(scores.values, scores.after)


def shared_critic(policy: CausalPolicy, head_from: str | Path | None = None) -> SharedCritic:
    """A value head on a policy's trunk.

    Args:
        policy: whose trunk it sits on.
        head_from: a folder that a critic was saved to, whose head is taken over; None: the head is zero.
    Raises:
        ModelError: the folder has no head, or one that does not fit.
    """
    head = ValueHead(policy.lm.hidden_size)
    if head_from is not None:
        head = _read_head(Path(head_from).expanduser() / HEAD_FILE, policy.lm.hidden_size)
    return SharedCritic(policy, _to_wide(head, policy.lm.device, policy.lm.model.dtype))


def _to_wide(head: ValueHead, device: torch.device, dtype: torch.dtype) -> ValueHead:
    head.to(device=device, dtype=torch.promote_types(dtype, torch.float32))
    return head


def load_critic(
    path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    lora: Lora | None = None,
    plan: BatchPlan | None = None,
    **options: Any,
) -> SeparateCritic:
    """Load a critic from a causal LM, a reward model, an adapter of either, or a folder that a critic was saved to.

    The head comes from ``value_head.safetensors`` if the folder has one, else from the reward model's score layer,
    else it is zero.

    Args:
        path: folder or hub id; an adapter is merged into its base.
        dtype, device, lora, plan: as for :func:`surefoot.models.policy.load_policy`.
        options: ``seed``, ``trust_remote_code``, ``gradient_checkpointing``, ``quantize``, and ``rows_needed``: grow
            the embeddings to this many rows, as the policy's were (read off the tokenizer beside the model when left
            out).
    Raises:
        ModelError: it cannot be loaded, its head does not fit, or its numbers do not agree with the library's.
    """
    if dtype not in DTYPES:
        raise ModelError("unknown dtype", got=dtype, allowed=", ".join(DTYPES))
    folder = os.path.expanduser(path)  # noqa: PTH111 - Path would drop a leading "./"
    seed = int(options.pop("seed", 0))
    checkpointing = bool(options.pop("gradient_checkpointing", False))
    remote = bool(options.pop("trust_remote_code", False))
    kind: str | None = options.pop("quantize", None)
    if kind is not None:
        require_codec(kind)
    head_file = Path(folder) / HEAD_FILE
    folder = _trunk_folder(folder)
    base = base_of_adapter(folder) if is_adapter(folder) else folder
    rows = options.pop("rows_needed", None)
    if rows is None:
        limits = vocabulary_limits(base, folder if has_tokenizer(folder) else base, trust_remote_code=remote)
        rows = limits.get("rows_needed")
    if options:
        raise TypeError(f"load_critic has no option {', '.join(options)}")
    trunk, head = _trunk_and_head(base, folder, dtype, remote)
    if rows is not None:
        grow_embeddings(trunk, rows)
    if head_file.is_file():
        head = _read_head(head_file, trunk.config.get_text_config().hidden_size)
    if kind is not None:
        quantise(trunk, kind, torch.device(device))
    trunk.to(device).eval().requires_grad_(False)
    use_kernels(trunk)
    probe(trunk, trunk)
    trunk.requires_grad_(lora is None and kind is None)
    critic = SeparateCritic(trunk, _to_wide(head, torch.device(device), trunk.dtype), plan or BatchPlan())
    if lora is not None:
        critic.adapters = add_adapter(trunk, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
    if checkpointing:
        enable_checkpointing(trunk)
    return critic


def _trunk_folder(folder: str) -> str:
    """Where the trunk is: a shared critic's folder names the policy that it belongs to."""
    pointer = Path(folder) / POINTER_FILE
    if not pointer.is_file():
        return folder
    return str((Path(folder) / str(read_json(pointer).get("trunk"))).resolve())


def _trunk_and_head(base: str, folder: str, dtype: str, remote: bool) -> tuple[Any, ValueHead]:
    """The trunk in ``base``, merged with the adapter in ``folder`` if that is another one, and the head they bring."""
    config = load_model_config(base, trust_remote_code=remote)
    options: dict[str, Any] = {"dtype": DTYPES[dtype], "trust_remote_code": remote}
    scored = any(name.endswith(CLASSIFIER) for name in getattr(config, "architectures", None) or [])
    if base != folder:
        # Adapters name their layers as the whole model does, so they are merged into that, not into the trunk.
        scored = scored or read_json(Path(folder) / CONFIG_FILE).get("task_type") == "SEQ_CLS"
        if not scored:
            model = merge_adapter(from_pretrained(AutoModelForCausalLM, base, **options), folder)
            return model.base_model, ValueHead(_width(model))
    if not scored:
        trunk = from_pretrained(AutoModel, base, **options)
        return trunk, ValueHead(_width(trunk))
    if base != folder:
        options |= {"num_labels": 1, "may_miss": ("score.",)}
    model = from_pretrained(AutoModelForSequenceClassification, base, **options)
    if base != folder:
        model = merge_adapter(model, folder)
    if model.config.num_labels != 1:
        raise ModelError("a critic can only start from a reward model with one label", got=model.config.num_labels)
    score = getattr(model, "score", None)
    if not isinstance(score, nn.Linear):
        raise ModelError("the reward model's score layer is not a linear one", got=type(model).__name__)
    head = ValueHead(score.weight.shape[1], bias=score.bias is not None)
    head.to(torch.promote_types(score.weight.dtype, torch.float32)).load_state_dict(score.state_dict())
    return model.base_model, head


def _width(model: Any) -> int:
    return int(model.config.get_text_config().hidden_size)


def _read_head(file: Path, hidden_size: int) -> ValueHead:
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError("the value head could not be read", got=f"{file} ({first_line(error)})") from error
    if set(tensors) - {"weight", "bias"} or tuple(tensors.get("weight", torch.zeros(0)).shape) != (1, hidden_size):
        shapes = {name: tuple(t.shape) for name, t in tensors.items()}
        raise ModelError("the value head does not fit the trunk", got=shapes, allowed=f"weight (1, {hidden_size})")
    head = ValueHead(hidden_size, bias="bias" in tensors)
    head.to(tensors["weight"].dtype).load_state_dict(tensors)
    return head
