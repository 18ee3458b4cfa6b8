"""Reward models: sequence classification with one label, read with their own tokenizer and chat template.

Text goes in, never the policy's token ids: the two vocabularies may differ. The score is read at the last real token
of rows padded here, on the right, so no rule about padding ids decides where a text ends; before the first use one row
is compared with the library's own result.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import cached_file

from surefoot.errors import DataError, ModelError
from surefoot.models.digest import digest_tensors
from surefoot.models.layers import use_kernels
from surefoot.models.load import DTYPES, context_length, first_line, from_pretrained, load_model_config, read_json
from surefoot.models.messages import Messages
from surefoot.models.packing import LaidRows, groups_within, pack, pad
from surefoot.models.probe import library_attention, probe
from surefoot.models.tokenizer import TextCodec, load_codec
from surefoot.models.weight_files import HEADS_FILE, digest_weights
from surefoot.records import IntArray

logger = logging.getLogger("surefoot")

PROBE_TOKENS = 12
HINT = "the target of a reward term of kind model must be a reward model: sequence classification with one label"
CALIBRATION_FILE: Final = "surefoot_reward.json"
"""What is known of a reward model's scores, beside its weights."""


@dataclass(frozen=True)
class Ensemble:
    """What becomes of the scores of several heads.

    Attributes:
        how: their ``mean``; the ``min``, the least; or ``lower``: mean minus c times their population deviation.
        c: of ``lower``, at least 0.
    """

    how: Literal["mean", "min", "lower"] = "mean"
    c: float = 1.0

    def combine(self, scores: Tensor) -> Tensor:
        """``[n, k]`` scores of heads to ``[n]``."""
        if self.how == "min":
            return scores.min(dim=1).values
        mean = scores.mean(dim=1)
        return mean if self.how == "mean" else mean - self.c * spread(scores)


def spread(scores: Tensor) -> Tensor:
    """``[n]``: the population deviation of ``[n, k]`` scores over the heads."""
    return scores.std(dim=1, unbiased=False)


class RewardModel:
    """A frozen reward model.

    Args:
        folder: a folder with ``config.json``, safetensors and a tokenizer, or a hub id.
        dtype: a key of ``surefoot.models.load.DTYPES``.
        device: where to put it.
        batch_tokens: tokens per forward pass at most, padding included; one text always fits.
        max_tokens: longest text, the model's context when None. Longer ones lose their beginning, counted.
        trust_remote_code: run code that comes with the model.
        ensemble: what becomes of several heads, for a model that has them; None: their mean.

    Attributes:
        folder: the local folder with its files; a critic may be loaded from it.
        digest: sha256 over the bytes of its safetensors files, in the order of their names.
        codec: its own tokenizer.
        truncated: texts cut so far.
        calibration: content of its ``surefoot_reward.json``, None without one.

    Raises:
        ModelError: no such model, no tokenizer, not one label, weights missing (an untrained score layer among them),
            an architecture whose score would come out wrong, or an ensemble was asked for and it has one head.
    """

    def __init__(
        self,
        folder: str,
        *,
        dtype: str = "float32",
        device: str | torch.device = "cpu",
        batch_tokens: int = 8192,
        max_tokens: int | None = None,
        trust_remote_code: bool = False,
        ensemble: Ensemble | None = None,
    ) -> None:
        model = _load(folder, dtype, trust_remote_code)
        self.name, self.folder = folder, _local_folder(folder)
        self.ensemble = ensemble or Ensemble()
        file = Path(self.folder) / CALIBRATION_FILE
        self.calibration: Mapping[str, Any] | None = read_json(file) if file.is_file() else None
        self.digest = digest_weights(Path(self.folder))
        self.codec = load_codec(folder, trust_remote_code=trust_remote_code)
        self.truncated = 0
        self._model = model.to(device).eval().requires_grad_(False)
        use_kernels(model)
        self._score: nn.Linear = model.score
        self._heads = _load_heads(Path(self.folder), self._score)
        if self._heads is None and self.ensemble.how != "mean":
            raise ModelError(
                f"{folder} has one score head, so there is no disagreement",
                got=f"ensemble: {self.ensemble.how}",
                hint="train it with reward_model.heads above 1, or leave ensemble out",
            )
        self._rows = int(model.get_input_embeddings().weight.shape[0])
        self._batch_tokens = batch_tokens
        limits = [n for n in (max_tokens, context_length(model.config)) if n is not None]
        self.max_tokens = min(limits, default=None)
        self._probe()

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be scored."""
        return self.codec.has_chat_template

    @property
    def scoring_digest(self) -> str:
        """sha256 of all that its scores depend on: ``digest``, and with it how heads are read if not by their mean."""
        if self.ensemble.how == "mean":
            return self.digest
        return hashlib.sha256(f"{self.digest} {self.ensemble}".encode()).hexdigest()

    @property
    def trunk(self) -> nn.Module:
        """Everything before the score layer; a critic may be put onto it."""
        trunk: nn.Module = self._model.base_model
        return trunk

    def encode(self, item: str | Messages) -> list[int]:
        """Ids of a text, or of a conversation that ends with the answer to be scored, in its own vocabulary.

        A text gets all that the tokenizer puts around a text; a conversation goes through the model's chat template,
        and control tokens spelled in it are text. What is too long loses its beginning, the token that begins every
        text excepted; this is counted in ``truncated``.

        Raises:
            ModelError: a conversation, and the model has no chat template.
            DataError: the template refuses the messages, nothing is left to read, or an id has no embedding.
        """
        ids = encode_item(self.codec, item)
        if not ids:
            raise DataError("a text has no tokens for the reward model", got=repr(item)[:80])
        if max(ids) >= self._rows:
            raise DataError(
                f"the tokenizer of {self.name} gave an id that its model has no embedding for",
                got=max(ids),
                allowed=f"below {self._rows}",
                hint="tokenizer and weights in the folder do not belong together",
            )
        if self.max_tokens is None or len(ids) <= self.max_tokens:
            return ids
        self.truncated += 1
        if self.truncated == 1:
            logger.warning(
                "%s: a text of %d tokens is longer than %d and loses its beginning. Reported once, counted further.",
                self.name,
                len(ids),
                self.max_tokens,
            )
        return cut_beginning(ids, self.max_tokens, self.codec)

    def score_texts(self, items: Sequence[str | Messages]) -> list[float]:
        """One score per text or conversation, in order; each as if it were alone.

        Raises:
            ModelError, DataError: see :meth:`encode`.
        """
        return self.score_tokens([self.encode(item) for item in items])

    def score_tokens(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """One score per row of ids of this model's own vocabulary, in order; none of them empty."""
        return self.score_with_spread(rows)[0]

    @torch.no_grad()
    def score_with_spread(self, rows: Sequence[Sequence[int]]) -> tuple[list[float], list[float] | None]:
        """As :meth:`score_tokens`, and how far the heads disagree on each row; None with one head."""
        scores, spreads = [0.0] * len(rows), [0.0] * len(rows)
        ids = [np.asarray(row, dtype=np.int64) for row in rows]
        packed = self._score.weight.device.type == "cpu"
        for group in groups_within(ids, self._batch_tokens, packed=packed):
            part = [ids[b] for b in group]
            laid = pack(part) if packed else pad(part)
            if self._heads is None:
                found = self._forward(laid).tolist()
            else:
                by_head = self._linear(self._states(laid), self._heads)
                found = self.ensemble.combine(by_head).tolist()
                for b, gap in zip(group, spread(by_head).tolist(), strict=True):
                    spreads[b] = gap
            for b, score in zip(group, found, strict=True):
                scores[b] = score
        return scores, None if self._heads is None else spreads

    @property
    def num_heads(self) -> int:
        """Score heads: 1, or as many as the ensemble has."""
        return 1 if self._heads is None else len(self._heads["weight"])

    def head_weight(self) -> Tensor:
        """``[H]``: a copy of the score layer's weights, from which a value head may start."""
        return self._score.weight[0].detach().clone()

    def head_bias(self) -> Tensor | None:
        """``[]``: a copy of its bias, None when it has none."""
        return None if self._score.bias is None else self._score.bias[0].detach().clone()

    def weights_digest(self) -> str:
        """sha256 of the weights as they are in memory: equal before and after a run."""
        heads = {f"heads.{name}": tensor for name, tensor in (self._heads or {}).items()}
        return digest_tensors([*self._model.state_dict().items(), *heads.items()])

    def move(self, device: torch.device) -> None:
        """Take the weights to a device, in place."""
        self._model.to(device)

    def _forward(self, laid: LaidRows) -> Tensor:
        """``[B]`` scores of the score layer, in float32 at least, read at the last token of each row."""
        return self._linear(self._states(laid), dict(self._score.named_parameters()))[:, 0]

    def _states(self, laid: LaidRows) -> Tensor:
        """``[B, H]`` states at the last token of each row."""

        def tensor(array: IntArray) -> Tensor:
            return torch.from_numpy(np.array(array)).to(self._score.weight.device)

        out = self._model.base_model(
            input_ids=tensor(laid.ids),
            position_ids=tensor(laid.positions),
            use_cache=False,
            attention_layout=laid.layout,
        )
        last = tensor(np.array([place[-1] for place in laid.places]))
        states: Tensor = out.last_hidden_state.flatten(0, 1).index_select(0, last)
        return states

    @staticmethod
    def _linear(states: Tensor, head: Mapping[str, Tensor]) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        weight, bias = (None if t is None else t.to(states.device, wide) for t in (head["weight"], head.get("bias")))
        assert weight is not None
        return nn.functional.linear(states.to(wide), weight, bias)

    @torch.no_grad()
    def _probe(self) -> None:
        """Compare states and one score with the library's own: refuses encoders, pooled heads and changed outputs."""
        probe(self._model, self._model.base_model)
        length = min(PROBE_TOKENS, self.max_tokens or PROBE_TOKENS)
        padding = self._model.config.get_text_config().pad_token_id
        ids = [i for i in (n * 7919 % self._rows for n in range(1, 4 * length)) if i != padding][:length]
        row = torch.tensor([ids])
        ours = float(self._forward(pad([row[0].numpy()])))
        with library_attention(self._model, "eager"):
            theirs = float(self._model(input_ids=row.to(self._score.weight.device)).logits[0, 0])
        # Rotary angles and norms are in float32 in the library's own code, whatever the type of the weights.
        rounding = max(torch.finfo(self._model.dtype).eps, torch.finfo(torch.float32).eps)
        allowed = 1024 * rounding * max(1.0, abs(theirs))
        if not abs(ours - theirs) <= allowed:
            raise ModelError(
                f"scores of {type(self._model).__name__} differ from the library's own",
                got=f"{ours:.6g} against {theirs:.6g}",
                hint="this architecture is not read at its last token, or changes its output; it is not supported",
            )


def encode_item(codec: TextCodec, item: str | Messages) -> list[int]:
    """Ids of a text, with all that the tokenizer puts around a text, or of a conversation in the chat template."""
    if isinstance(item, str):
        return codec.begun(codec.encode_text(item)) + list(codec.left_off_ids)
    return codec.encode_dialogue(item)[0]


def cut_beginning(ids: list[int], limit: int, codec: TextCodec) -> list[int]:
    """The last ids that fit, behind what begins every text."""
    kept = [i for i, begin in zip(ids, codec.begin_ids, strict=False) if i == begin][: limit - 1]
    return kept + ids[len(ids) - limit + len(kept) :]


def _load(folder: str, dtype: str, trust_remote_code: bool) -> Any:
    try:
        config = load_model_config(folder, trust_remote_code=trust_remote_code)
    except ModelError as error:
        raise ModelError(error.what, got=error.got, hint="check the target of the reward term") from error
    names: Sequence[str] = getattr(config, "architectures", None) or []
    if not any(name.endswith("ForSequenceClassification") for name in names):
        raise ModelError(f"{folder} is not a reward model", got=", ".join(names) or "no architecture", hint=HINT)
    if config.num_labels != 1:
        raise ModelError(f"{folder} has {config.num_labels} labels, a reward model has 1", hint=HINT)
    model = from_pretrained(
        AutoModelForSequenceClassification,
        folder,
        config=config,
        dtype=DTYPES[dtype],
        trust_remote_code=trust_remote_code,
    )
    if not isinstance(getattr(model, "score", None), nn.Linear):
        raise ModelError(f"{type(model).__name__} has no single linear score layer", hint=HINT)
    _check_score_layer(folder, model)
    return model


def _check_score_layer(folder: str, model: Any) -> None:
    """The library leaves out what an architecture has no place for: a bias, a second layer, another head."""
    used, stray = {f"score.{name}" for name in model.score.state_dict()}, set()
    for path in Path(_local_folder(folder)).glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            names = set(tensors.keys())
        stray |= {name for name in names if name.startswith(("score.", "v_head.", "value_head."))} - used
    if stray:
        raise ModelError(
            f"the files of {folder} hold a score layer that {type(model).__name__} does not use",
            got=", ".join(sorted(stray)),
        )


def _load_heads(folder: Path, score: nn.Linear) -> dict[str, Tensor] | None:
    """The heads of an ensemble, on the score layer's device; None when there are none.

    Raises:
        ModelError: they do not belong to the score layer, which must be their mean.
    """
    file = folder / HEADS_FILE
    if not file.is_file():
        return None
    try:
        heads = {name: tensor.to(score.weight.device) for name, tensor in load_file(file).items()}
        gap = max(
            float((heads[name].float().mean(dim=0) - layer.float()).abs().max())
            for name, layer in ((n, p[0]) for n, p in score.named_parameters())
        )
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ModelError("the heads of the ensemble cannot be used", got=f"{file} ({first_line(error)})") from error
    if not gap <= 64 * torch.finfo(score.weight.dtype).eps * max(1.0, float(score.weight.abs().max())):
        raise ModelError("the score layer is not the mean of the ensemble's heads", got=f"{file}, {gap:.2g} apart")
    return heads


def _local_folder(folder: str) -> str:
    if Path(folder).is_dir():
        return folder
    found = cached_file(folder, "config.json")
    return str(Path(found).parent) if found else folder
