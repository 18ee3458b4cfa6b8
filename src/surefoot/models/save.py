"""Writing what was trained as Hugging Face folders that load anywhere, proved by loading them.

The live models are only read: adapters are folded into copies of single layers, and whatever the library changes in a
config while it saves is put back.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig

from surefoot.errors import CheckpointError, ModelError
from surefoot.models.batching import MicroBatch, lay_out
from surefoot.models.critic import HEAD_FILE, POINTER_FILE, SeparateCritic, SharedCritic, load_critic
from surefoot.models.load import context_length, first_line, load_causal_lm, quiet_library
from surefoot.models.lora import merged_tensors, save_adapter
from surefoot.models.output_head import HeadSettings, OutputHead
from surefoot.models.policy import CausalPolicy
from surefoot.records import Rollout, Trajectory

logger = logging.getLogger("surefoot")

ADAPTER_FOLDER = "adapter"
CARD_FILE = "README.md"
PROBE_LENGTH = 16

# Largest distance of the reloaded numbers, relative to the largest: merging an adapter rounds each weight once more.
_MAY_DIFFER = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}


def save_policy(policy: CausalPolicy, folder: Path, *, save_tokenizer: Callable[[str], None] | None, card: str) -> None:
    """Write a policy as a standard Hugging Face folder, load it again and compare.

    Holds ``config.json``, ``generation_config.json``, safetensors (adapters merged), the tokenizer, ``README.md``, and
    under ``adapter/`` the adapter alone in peft's format. An adapter that was trained on top of a merged one is of no
    use without that, so it is left out. An existing folder is replaced once the new one is whole.

    Args:
        policy: not changed.
        folder: where to.
        save_tokenizer: writes the tokenizer into a folder; None: there is none.
        card: text of ``README.md``.
    Raises:
        ModelError: what was loaded again gives other logits than the live policy.
        CheckpointError: it could not be written.
    """
    with whole_folder(folder) as new:
        _save_model(policy.lm.model, new)
        if save_tokenizer is not None:
            save_tokenizer(str(new))
        (new / CARD_FILE).write_text(card, encoding="utf-8")
        if policy.lm.adapters is not None and policy.lm.folded is None:
            base = str(policy.lm.model.name_or_path)
            save_adapter(policy.lm.adapters, new / ADAPTER_FOLDER, _absolute(base))
        elif policy.lm.folded is not None:
            logger.info("the adapter was trained on top of %s and is only saved merged", policy.lm.folded)
        _compare_policy(policy, new)


def save_critic(critic: SeparateCritic | SharedCritic, folder: Path) -> None:
    """Write a critic so that :func:`surefoot.models.critic.load_critic` gives its values again.

    A separate critic becomes a folder with its trunk (adapters merged) and ``value_head.safetensors``. A shared
    critic's trunk is the policy's: ``folder`` must lie inside the folder that the policy was saved to; it gets the head
    and a pointer to the trunk. The head never lies beside the policy's own weights, since some servers load every
    safetensors file they find there.

    Args:
        critic: not changed.
        folder: where to; an existing one is replaced once the new one is whole.
    Raises:
        ModelError: a shared critic without its policy, or what was loaded again gives other values.
        CheckpointError: it could not be written.
    """
    shared = isinstance(critic, SharedCritic)
    if shared and not (folder.parent / "config.json").is_file():
        hint = "save the policy first, and the critic into a folder inside the policy's"
        raise ModelError("a shared critic is saved beside its policy", got=str(folder), hint=hint)
    with whole_folder(folder) as new:
        head = {name: tensor.detach().cpu().contiguous() for name, tensor in critic.head.state_dict().items()}
        save_file(head, new / HEAD_FILE)
        if isinstance(critic, SharedCritic):
            (new / POINTER_FILE).write_text('{"trunk": ".."}\n', encoding="utf-8")
        else:
            _save_model(critic.trunk, new)
        _compare_critic(critic, new)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside the wanted one, which takes its place when everything in it is written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise CheckpointError("the model's folder could not be made", got=f"{folder} ({first_line(error)})") from error
    try:
        new.chmod(0o755)
        yield new
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            "the model could not be written", got=f"{folder} ({first_line(error)})", hint="make room and save again"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _save_model(model: Any, folder: Path) -> None:
    """Weights and configs of a transformers model, its adapters merged."""
    tensors = merged_tensors(model)
    with _saving(model, tied=_is_tied(model, tensors)), quiet_library():
        model.save_pretrained(folder, state_dict=tensors)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.to_json_file(folder / "generation_config.json")


def _is_tied(model: Any, tensors: dict[str, Tensor]) -> bool | None:
    """Whether head and embedding will be one tensor in the file; None for a model without a head."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None:
        return None
    names = {id(module): name for name, module in model.named_modules()}
    pair = [tensors.get(f"{names[id(module)]}.weight") for module in (head, embedding)]
    return pair[0] is not None and pair[1] is not None and pair[0].data_ptr() == pair[1].data_ptr()


@contextmanager
def _saving(model: Any, *, tied: bool | None) -> Iterator[None]:
    """Say what is true of the saved tensors while saving, and put the live configs back afterwards."""
    configs = list({id(c): c for c in (model.config, model.config.get_text_config())}.values())
    before = [(c, dict(c.__dict__)) for c in configs]
    generation = getattr(model, "generation_config", None)
    try:
        for c in configs:
            if tied is not None and hasattr(c, "tie_word_embeddings"):
                c.tie_word_embeddings = tied
        if generation is not None:
            # The library refuses to save settings that it loads (sampling values beside do_sample: false).
            model.generation_config = GenerationConfig()
        yield
    finally:
        for c, state in before:
            c.__dict__.clear()
            c.__dict__.update(state)
        if generation is not None:
            model.generation_config = generation


def _absolute(base: str) -> str:
    return str(Path(base).resolve()) if Path(base).is_dir() else base


def _probe_batch(model: Any) -> MicroBatch:
    """One row of tokens spread over the vocabulary."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    length = min(PROBE_LENGTH, context_length(model.config) or PROBE_LENGTH)
    ids = [int(i) for i in np.linspace(0, rows - 1, length)]
    rollout = Rollout.of([Trajectory(ids, [False] + [True] * (length - 1))])
    device = next(model.parameters()).device
    return lay_out(rollout, [0], packed=False, device=device, after=True)


@torch.no_grad()
def _compare_policy(policy: CausalPolicy, folder: Path) -> None:
    lm = policy.lm
    remote = lm.model.is_remote_code()
    again = load_causal_lm(str(folder), dtype=dtype_name(lm.model), device=lm.device, trust_remote_code=remote)
    batch = _probe_batch(lm.model)
    plain = HeadSettings(1.0, lm.head.settings.scale, lm.head.settings.softcap)
    live = OutputHead(lm.head.layer, plain).logits(lm.hidden(batch))
    compare(live, again.head.logits(again.hidden(batch)), lm.model.dtype, "logits", folder)


@torch.no_grad()
def _compare_critic(critic: SeparateCritic | SharedCritic, folder: Path) -> None:
    model: Any = critic.policy.lm.model if isinstance(critic, SharedCritic) else critic.trunk
    device, remote = str(next(model.parameters()).device), model.is_remote_code()
    again = load_critic(folder, dtype=dtype_name(model), device=device, trust_remote_code=remote)
    batch = _probe_batch(model)
    if isinstance(critic, SharedCritic):
        live = critic.head(critic.policy.lm.hidden(batch).index_select(0, batch.states))
    else:
        live = critic.forward(batch)
    compare(live, again.forward(batch), model.dtype, "values", folder)


def compare(live: Tensor, again: Tensor, dtype: torch.dtype, what: str, folder: Path) -> None:
    """Hold what was loaded again against the live model.

    Raises:
        ModelError: they differ by more than merging adapters and rounding explain.
    """
    allowed = _MAY_DIFFER[dtype] * max(1.0, float(live.abs().max()))
    gap = float((live - again).abs().max()) if live.shape == again.shape else float("inf")
    if not gap <= allowed:
        raise ModelError(
            f"the saved model's {what} differ from the live one's by {gap:.2g}",
            got=str(folder),
            allowed=f"{allowed:.2g}",
            hint="this is a fault of Surefoot; the checkpoint still holds the trained weights",
        )


def dtype_name(model: Any) -> str:
    """``float32`` and the like."""
    return str(model.dtype).removeprefix("torch.")
