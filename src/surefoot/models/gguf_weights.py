"""Writing a safetensors file tensor by tensor, so that a model is never in memory twice.

Format: https://github.com/huggingface/safetensors#format (length of the header, JSON header, data).
"""

from __future__ import annotations

import hashlib
import json
import logging
from math import prod
from pathlib import Path
from typing import Any, Final

from surefoot.errors import ModelError
from surefoot.models.gguf_file import GGUFFile
from surefoot.models.gguf_llama import tensor_names, undo_permutation

logger = logging.getLogger("surefoot")

_BYTES: Final = 4
_REPORTS: Final = 4


def write_weights(file: GGUFFile, config: dict[str, Any], target: Path) -> str:
    """All tensors of the file, dequantised to float32 under their Hugging Face names.

    Returns:
        sha256 of what was written, in hex.

    Raises:
        ModelError: a tensor is missing, not known, cannot be read or has another shape than its place.
    """
    pairs = list(tensor_names(file, config))
    header = _header({name: file.tensors[source].shape for source, name in pairs})
    digest = hashlib.sha256(header)
    with target.open("wb") as out:
        out.write(header)
        for index, (source, _) in enumerate(pairs, 1):
            values = undo_permutation(source, file.read(source), config)
            data = values.astype("<f4", copy=False).data.cast("B")
            digest.update(data)
            out.write(data)
            if index * _REPORTS // len(pairs) > (index - 1) * _REPORTS // len(pairs):
                logger.info("%s: %d of %d tensors", file.path.name, index, len(pairs))
    return digest.hexdigest()


def check_shapes(file: GGUFFile, config: dict[str, Any]) -> None:
    """Refuses a file whose tensors do not have the shapes that its metadata promise.

    Raises:
        ModelError: names the first tensor that does not fit.
    """
    width, inner = config["hidden_size"], config["intermediate_size"]
    query, key = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    expected = {
        "token_embd": (config["vocab_size"], width),
        "output": (config["vocab_size"], width),
        "attn_q": (query, width),
        "attn_k": (key, width),
        "attn_v": (key, width),
        "attn_output": (width, query),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    for source, _ in tensor_names(file, config):
        *_, part, kind = source.split(".")
        shape = expected.get(part, (width,))
        wanted = shape if kind == "weight" else shape[:1]
        if file.tensors[source].shape != wanted:
            raise ModelError(
                f"tensor {source!r} of {file.path} does not fit its metadata",
                got=file.tensors[source].shape,
                allowed=wanted,
            )


def _header(shapes: dict[str, tuple[int, ...]]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        end = at + prod(shape) * _BYTES
        table[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    # Data starts at a multiple of 8, as the format asks.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
