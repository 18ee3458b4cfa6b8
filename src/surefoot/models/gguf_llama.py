"""What a Llama in a GGUF file is called and laid out as in Hugging Face: configuration, names, order of rows.

A feature that would change the numbers and has no counterpart here (experts, scaled or partial rotary embeddings,
several head counts) is refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from surefoot.errors import ModelError
from surefoot.models.gguf_file import GGUFFile

ARCHITECTURE: Final = "llama"
_TOP: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ATTENTION: Final = ("attn_q", "attn_k", "attn_v", "attn_output")
_MLP: Final = ("ffn_gate", "ffn_up", "ffn_down")


def llama_config(file: GGUFFile) -> dict[str, Any]:
    """The arguments of ``transformers.LlamaConfig`` for this file.

    Raises:
        ModelError: another architecture, a feature with no counterpart, or metadata that is missing.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise ModelError(
            f"{file.path} holds a model of another architecture",
            got=architecture,
            allowed=ARCHITECTURE,
            hint="use the model's Hugging Face folder instead of the GGUF",
        )
    heads, width = _number(file, "attention.head_count"), _number(file, "embedding_length")
    head_dim = _number(file, "attention.key_length", width // heads)
    _refuse_unknown(file, head_dim)
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        "hidden_size": width,
        "intermediate_size": _number(file, "feed_forward_length"),
        "num_hidden_layers": _number(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _number(file, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _number(file, "context_length"),
        "rms_norm_eps": _shortest(_number(file, "attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": _number(file, "rope.freq_base", 10000.0)},
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }


def tensor_names(file: GGUFFile, config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs (name in the file, name in Hugging Face), exactly the model's tensors.

    Raises:
        ModelError: the file lacks one, or has one that the model has no place for.
    """
    pairs = {f"{source}.weight": f"{target}.weight" for source, target in _TOP.items()}
    if config["tie_word_embeddings"]:
        del pairs["output.weight"]
    biased = (_ATTENTION if config["attention_bias"] else ()) + (_MLP if config["mlp_bias"] else ())
    for layer in range(config["num_hidden_layers"]):
        for source, target in _LAYER.items():
            for kind in ("weight", "bias") if source in biased else ("weight",):
                pairs[f"blk.{layer}.{source}.{kind}"] = f"model.layers.{layer}.{target}.{kind}"
    missing, unknown = sorted(pairs.keys() - file.tensors.keys()), sorted(file.tensors.keys() - pairs.keys())
    if missing or unknown:
        raise ModelError(
            f"the tensors of {file.path} are not those of a Llama of {config['num_hidden_layers']} layers",
            got=f"{len(missing)} missing {missing[:3]}, {len(unknown)} not known {unknown[:3]}",
            hint="use the model's Hugging Face folder instead of the GGUF",
        )
    return iter(pairs.items())


def undo_permutation(name: str, values: npt.NDArray[np.float32], config: dict[str, Any]) -> npt.NDArray[np.float32]:
    """The tensor with the rows of query and key projections in Hugging Face's order.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ... of a head, Hugging Face the pairs (i, i + head_dim / 2);
    its converter interleaves the two halves of each head's rows, which is undone here.

    Args:
        name: in the GGUF.
        values: ``[rows, columns]``, or ``[rows]`` of a bias.
    """
    part = name.split(".")[2] if name.startswith("blk.") else ""
    if part not in ("attn_q", "attn_k"):
        return values
    heads = config["num_attention_heads"] if part == "attn_q" else config["num_key_value_heads"]
    halves = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _refuse_unknown(file: GGUFFile, head_dim: int) -> None:
    scaling = file.metadata.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    reasons = {
        "experts": _number(file, "expert_count", 0) > 0,
        f"scaled rotary embeddings ({scaling})": scaling != "none" or "rope_freqs.weight" in file.tensors,
        "rotary embeddings on a part of each head": _number(file, "rope.dimension_count", head_dim) != head_dim,
        "values and keys of different widths": _number(file, "attention.value_length", head_dim) != head_dim,
    }
    found = [reason for reason, present in reasons.items() if present]
    if found:
        raise ModelError(
            f"{file.path} has what the conversion does not carry over",
            got=", ".join(found),
            hint="use the model's Hugging Face folder instead of the GGUF",
        )


def _number(file: GGUFFile, key: str, default: float | None = None) -> Any:
    value = file.metadata.get(f"{ARCHITECTURE}.{key}", default)
    if isinstance(value, int | float):
        return value
    raise ModelError(
        f"{file.path} has no single number for {ARCHITECTURE}.{key}", got=value if value is not None else "nothing"
    )


def _shortest(value: float) -> float:
    """1e-05 for the float32 nearest to it, which as a double reads 9.999999747378752e-06."""
    return float(str(np.float32(value)))
