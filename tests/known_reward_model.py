"""A reward model whose score is a known function of a text's words, made without training."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from surefoot.models.load import quiet_library
from surefoot.models.toy import make_toy_model
from tests.stage_builders import BLAME, PRAISE

STEADY, TONE, START, MEAN_TONE, MEAN_START = range(5)


def known_reward_model(folder: Path, *, length: float = 0.0) -> Path:
    """Score = mean tone of the tokens (praise 1, blame -1) - length x share of tokens that open a turn, about.

    Attention is uniform, so the last token's state holds means over all tokens. The more tokens, the smaller the share
    of those that open a turn: with ``length`` above 0, longer is better.
    """
    make_toy_model(folder, hidden_size=16, layers=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = LlamaConfig.from_pretrained(folder, num_labels=1)
    model = LlamaForSequenceClassification(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.fill_(1.0 if "norm" in name else 0.0)
        words = model.get_input_embeddings().weight
        words[:, STEADY] = 4.0  # the norms divide everything by about 1
        for word in (*PRAISE, *BLAME):
            words[tokenizer.convert_tokens_to_ids(word), TONE] = 1.0 if word in PRAISE else -1.0
        words[tokenizer.convert_tokens_to_ids("<|im_start|>"), START] = 1.0
        attention = model.model.layers[0].self_attn
        attention.v_proj.weight[TONE, TONE] = attention.v_proj.weight[START, START] = 1.0
        attention.o_proj.weight[MEAN_TONE, TONE] = attention.o_proj.weight[MEAN_START, START] = 1.0
        model.score.weight[0, MEAN_TONE], model.score.weight[0, MEAN_START] = 1.0, -length
    with quiet_library():
        model.save_pretrained(folder)
    return folder
