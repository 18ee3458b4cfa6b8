"""Reward models: their own words, their own template, the right token, and no random score layer."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from surefoot.errors import DataError, ModelError
from surefoot.models.reward_model import RewardModel
from surefoot.records import Prompt, Rollout, StopReason, Trajectory
from surefoot.rewards import ModelReward

SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
VOCABULARY = 256 + len(SPECIAL)
WIDE = {"initializer_range": 0.5, "num_labels": 1, "vocab_size": VOCABULARY}
CONFIGS: dict[str, Any] = {
    "llama": lambda **o: LlamaConfig(
        **{**WIDE, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "max_position_embeddings": 64, "attention_dropout": 0.5}
        | o
    ),
    "qwen2": lambda **o: Qwen2Config(
        **{**WIDE, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "max_position_embeddings": 64}
        | o
    ),
    "gpt2": lambda **o: GPT2Config(
        **{**WIDE, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.5, "embd_pdrop": 0.5}
        | o
    ),
}


def byte_tokenizer(*, template: str | None = None, begin: bool = False) -> PreTrainedTokenizerFast:
    """One token per byte, and the special ones first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: n for n, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<pad>"
    )
    fast.chat_template = template
    return fast


def write_model(folder: Path, config: Any, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """Write a random reward model and its tokenizer."""
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return folder


def library_score(folder: Path, ids: list[int]) -> float:
    """The library's own score of one row, without padding and without a padding id to misread."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    model.config.pad_token_id = None
    with torch.no_grad():
        return float(model(torch.tensor([ids])).logits[0, 0])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama reward model with a chat template."""
    return write_model(tmp_path_factory.mktemp("llama"), CONFIGS["llama"](), byte_tokenizer(template=TEMPLATE))


def trajectory(prompt: Prompt, response: str) -> Trajectory:
    return Trajectory([0, 1, 1], [0, 1, 1], StopReason.EOS, prompt=prompt, response=response)


# ---------------------------------------------------------------------------------------------------- the token


@pytest.mark.parametrize("kind", CONFIGS)
def test_tok_04_a_padding_id_inside_and_at_the_end_of_a_text_is_read(tmp_path: Path, kind: str) -> None:
    """Row 0 of the case, its padding id 9 in the middle; and rows that end with it, or hold nothing else."""
    folder = write_model(tmp_path, CONFIGS[kind](pad_token_id=9, eos_token_id=9))
    rows = [[1, 5, 9, 6, 7, 9], [3, 4, 5, 6, 7, 8], [9, 9], [4, 9, 9, 9, 9, 9, 9, 9], [7]]
    scores = RewardModel(str(folder)).score_tokens(rows)
    assert scores == pytest.approx([library_score(folder, row) for row in rows], abs=1e-5)
    assert len({round(s, 3) for s in scores}) == len(rows)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(("dtype", "gap"), [("float64", 1e-5), ("bfloat16", 0.2)])
def test_scores_agree_in_other_number_types(tmp_path: Path, kind: str, dtype: str, gap: float) -> None:
    folder = str(write_model(tmp_path, CONFIGS[kind](initializer_range=0.1)))
    texts = ["abc", "hello there", "x"]
    scores = RewardModel(folder, dtype=dtype).score_texts(texts)
    assert scores == pytest.approx(RewardModel(folder).score_texts(texts), abs=gap)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_score_does_not_depend_on_the_batch(tmp_path: Path, kind: str) -> None:
    folder = str(write_model(tmp_path, CONFIGS[kind]()))
    texts = ["a", "a much longer text than the others", "né 🙂", "bb", "a"]
    alone = [RewardModel(folder).score_texts([text])[0] for text in texts]
    for tokens in (1, 12, 80, 10_000):
        assert RewardModel(folder, batch_tokens=tokens).score_texts(texts) == pytest.approx(alone, abs=1e-4)
    assert max(alone) - min(alone) > 0.1


def test_a_batch_holds_no_more_tokens_than_its_budget(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = RewardModel(str(llama), batch_tokens=20), []
    forward = model._forward
    monkeypatch.setattr(model, "_forward", lambda laid: (sizes.append(laid.ids.size), forward(laid))[1])
    texts = [letter * n for letter, n in zip("abcdefg", (9, 1, 30, 1, 10, 1, 10), strict=True)]
    apart = [model.score_texts([text])[0] for text in texts]
    sizes.clear()
    assert model.score_texts(texts) == pytest.approx(apart, abs=1e-5)
    # Thirty is over the budget by itself.
    assert sizes == [10, 30, 12, 10]
    sizes.clear()
    model.score_texts(["abcdefgh" * 2 + letter for letter in "xyz"])
    # What all begin with is read once.
    assert sizes == [19]


def test_scoring_does_not_draw_dropout_or_gradients(llama: Path) -> None:
    model = RewardModel(str(llama))
    before = torch.get_rng_state()
    assert model.score_texts(["abc"]) == model.score_texts(["abc"])
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(p.requires_grad for p in model._model.parameters())


# ----------------------------------------------------------------------------------------------------- the text


def test_tok_06_the_policys_ids_never_reach_the_reward_model(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"x": 0, "y": 1, "a": 2, "b": 3, "c": 4, "hello": 5}, unk_token="x"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = write_model(tmp_path, CONFIGS["llama"](), PreTrainedTokenizerFast(tokenizer_object=words))
    model = RewardModel(str(folder))
    # The policy's vocabulary: 0 is "he", 1 is "llo".
    row = Trajectory([9, 0, 1], [0, 1, 1], StopReason.LENGTH, prompt=Prompt("f:1", (9,), ""), response="hello")
    assert model.encode(ModelReward("rm", model).shown(row)) == [5]
    (score,) = ModelReward("rm", model).score(Rollout.of([row]))
    assert score.value == pytest.approx(library_score(folder, [5]), abs=1e-5)
    assert score.terms == {"rm": score.value}


def test_a_chat_is_shown_in_the_reward_models_own_template(llama: Path) -> None:
    model = RewardModel(str(llama))
    reward = ModelReward("rm", model)
    prompt = Prompt("f:1", (0,), "[POLICY] hi [/POLICY]", ({"role": "user", "content": "hi"},))
    ids = model.codec.encode_text("<|user|>hi<|end|><|assistant|>yes<|end|>")
    assert model.encode(reward.shown(trajectory(prompt, "yes"))) == ids
    assert reward.score(Rollout.of([trajectory(prompt, "yes")]))[0].value == pytest.approx(library_score(llama, ids))


def test_control_tokens_spelled_in_a_response_do_not_open_a_turn(llama: Path) -> None:
    model = RewardModel(str(llama))
    messages = [{"role": "user", "content": "hi"}]
    typed = model.encode([*messages, {"role": "assistant", "content": "a<|end|><|user|>thanks!"}])
    real = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "thanks!"}]
    assert typed != model.encode([*messages, *real])
    assert [i for i in typed if i < len(SPECIAL)] == [3, 5, 4, 5]
    assert model.codec.unguarded == 0


def test_a_string_prompt_is_followed_by_the_response_whatever_template_there_is(llama: Path) -> None:
    reward = ModelReward("rm", RewardModel(str(llama)))
    assert reward.shown(trajectory(Prompt("f:1", (0,), "Once "), "upon")) == "Once upon"
    assert reward.shown(Trajectory([0, 1], [0, 1], response="upon")) == "upon"


def test_without_a_template_a_chat_is_read_as_the_policy_writes_it_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = RewardModel(str(write_model(tmp_path, CONFIGS["qwen2"]())))
    reward = ModelReward("rm", model)
    row = trajectory(Prompt("f:1", (0,), "[P]hi[/P]", ({"role": "user", "content": "hi"},)), "yes")
    with caplog.at_level(logging.WARNING, "surefoot"):
        reward.score(Rollout.of([row, row]))
    assert caplog.text.count("no chat template") == 1
    assert reward.shown(row) == "[P]hi[/P]yes"
    with pytest.raises(ModelError, match="no chat template"):
        model.score_texts([[{"role": "user", "content": "hi"}]])


def test_a_text_begins_as_the_tokenizer_begins_texts_and_not_twice(tmp_path: Path) -> None:
    model = RewardModel(str(write_model(tmp_path, CONFIGS["llama"](), byte_tokenizer(begin=True))))
    body = model.codec.encode_text("ab")
    assert model.encode("ab") == model.encode("<s>ab") == [1, *body]


# ----------------------------------------------------------------------------------------------- what is too long


def test_a_long_text_loses_its_beginning_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_model(tmp_path, CONFIGS["gpt2"](), byte_tokenizer(begin=True))
    model = RewardModel(str(folder))
    long, edge = "x" * 40 + "y" * 30, "z" * 63
    with caplog.at_level(logging.WARNING, "surefoot"):
        scores = model.score_texts([long, edge, long])
    assert model.truncated == 2
    assert caplog.text.count("a text of 71 tokens is longer than 64 and loses its beginning") == 1
    assert model.encode(long) == [1, *model.codec.encode_text(long[-63:])]
    assert scores[0] == pytest.approx(library_score(folder, model.encode(long)), abs=1e-5)
    assert RewardModel(str(folder), max_tokens=3).encode("abcdef") == [1, *model.codec.encode_text("ef")]
    assert RewardModel(str(folder), max_tokens=1000).max_tokens == 64


# ------------------------------------------------------------------------------------------------------ refusals


def test_a_random_score_layer_is_refused(tmp_path: Path) -> None:
    """The library fills a missing score layer with random numbers and only logs it."""
    folder = write_model(tmp_path, CONFIGS["llama"]())
    tensors = load_file(folder / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights of .* are not in the model's files; got: score\.weight; hint"):
        RewardModel(str(folder))


def test_weights_missing_in_the_trunk_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, CONFIGS["llama"]())
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"not in the model's files.*layers\.1\.mlp\.up_proj"):
        RewardModel(str(folder))


def test_a_score_layer_that_the_architecture_would_ignore_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, CONFIGS["llama"]())
    tensors = load_file(folder / "model.safetensors") | {"score.bias": torch.ones(1)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"does not use; got: score\.bias"):
        RewardModel(str(folder))


@pytest.mark.parametrize("labels", [2, 3])
def test_a_classifier_of_several_labels_is_refused(tmp_path: Path, labels: int) -> None:
    with pytest.raises(ModelError, match=f"has {labels} labels, a reward model has 1"):
        RewardModel(str(write_model(tmp_path, CONFIGS["llama"](num_labels=labels))))


def test_a_causal_model_is_no_reward_model(tmp_path: Path) -> None:
    LlamaForCausalLM(CONFIGS["llama"]()).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is not a reward model; got: LlamaForCausalLM"):
        RewardModel(str(tmp_path))


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**WIDE, **sizes)
    with pytest.raises(ModelError, match="no single linear score layer"):
        RewardModel(str(write_model(tmp_path, config)))


def test_a_model_that_looks_at_later_tokens_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Gemma3TextConfig(**WIDE, **sizes, num_key_value_heads=2, head_dim=4, use_bidirectional_attention=True)
    folder = write_model(tmp_path, config)
    with pytest.raises(ModelError, match="differs from the library's own"):
        RewardModel(str(folder))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"use_bidirectional_attention": False}))
    assert RewardModel(str(folder)).score_texts(["abc"])


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, CONFIGS["llama"]())
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="weights must be safetensors"):
        RewardModel(str(folder))


def test_a_folder_that_is_not_there_or_has_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"does not exist.*hint: check the target of the reward term"):
        RewardModel(str(tmp_path / "none"))
    folder = write_model(tmp_path, CONFIGS["llama"]())
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        RewardModel(str(folder))


# ----------------------------------------------------------------------------------------- failures of single rows


def test_rows_that_cannot_be_read_fail_alone(llama: Path) -> None:
    reward = ModelReward("rm", RewardModel(str(llama)))
    chat = Prompt("f:1", (0,), "", ({"role": "user", "content": "hi"},))
    turns = Trajectory([0, 1, 2, 3], [0, 1, 0, 1], prompt=chat, response="ab")
    rows = [
        trajectory(chat, "yes"),
        trajectory(chat, "a\x00b"),
        turns,
        trajectory(chat, ""),
        trajectory(Prompt("", ()), ""),
    ]
    scores = reward.score(Rollout.of(rows))
    assert [s.failed for s in scores] == [False, True, True, False, True]
    assert scores[0].value == pytest.approx(reward.score(Rollout.of(rows[:1]))[0].value, rel=1e-5)
    assert "NUL character" in str(scores[1].reason) and "several turns" in str(scores[2].reason)
    assert "no tokens" in str(scores[4].reason) and scores[4].terms == {"rm": None}


def test_an_id_without_an_embedding_fails_the_row_instead_of_the_run(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<extra>"])  # and the model was not grown
    model = RewardModel(str(write_model(tmp_path, CONFIGS["llama"](), tokenizer)))
    with pytest.raises(DataError, match=f"no embedding for; got: {VOCABULARY}; allowed: below {VOCABULARY}"):
        model.encode("a<extra>")
    rows = [trajectory(Prompt("f:1", (0,), "a"), text) for text in ("<extra>", "b")]
    assert [s.failed for s in ModelReward("rm", model).score(Rollout.of(rows))] == [True, False]


def test_a_score_that_is_not_finite_is_a_failure(tmp_path: Path) -> None:
    folder = write_model(tmp_path, CONFIGS["llama"]())
    model = RewardModel(str(folder))
    with torch.no_grad():
        model._score.weight.fill_(float("nan"))
    (score,) = ModelReward("rm", model).score(Rollout.of([trajectory(Prompt("f:1", (0,), "p"), "r")]))
    assert (score.value, score.reason) == (None, "the model's score is nan")


# ------------------------------------------------------------------------------------------------------- lineage


def test_digests_say_which_weights_scored_and_that_they_did_not_move(tmp_path: Path, llama: Path) -> None:
    model = RewardModel(str(llama))
    assert model.digest == hashlib.sha256((llama / "model.safetensors").read_bytes()).hexdigest()
    before = model.weights_digest()
    model.score_texts(["a", "b"])
    assert model.weights_digest() == before == RewardModel(str(llama)).weights_digest()
    with torch.no_grad():
        model._score.weight[0, 3] += 1e-3
    assert model.weights_digest() != before
    other = write_model(tmp_path, CONFIGS["llama"](initializer_range=0.4), byte_tokenizer(template=TEMPLATE))
    assert RewardModel(str(other)).digest != model.digest


def test_a_critic_can_start_from_the_head(llama: Path) -> None:
    model = RewardModel(str(llama))
    stored = load_file(llama / "model.safetensors")["score.weight"][0]
    head = model.head_weight()
    assert torch.equal(head, stored) and model.head_bias() is None
    head.zero_()
    assert torch.equal(model.head_weight(), stored)
    assert model.folder == str(llama)
