"""A toy language model, made on the spot: a minute of training shows the whole loop without any download.

Its vocabulary is a few dozen words; its weights are random, so its text is a random walk until a reward shapes it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from surefoot.models.load import quiet_library

SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>", "<unk>")
WORD_LIST = """
system user assistant . , " a the this that it film movie story plot acting script ending is was has
with and but very quite rather too never really good great wonderful superb lovely charming funny
clever bad awful boring terrible dull weak stupid horrible slow long loud short new old Write one
sentence review of about
"""
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|> ' + m['role'] + ' ' + m['content'] + ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)


def make_toy_model(folder: Path, *, seed: int = 0, hidden_size: int = 48, layers: int = 2) -> Path:
    """Write a random Llama with a word-level tokenizer as a Hugging Face folder.

    Args:
        folder: made when missing.
        seed: of the weights.
        hidden_size: a multiple of 16.
        layers: transformer layers.
    """
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *dict.fromkeys(WORD_LIST.split())))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // 16,
        num_key_value_heads=hidden_size // 16,
        max_position_embeddings=128,
        eos_token_id=vocabulary["<|im_end|>"],
        pad_token_id=vocabulary["<pad>"],
        bos_token_id=None,
        tie_word_embeddings=True,
        # Wide enough for the random model to have preferences that a reward can push against.
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_library():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
