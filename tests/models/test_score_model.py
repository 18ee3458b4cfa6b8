"""A reward model in training and as saved: its scores in any batch, in transformers, and with several heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from surefoot.errors import ModelError
from surefoot.models.attention import Padded
from surefoot.models.policy import Lora, load_policy
from surefoot.models.reward_model import HEADS_FILE, Ensemble, RewardModel, cut_beginning, encode_item
from surefoot.models.save import save_policy
from surefoot.models.save_score_model import padding_id, save_score_model
from surefoot.models.score_model import ScoreModel, load_score_model
from surefoot.models.scoring import BatchPlan
from surefoot.models.tokenizer import TextCodec
from surefoot.records import IntArray, Prompt, Rollout, StopReason, Trajectory
from surefoot.rewards import ModelReward
from tests.builders import save_gpt2, save_llama
from tests.models.made_tokenizers import CHATML, byte_level

TEXTS: list[Any] = [
    [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the answer"}],
    [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "no"}],
    [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "this is a film of a film"}],
]
KINDS = {"llama": save_llama, "gpt2": save_gpt2}


@pytest.fixture(scope="module", params=KINDS)
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal LM with a tokenizer of ChatML, whose padding token is the end of a turn, and so of every text."""
    folder = tmp_path_factory.mktemp(request.param)
    KINDS[request.param](folder, vocabulary=333, hidden=32, layers=2, spread=0.1)
    template = CHATML.replace("<|im_end|>\n", "<|im_end|>")
    byte_level(template=template, pad_token="<|im_end|>").save_pretrained(folder)
    return folder


def codec_of(folder: Path) -> TextCodec:
    return TextCodec.of(AutoTokenizer.from_pretrained(folder), name="model")


def texts_of(codec: TextCodec) -> list[IntArray]:
    return [np.array(encode_item(codec, item)) for item in TEXTS]


def moved(model: ScoreModel) -> ScoreModel:
    """With heads and adapters that training could have left."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def saved(model: ScoreModel, folder: Path, codec: TextCodec) -> Path:
    facts = {"accuracy": 0.5}
    save_score_model(model, folder, codec, calibration=facts, card="# card\n", rows=texts_of(codec))
    return folder


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])
def test_the_saved_model_scores_alike_in_transformers_and_here(start: Path, tmp_path: Path, lora: Lora | None) -> None:
    codec = codec_of(start)
    model = moved(load_score_model(start, lora=lora))
    folder = saved(model, tmp_path / "rm", codec)
    live = model.scores(texts_of(codec))[:, 0]
    assert np.ptp(live) > 0.05, "the texts must score differently"
    ours = RewardModel(str(folder)).score_texts(TEXTS)
    np.testing.assert_allclose(ours, live, atol=1e-5)
    library = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    written = [tokenizer.apply_chat_template(item, tokenize=False) for item in TEXTS]
    for side in ("right", "left"):
        batch = tokenizer(written, return_tensors="pt", padding=True, padding_side=side, add_special_tokens=False)
        if "gpt2" in str(start) and side == "left":
            continue  # the library's GPT-2 counts positions from the padding
        with torch.no_grad():
            theirs = library(**batch).logits[:, 0].numpy()
        np.testing.assert_allclose(theirs, live, atol=1e-5)
    assert library.config.num_labels == 1 and library.config.architectures[0].endswith("ForSequenceClassification")
    assert tokenizer.pad_token != "<|im_end|>", "a padding token that ends texts hides their end from the library"
    assert {p.name for p in folder.iterdir()} >= {"README.md", "surefoot_reward.json", "model.safetensors"}


@pytest.mark.parametrize("packing", ["on", "off"])
def test_a_score_does_not_depend_on_the_batch(start: Path, packing: str) -> None:
    codec = codec_of(start)
    model = moved(load_score_model(start, heads=2, dtype="float64"))
    alone = np.concatenate([model.scores([row]) for row in texts_of(codec)])
    for tokens in (1, 30, 10**6):
        model.plan = BatchPlan(tokens, packing)
        np.testing.assert_allclose(model.scores(texts_of(codec)), alone, atol=1e-6)


def test_the_score_is_read_at_the_last_token_also_where_it_is_the_padding_token(start: Path) -> None:
    """Rows that end with, or hold, the id that the tokenizer pads with."""
    pad = codec_of(start).tokenizer.pad_token_id
    rows = [np.array([5, pad, 6, 7]), np.array([5, 6, pad]), np.array([pad, pad])]
    model = moved(load_score_model(start, dtype="float64"))
    states = [
        model.trunk(
            input_ids=torch.tensor(row)[None],
            position_ids=torch.arange(len(row))[None],
            use_cache=False,
            attention_layout=Padded(),
        ).last_hidden_state[0, -1]
        for row in rows
    ]
    expected = [float(model.heads(state[None]).detach()) for state in states]
    np.testing.assert_allclose(model.scores(rows)[:, 0], expected, atol=1e-10)


def test_a_single_fresh_head_is_zero_and_several_differ(start: Path) -> None:
    assert not load_score_model(start).heads.weight.any()
    heads = load_score_model(start, heads=3, seed=4).heads.weight
    assert len({tuple(row.tolist()) for row in heads}) == 3
    assert torch.equal(heads, load_score_model(start, heads=3, seed=4).heads.weight)
    assert not torch.equal(heads, load_score_model(start, heads=3, seed=5).heads.weight)


def test_it_starts_from_a_reward_model_or_an_adapter(start: Path, tmp_path: Path) -> None:
    codec = codec_of(start)
    first = moved(load_score_model(start))
    folder = saved(first, tmp_path / "rm", codec)
    again = load_score_model(folder)
    np.testing.assert_allclose(again.scores(texts_of(codec)), first.scores(texts_of(codec)), atol=1e-5)
    spread = load_score_model(folder, heads=4).scores(texts_of(codec))
    assert spread.std(axis=1).min() > 0 and np.abs(spread.mean(axis=1) - first.scores(texts_of(codec))[:, 0]).max() < 1
    policy = load_policy(start, lora=Lora(rank=2))
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter += 0.03
    save_policy(policy, tmp_path / "sft", save_tokenizer=codec.save, card="")
    adapter, merged = (load_score_model(p).trunk for p in (tmp_path / "sft" / "adapter", tmp_path / "sft"))
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(adapter.state_dict()[name], tensor)


# ---------------------------------------------------------------------------------------------------------- ensembles


def test_an_ensemble_is_its_mean_to_others_and_tells_its_disagreement_here(start: Path, tmp_path: Path) -> None:
    codec = codec_of(start)
    model = moved(load_score_model(start, heads=3))
    by_head = model.scores(texts_of(codec))
    folder = saved(model, tmp_path / "rm", codec)
    library = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        plain = [float(library(torch.from_numpy(row)[None]).logits) for row in texts_of(codec)]
    np.testing.assert_allclose(plain, by_head.mean(axis=1), atol=1e-5)
    deviation = by_head.std(axis=1)
    expected = {"mean": by_head.mean(axis=1), "min": by_head.min(axis=1), "lower": by_head.mean(axis=1) - 2 * deviation}
    for how, scores in expected.items():
        rm = RewardModel(str(folder), ensemble=Ensemble(how, 2.0))  # type: ignore[arg-type]
        found, spread = rm.score_with_spread([rm.encode(item) for item in TEXTS])
        np.testing.assert_allclose(found, scores, atol=1e-5)
        np.testing.assert_allclose(spread, deviation, atol=1e-5)
        assert rm.num_heads == 3 and rm.score_texts(TEXTS) == found
    facts = json.loads((folder / "surefoot_reward.json").read_text())
    assert facts["accuracy"] == 0.5 and facts["heads"]["count"] == 3
    assert RewardModel(str(folder)).calibration == facts


def test_the_disagreement_is_logged_beside_the_term(start: Path, tmp_path: Path) -> None:
    codec = codec_of(start)
    folder = saved(moved(load_score_model(start, heads=2)), tmp_path / "rm", codec)
    row = Trajectory([0, 1], [0, 1], StopReason.EOS, prompt=Prompt("p", (0,), "hello "), response="there")
    (score,) = ModelReward("quality", RewardModel(str(folder))).score(Rollout.of([row]))
    assert score.terms["quality"] == score.value and score.terms["quality_spread"] > 0  # type: ignore[operator]


def test_one_head_has_no_disagreement(start: Path, tmp_path: Path) -> None:
    codec = codec_of(start)
    folder = saved(moved(load_score_model(start)), tmp_path / "rm", codec)
    rm = RewardModel(str(folder))
    assert rm.num_heads == 1 and rm.score_with_spread([[5, 6]])[1] is None and not (folder / "ensemble").exists()
    with pytest.raises(ModelError, match=r"one score head.*reward_model\.heads"):
        RewardModel(str(folder), ensemble=Ensemble("min"))


def test_heads_of_another_model_are_refused(start: Path, tmp_path: Path) -> None:
    codec = codec_of(start)
    folder = saved(moved(load_score_model(start, heads=2)), tmp_path / "rm", codec)
    digest, weights = RewardModel(str(folder)).digest, RewardModel(str(folder)).weights_digest()
    heads = load_file(folder / HEADS_FILE)
    swapped = {"weight": heads["weight"].flip(0)}
    save_file(swapped, folder / HEADS_FILE)
    other = RewardModel(str(folder))
    assert other.digest != digest and other.weights_digest() != weights, "the heads are part of what the model is"
    save_file({"weight": heads["weight"] + 0.5}, folder / HEADS_FILE)
    with pytest.raises(ModelError, match="is not the mean of the ensemble's heads"):
        RewardModel(str(folder))
    save_file({"other": heads["weight"]}, folder / HEADS_FILE)
    with pytest.raises(ModelError, match="heads of the ensemble cannot be used"):
        RewardModel(str(folder))


# ------------------------------------------------------------------------------------------------------------ padding


def test_the_padding_token_is_one_that_ends_no_text() -> None:
    codec = TextCodec.of(byte_level(pad_token="<|im_end|>"))
    end, spare = codec.tokenizer.pad_token_id, codec.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert padding_id(codec, {7}) == end, "the tokenizer's own will do"
    assert padding_id(codec, {end}) in codec.chat.special_ids - {end}
    start = codec.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert padding_id(codec, {end, spare}) == start
    assert padding_id(codec, {end, spare, start}) == end, "nothing is left: rows must then have one length"


def test_a_long_text_loses_its_beginning_but_not_what_begins_every_text() -> None:
    codec = TextCodec.of(byte_level())
    assert cut_beginning([1, 2, 3, 4], 2, codec) == [3, 4]
