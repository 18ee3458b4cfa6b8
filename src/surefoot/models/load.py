"""Loading a causal language model so that its numbers can be trusted.

Weights are safetensors only and all there; dropout is off; flags are checked against the tensors; and the numbers are
compared with the library's own before the model is used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as library_logging

from surefoot.errors import ModelError
from surefoot.models.attention import NAME
from surefoot.models.batching import MicroBatch
from surefoot.models.layers import use_kernels
from surefoot.models.output_head import HeadSettings, OutputHead
from surefoot.models.probe import probe

logger = logging.getLogger("surefoot")

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# What else a folder may hold; as a policy it would be read with an output layer that nobody trained.
OTHER_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM")
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
# Rotary embeddings of these types depend on the longest row of a batch once it is longer than the original context.
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")

# Rows carry no padding mask on purpose: pads stand on the right of causal models.
logging.getLogger("transformers.modeling_utils").addFilter(lambda r: "attention_mask" not in r.getMessage())


class CausalLM:
    """A causal language model: trunk, output head and, where trained that way, adapters.

    Args:
        model: the transformers model, adapters already injected.
        folder: where it came from.
        settings: how logits are made and read.

    Attributes:
        adapters: the peft model around it, None where all weights are trained.
        folded: the adapter folder that was made part of the frozen weights, if any.
    """

    def __init__(self, model: PreTrainedModel, folder: str, settings: HeadSettings) -> None:
        self.model, self.folder = model, folder
        self.adapters: Any = None
        self.folded: str | None = None
        layer = model.get_output_embeddings()
        if layer is None or model.base_model is model:
            raise ModelError("the model has no output layer", got=folder, hint="give a causal language model")
        self.head = OutputHead(layer, settings)

    @property
    def trunk(self) -> nn.Module:
        """Everything before the output layer."""
        trunk: nn.Module = self.model.base_model
        return trunk

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def context(self) -> int | None:
        """Longest sequence the model takes, None when it does not say."""
        return context_length(self.model.config)

    def hidden(self, batch: MicroBatch) -> Tensor:
        """``[R * C, H]`` final hidden states of a micro-batch, one row per flat position."""
        return hidden_states(self.trunk, batch)


def hidden_states(trunk: nn.Module, batch: MicroBatch) -> Tensor:
    """``[R * C, H]`` final hidden states of a micro-batch.

    Raises:
        ModelError: a row is longer than the model's context.
    """
    longest = batch.longest
    limit = context_length(trunk.config)
    if limit is not None and longest > limit:
        raise ModelError(
            "a trajectory is longer than the model's context",
            got=f"{longest} tokens",
            allowed=f"at most {limit}",
            hint="lower data.max_prompt_tokens or rollout.max_new_tokens",
        )
    out = trunk(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, attention_layout=batch.layout
    )
    states: Tensor = out.last_hidden_state
    return states.reshape(-1, states.shape[-1])


def context_length(config: Any) -> int | None:
    """The largest number of positions a model config allows, None when it does not say."""
    text = config.get_text_config()
    value = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") in BATCH_DEPENDENT_ROPE:
        value = rope.get("original_max_position_embeddings") or value
    return int(value) if value else None


def load_causal_lm(
    folder: str,
    *,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    temperature: float = 1.0,
    rows_needed: int | None = None,
    banned: tuple[int, ...] = (),
    trust_remote_code: bool = False,
) -> CausalLM:
    """Load, check and freeze a causal LM.

    Args:
        folder: a folder with ``config.json`` and safetensors, or a hub id.
        dtype: a key of DTYPES.
        device: where to put it.
        temperature: that log-probabilities are read at, above 0.
        rows_needed: grow the embeddings to this many rows if they have fewer.
        banned: ids left out of the distribution.
        trust_remote_code: run code that comes with the model.
    Raises:
        ModelError: no such model, not a causal LM, weights not safetensors, or numbers that do not agree.
    """
    check_temperature(temperature)
    model = read_causal_lm(folder, dtype=dtype, rows_needed=rows_needed, trust_remote_code=trust_remote_code)
    return ready_lm(model, folder, device=device, temperature=temperature, banned=banned)


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that log-probabilities cannot be under, before anything is read."""
    if not temperature > 0:
        raise ModelError("the temperature of log-probabilities must be above 0", got=temperature, allowed="> 0")


def read_causal_lm(folder: str, *, dtype: str, rows_needed: int | None, trust_remote_code: bool) -> Any:
    """The transformers model alone, as its files say, on the CPU; arguments as of :func:`load_causal_lm`."""
    if dtype not in DTYPES:
        raise ModelError("unknown dtype", got=dtype, allowed=", ".join(DTYPES))
    config = load_model_config(folder, trust_remote_code=trust_remote_code)
    names = getattr(config, "architectures", None) or []
    if names and all(name.endswith(OTHER_TASKS) for name in names):
        raise ModelError("the model is no causal language model", got=f"{folder} ({', '.join(names)})")
    model = from_pretrained(
        AutoModelForCausalLM, folder, config=config, dtype=DTYPES[dtype], trust_remote_code=trust_remote_code
    )
    untie_if_apart(model, folder)
    if rows_needed is not None:
        grow_embeddings(model, rows_needed)
    return model


def ready_lm(
    model: Any, folder: str, *, device: str | torch.device, temperature: float = 1.0, banned: tuple[int, ...] = ()
) -> CausalLM:
    """Freeze and move a model, let it compute our way, and compare its numbers with the library's own."""
    model.to(device).eval().requires_grad_(False)
    lm = CausalLM(model, folder, head_settings(model.config, temperature, banned))
    use_kernels(model)
    probe(model, lm.trunk, lm.head)
    return lm


def load_model_config(folder: str, *, trust_remote_code: bool = False) -> Any:
    """A model's config, or a ModelError that says what to do."""
    path = Path(folder)
    looks_local = path.is_absolute() or folder.startswith((".", "~")) or folder.count("/") > 1
    if path.is_file():
        hint = "name the folder; a GGUF file is converted to one first" if path.suffix == ".gguf" else "name its folder"
        raise ModelError("the model must be a folder, not a file", got=folder, hint=hint)
    if path.is_dir() and not (path / "config.json").exists():
        hint = "name the folder that holds config.json and the safetensors files"
        raise ModelError("the model folder has no config.json", got=folder, hint=hint)
    if looks_local and not path.is_dir():
        raise ModelError("the model folder does not exist", got=folder, hint="check the path")
    hint = "config.json must be that of a model that transformers knows; download it again if it was not edited"
    with library_faults("the model's config could not be read", folder, hint), quiet_library():
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    _refuse_odd_config(config, folder)
    return config


def _refuse_odd_config(config: Any, folder: str) -> None:
    """What the library takes from a config as it stands, and what nothing can be made of."""
    names, text = getattr(config, "architectures", None), config.get_text_config()
    named = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    odd = [] if named else [f"architectures: {names!r}"]
    if not isinstance(text, PreTrainedConfig):
        odd.append(f"text_config: {text!r}")
    for key in SIZES if not odd else ():
        value = getattr(text, key, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            odd.append(f"{key}: {value!r}")
    window = getattr(text, "sliding_window", None)
    if window is not None and not isinstance(window, int):
        odd.append(f"sliding_window: {window!r}")
    if odd:
        raise ModelError(
            "the model's config cannot be used",
            got=f"{folder} ({'; '.join(odd)})",
            allowed="whole numbers from 1 on for sizes, a list of names for architectures",
            hint="correct config.json, or download it again if it was not edited",
        )


def from_pretrained(auto: Any, folder: str, *, may_miss: tuple[str, ...] = (), **options: Any) -> Any:
    """``auto.from_pretrained`` with safetensors only, our attention, every weight there, and errors in our words.

    Args:
        auto: a transformers Auto class.
        folder: what to load.
        may_miss: names of weights, or their beginnings, that the files need not hold.
        options: of ``auto.from_pretrained``.
    """
    hint = "weights must be safetensors of an architecture that transformers knows, with pluggable attention"
    with library_faults("the model could not be loaded", folder, hint), quiet_library():
        model, info = auto.from_pretrained(
            folder, use_safetensors=True, attn_implementation=NAME, output_loading_info=True, **options
        )
    if getattr(model.config, "quantization_config", None) is not None:
        raise ModelError(
            "the model's files hold quantized weights, and whole ones are needed",
            got=folder,
            hint="take the model's unquantized version; model.quantize makes it smaller when it is loaded",
        )
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(may_miss))
    if missing:
        raise ModelError(
            f"{len(missing)} weights of {type(model).__name__} are not in the model's files",
            got=", ".join(missing[:3]),
            hint="the folder is incomplete, or holds another kind of model; random weights are never filled in",
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise ModelError(
            f"{type(model).__name__} has no pluggable attention in transformers, which Surefoot needs",
            hint="Llama, Qwen, Gemma, Mistral, GPT-2, Phi and most newer models have it",
        )
    embedding = model.get_input_embeddings()
    if getattr(embedding, "padding_idx", None) is not None:
        # Padding never reaches a loss here, and the id used for it may be a real token (pad == eos), which must learn.
        embedding.padding_idx = None
    return model


@contextmanager
def library_faults(what: str, folder: str, hint: str) -> Iterator[None]:
    """Put what the library makes of a broken folder into our words; it raises whatever its code stumbles over."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(what, got=f"{folder} ({first_line(error)})", hint=hint) from error


@contextmanager
def quiet_library() -> Iterator[None]:
    """Keep transformers' progress bars and load reports off the terminal; what matters in them is checked here."""
    verbosity, bars = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        library_logging.set_verbosity(verbosity)
        if bars:
            library_logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """The part of a library's message that fits into ours."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    told = lines[:2] if lines[0].endswith(":") else lines[:1]
    return " ".join(line.strip() for line in told)[:200]


def head_settings(config: Any, temperature: float, banned: tuple[int, ...]) -> HeadSettings:
    """How this architecture makes logits."""
    text = config.get_text_config()
    scale = float(getattr(text, "logit_scale", None) or 1.0) / float(getattr(text, "logits_scaling", None) or 1.0)
    softcap = getattr(text, "final_logit_softcapping", None)
    return HeadSettings(temperature, scale, float(softcap) if softcap else None, banned)


def untie_if_apart(model: Any, folder: str) -> None:
    """Believe the tensors, not the flag: a head that differs from the embedding in the files stays apart."""
    head, config = model.get_output_embeddings(), model.config
    if head is None or not config.get_text_config().tie_word_embeddings:
        return
    if head.weight is not model.get_input_embeddings().weight:
        logger.warning("%s says its head is tied to the embedding, but both are stored and differ: kept apart", folder)
        config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False


def grow_embeddings(model: Any, rows: int) -> None:
    """Give embedding and head at least this many rows; new rows are the mean of the old ones."""
    have = model.get_input_embeddings().weight.shape[0]
    if rows <= have:
        return
    logger.warning("the tokenizer has ids up to %d but the model %d rows: rows added", rows - 1, have)
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for tensor in () if layer is None else layer.parameters():
                tensor[have:] = tensor[:have].mean(dim=0)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model folder."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError("a file of the model folder could not be read", got=f"{path} ({first_line(error)})") from error
    if not isinstance(value, dict):
        raise ModelError("a file of the model folder must hold a JSON object", got=str(path))
    return value
