"""Tiny random Llamas in GGUF files, written with the gguf package's own writer and names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<spare>"]
BYTES = list(bytes_to_unicode().values())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
TOKENS = SPECIAL + BYTES + [merge.replace(" ", "") for merge in MERGES]
Kind = gguf.GGMLQuantizationType


@dataclass
class Tiny:
    """What a tiny GGUF is written from; tests change one thing of it."""

    config: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[Any, ...] = (Kind.Q4_1, Kind.Q8_0, Kind.F16, Kind.F32)
    ids: dict[str, int | None] = field(default_factory=lambda: {"bos": 1, "eos": 2, "unk": 0, "pad": 2})
    metadata: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)
    template: str = TEMPLATE
    special: int = len(SPECIAL)
    architecture: str = "llama"

    def write(self, path: Path) -> LlamaForCausalLM:
        """Writes the GGUF and gives back the Hugging Face model that it holds."""
        torch.manual_seed(0)
        shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        defaults = {"num_key_value_heads": 2, "vocab_size": len(TOKENS), "tie_word_embeddings": True}
        rope = {"rope_type": "default", "rope_theta": 5000.0}
        config = LlamaConfig(**(shape | defaults | {"rope_parameters": rope, "rms_norm_eps": 1e-5} | self.config))
        model = LlamaForCausalLM(config).eval()
        writer = gguf.GGUFWriter(path, self.architecture)
        self._write_metadata(writer, config)
        with torch.no_grad():
            for index, (name, parameter) in enumerate(model.named_parameters()):
                # Larger than a fresh model's, norms too, so that a wrong order or a lost tensor shows in the logits.
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if "norm" in name else 0.0))
                kind = self.kinds[index % len(self.kinds)] if parameter.ndim == 2 else Kind.F32
                blocks = gguf.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.dequantize(blocks, kind)))
                target = gguf_name(name)
                if target not in self.drop:
                    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
                    writer.add_tensor(target, interleaved(blocks, heads.get(target.split(".")[-2])), raw_dtype=kind)
        for name, dimensions in self.extra.items():
            writer.add_tensor(name, np.ones(dimensions, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return model

    def _write_metadata(self, writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
        writer.add_context_length(512)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        if "head_dim" in self.config:
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        for key, value in self.metadata.items():
            {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}[type(value)](key, value)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(TOKENS)
        writer.add_token_types([3] * self.special + [1] * (len(TOKENS) - self.special))
        writer.add_token_merges(MERGES)
        adders = {"bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id}
        adders |= {"unk": writer.add_unk_token_id, "pad": writer.add_pad_token_id}
        for name, number in self.ids.items():
            if number is not None:
                adders[name](number)
        writer.add_chat_template(self.template)


def gguf_name(name: str) -> str:
    """llama.cpp's name, by the package's own table."""
    stem, _, kind = name.rpartition(".")
    found = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2).get_name(stem)
    assert found is not None
    return f"{found}.{kind}"


def interleaved(rows: np.ndarray, heads: int | None) -> np.ndarray:
    """llama.cpp's order of a head's rows: first, first of second half, second, second of second half, ..."""
    if heads is None:
        return rows
    size = len(rows) // heads
    order = [head * size + half * (size // 2) + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return np.ascontiguousarray(rows[order])
