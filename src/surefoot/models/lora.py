"""Low-rank adapters through peft: added to a model, loaded from a folder, switched off, saved, merged."""

from __future__ import annotations

import copy
import difflib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import get_peft_model_state_dict
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from surefoot.errors import ModelError
from surefoot.models.load import CausalLM, first_line, read_json
from surefoot.models.quantise import QuantisedLinear

ACTIVE = "default"
START = "start"
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MERGE_HINT = "set model.lora to merge an existing adapter and train fresh ones on top"


def is_adapter(folder: str) -> bool:
    """Whether a folder holds a LoRA adapter rather than a whole model."""
    return (Path(folder) / CONFIG_FILE).is_file()


def base_of_adapter(folder: str) -> str:
    """The base model an adapter was made for; a relative path counts from the adapter's folder."""
    base = read_json(Path(folder) / CONFIG_FILE).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError("the adapter does not say which base model it is for", got=folder)
    try:
        beside = (Path(folder) / base).resolve()
        return str(beside) if beside.is_dir() else base
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a link to itself
        raise ModelError(
            "the adapter's base model cannot be a path",
            got=f"{folder} ({first_line(error)[:100]})",
            hint="correct base_model_name_or_path in adapter_config.json",
        ) from error


def add_adapter(model: Any, *, rank: int, alpha: float, targets: str | list[str], seed: int) -> Any:
    """Put fresh adapters into a model; B is zero, so that nothing changes until they are trained.

    Args:
        model: a transformers model; its own weights stay frozen.
        rank, alpha, targets: as in the config's ``model.lora``.
        seed: of the adapters' random half.
    Raises:
        ModelError: one of the targets matches no module, or the output layer does.
    """
    _refuse_unknown_targets(model, targets)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    head = model.get_output_embeddings()
    with torch.random.fork_rng(devices=[]), _quiet_peft():
        torch.manual_seed(seed)
        try:
            adapted = get_peft_model(model, config)
        except ValueError as error:
            raise ModelError(
                "adapters cannot be put into the model", got=f"targets {targets!r} ({first_line(error)})"
            ) from error
    _refuse_adapted_head(model, head, "model.lora.targets")
    adapted.eval()
    return adapted


def _refuse_unknown_targets(model: Any, targets: str | list[str]) -> None:
    """peft is content when any of the names matches; a misspelt one would be left out in silence."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()} | {name for name, _ in model.named_modules()}
    whole = [name for name, _ in model.named_modules()]
    for target in [] if isinstance(targets, str) else targets:
        if not any(name == target or name.endswith(f".{target}") for name in whole):
            near = difflib.get_close_matches(target, sorted(names - {""}), n=1)
            raise ModelError(
                "no module of the model has the name of a LoRA target",
                got=f"model.lora.targets: {target}",
                hint=f"did you mean {near[0]}?" if near else "all-linear takes every linear layer",
            )


def load_adapter(lm: CausalLM, folder: str) -> None:
    """Load a trainable adapter, and once more frozen: the starting policy, which KL is measured against.

    Raises:
        ModelError: the adapter is not LoRA, not safetensors, not whole, or changes the output layer.
    """
    lm.adapters = _open_adapter(lm.model, folder, trainable=True)
    if any(isinstance(module, AuxiliaryTrainingWrapper) for module in lm.model.modules()):
        raise ModelError("the adapter trains whole modules besides low-rank ones", got=folder, hint=MERGE_HINT)
    _refuse_adapted_head(lm.model, lm.head.layer, f"the adapter in {folder}")
    with _quiet_peft():
        lm.adapters.load_adapter(folder, adapter_name=START, is_trainable=False)
    lm.adapters.set_adapter(ACTIVE)
    lm.adapters.eval()


def merge_adapter(model: Any, folder: str) -> Any:
    """A model with an adapter folded into its weights.

    Raises:
        ModelError: the adapter is not LoRA, not safetensors, or not whole.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    if tied:
        # An adapter on one of the two would be merged into both.
        head.weight = nn.Parameter(head.weight.detach().clone())
    with _quiet_peft():
        merged = _open_adapter(model, folder, trainable=False).merge_and_unload()
    if tied:
        head, embedding = merged.get_output_embeddings(), merged.get_input_embeddings()
        if torch.equal(head.weight, embedding.weight):
            head.weight = embedding.weight
        else:
            merged.config.tie_word_embeddings = merged.config.get_text_config().tie_word_embeddings = False
    return merged


def _open_adapter(model: Any, folder: str, *, trainable: bool) -> Any:
    kind = read_json(Path(folder) / CONFIG_FILE).get("peft_type")
    if kind != "LORA":
        raise ModelError("only LoRA adapters can be used", got=f"{folder} ({kind})")
    file = Path(folder) / WEIGHTS_FILE
    if not file.is_file():
        raise ModelError(f"the adapter has no {WEIGHTS_FILE}", got=folder, hint="pickled weights are refused")
    try:
        with safe_open(file, framework="pt") as tensors:
            stored = set(tensors.keys())
        with _quiet_peft():
            adapted = PeftModel.from_pretrained(model, folder, adapter_name=ACTIVE, is_trainable=trainable)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError("the adapter could not be loaded", got=f"{folder} ({first_line(error)})") from error
    # What peft does not find stays as it was made, random or zero, with nothing but a warning.
    missing = sorted(set(get_peft_model_state_dict(adapted, save_embedding_layers=False)) - stored)
    if missing:
        raise ModelError(
            f"{len(missing)} weights of the adapter are not in its file",
            got=", ".join(missing[:3]),
            hint="the adapter was made for another base model, or its file is incomplete",
        )
    return adapted


def _refuse_adapted_head(model: Any, head: Any, culprit: str) -> None:
    """Log-probabilities read the output layer's own weight; an adapter on it would be trained by nothing."""
    if model.get_output_embeddings() is not head:
        raise ModelError(
            "adapters on the output layer are not supported",
            got=culprit,
            hint=f"leave it out of the targets; {MERGE_HINT}",
        )


@contextmanager
def starting_policy(adapters: Any) -> Iterator[None]:
    """Within this block the model is the policy that training started from."""
    if START not in adapters.peft_config:
        with adapters.disable_adapter():
            yield
        return
    try:
        # Choosing an adapter makes it trainable unless told otherwise; the starting one must never be.
        adapters.set_adapter(START, inference_mode=True)
        yield
    finally:
        adapters.set_adapter(ACTIVE)


def save_adapter(adapters: Any, folder: Path, base: str) -> None:
    """Write the trained adapter in peft's format.

    Args:
        adapters: with the active adapter.
        folder: where to.
        base: the model it belongs to, by absolute path or hub id.
    """
    config = adapters.peft_config[ACTIVE]
    before = config.base_model_name_or_path
    config.base_model_name_or_path = base
    try:
        with _quiet_peft():
            adapters.save_pretrained(folder, selected_adapters=[ACTIVE], save_embedding_layers=False)
    finally:
        config.base_model_name_or_path = before


def merged_tensors(model: Any) -> dict[str, Tensor]:
    """A model's tensors by name with the active adapter folded in; the model stays exactly as it is.

    Only layers with an adapter are copied, one at a time. Quantised layers come out as plain ones, with the weights
    that they compute with.
    """
    out: dict[str, Tensor] = {}
    owned: list[str] = []
    for name, module in model.named_modules():
        adapted = isinstance(module, BaseTunerLayer)
        if (adapted or isinstance(module, QuantisedLinear)) and not name.startswith(tuple(owned)):
            part = _merged_layer(module) if adapted else _plain_layer(module)
            owned.append(f"{name}.")
            out |= {f"{name}.{key}": tensor.detach() for key, tensor in part.items()}
    rest = model.state_dict()
    return {name: tensor for name, tensor in rest.items() if not name.startswith(tuple(owned))} | out


@torch.no_grad()
def _merged_layer(module: Any) -> dict[str, Tensor]:
    """Weight and bias of an adapted layer, the active adapter folded in."""
    with _quiet_peft():
        if isinstance(module.get_base_layer(), QuantisedLinear):
            return _plain_layer(module.get_base_layer(), module.get_delta_weight(ACTIVE))
        layer: Any = copy.deepcopy(module)
        layer.merge(adapter_names=[ACTIVE])
    tensors: dict[str, Tensor] = layer.get_base_layer().state_dict()
    return tensors


@torch.no_grad()
def _plain_layer(layer: QuantisedLinear, change: Tensor | None = None) -> dict[str, Tensor]:
    """Weight and bias of a quantised layer, with an adapter's change of the weight."""
    bias = {} if layer.bias is None else {"bias": layer.bias}
    return {"weight": layer.in_file(change), **bias}


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """peft warns of what is checked here or set right by itself (fan_in_fan_out, keys, deprecations of others)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
