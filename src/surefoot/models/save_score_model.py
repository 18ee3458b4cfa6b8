"""Writing a reward model as a standard sequence classifier with one label, proved by loading it.

Its one score layer is the mean of the heads, so that any program gets the ensemble's mean. The heads themselves lie in
``ensemble/``, apart from the weights, since some servers load every safetensors file beside ``config.json``.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from surefoot.models.load import quiet_library
from surefoot.models.lora import merged_tensors
from surefoot.models.reward_model import CALIBRATION_FILE, RewardModel
from surefoot.models.save import CARD_FILE, compare, dtype_name, whole_folder
from surefoot.models.score_model import ScoreModel, classifier_of
from surefoot.models.tokenizer import TextCodec
from surefoot.models.weight_files import HEADS_FILE
from surefoot.records import IntArray

PROBE_ROWS = 8


def save_score_model(
    model: ScoreModel,
    folder: Path,
    codec: TextCodec,
    *,
    calibration: Mapping[str, Any],
    card: str,
    rows: Sequence[IntArray],
) -> None:
    """Write a reward model, load it again and compare its scores.

    Args:
        model: not changed.
        folder: where to; an existing one is replaced once the new one is whole.
        codec: its tokenizer, saved with a padding token that ends no text.
        calibration: content of ``surefoot_reward.json``; ``heads`` with their sha256 is added for an ensemble.
        card: text of ``README.md``.
        rows: texts it was trained on, as tokens: some are scored again, and none may end with the padding token.
    Raises:
        ModelError: what was loaded again gives other scores than the live model.
        CheckpointError: it could not be written.
    """
    pad_id = padding_id(codec, {int(row[-1]) for row in rows})
    with whole_folder(folder) as new:
        classifier = classifier_of(model.trunk, pad_id=pad_id)
        prefix = classifier.base_model_prefix
        tensors = {f"{prefix}.{name}": tensor for name, tensor in merged_tensors(model.trunk).items()}
        # In the weights' own type, as the library's models have it; the heads of an ensemble stay as they were trained.
        tensors |= {f"score.{name}": tensor.to(model.trunk.dtype) for name, tensor in model.heads.mean().items()}
        with quiet_library():
            classifier.save_pretrained(new, state_dict={k: t.detach().cpu().contiguous() for k, t in tensors.items()})
        _save_tokenizer(codec, new, pad_id)
        facts = dict(calibration)
        if len(model.heads.weight) > 1:
            (new / HEADS_FILE).parent.mkdir()
            save_file({n: p.detach().cpu().contiguous() for n, p in model.heads.named_parameters()}, new / HEADS_FILE)
            digest = hashlib.sha256((new / HEADS_FILE).read_bytes()).hexdigest()
            facts["heads"] = {"count": len(model.heads.weight), "file": HEADS_FILE, "sha256": digest}
        text = json.dumps(facts, indent=1, allow_nan=False, ensure_ascii=False)
        (new / CALIBRATION_FILE).write_text(text + "\n", encoding="utf-8")
        (new / CARD_FILE).write_text(card, encoding="utf-8")
        _compare(model, new, rows[:PROBE_ROWS])


def padding_id(codec: TextCodec, endings: set[int]) -> int:
    """An id to pad with that ends no text: the library looks for a row's end by comparing with it.

    The tokenizer's own padding token if that will do; else another special token; else, where every one ends some
    text, the tokenizer's own all the same (rows of one batch must then have one length).
    """
    tokenizer = codec.tokenizer
    own = [i for i in (tokenizer.pad_token_id, tokenizer.unk_token_id) if i is not None]
    other = sorted(codec.chat.special_ids - codec.stop_ids - {codec.bos_id})
    last = [*sorted(codec.chat.special_ids), codec.pad_id]
    return next((int(i) for i in (*own, *other, *last) if i not in endings), codec.pad_id)


def _save_tokenizer(codec: TextCodec, folder: Path, pad_id: int) -> None:
    tokenizer = copy.deepcopy(codec.tokenizer)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_id)
    tokenizer.padding_side = "right"
    tokenizer.save_pretrained(str(folder))


@torch.no_grad()
def _compare(model: ScoreModel, folder: Path, rows: Sequence[IntArray]) -> None:
    remote = model.trunk.is_remote_code()
    again = RewardModel(str(folder), dtype=dtype_name(model.trunk), device=model.device, trust_remote_code=remote)
    live = torch.from_numpy(model.scores(rows)).mean(dim=1)
    scores: Tensor = torch.tensor(again.score_tokens([row.tolist() for row in rows]), dtype=live.dtype)
    compare(live, scores, model.trunk.dtype, "scores", folder)
