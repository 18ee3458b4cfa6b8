"""Small real tokenizers of every family, made in memory: byte-level, SentencePiece-like, Unigram, whole words."""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

TEXTS = [
    "hello there, hello world, this is a film review of the film",
    "the assistant answers the user, the system is silent",
    "Write a one-sentence review of the film, please. user assistant system im start end",
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Trims what people wrote, writes the begin token itself, once per exchange, and closes answers with the end token.
INST = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] | trim + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def byte_level(*, template: str | None = CHATML, extra: tuple[str | AddedToken, ...] = (), **named: str) -> Any:
    """GPT-2's kind: any bytes, exact text back, special tokens on top."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([token for token in extra if isinstance(token, AddedToken)])
    backend.add_special_tokens([token for token in extra if isinstance(token, str)])
    return wrapped(backend, template=template, **({"eos_token": "<|im_end|>"} | named))


def sentencepiece_like(*, template: str | None = INST, add_bos: bool = True, scheme: str = "first") -> Any:
    """Llama's kind: blanks are part of words, a blank is put in front of a text, unknown characters fall to bytes."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=specials, show_progress=False)
    backend.train_from_iterator([*TEXTS, "[INST] [/INST]"], trainer)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    # The 256 bytes must be ordinary tokens: rebuild the vocabulary without marking them.
    state = rebuilt_without_added(backend, keep=("<unk>", "<s>", "</s>"))
    state.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if add_bos:
        state.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return wrapped(state, template=template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def rebuilt_without_added(backend: Tokenizer, *, keep: tuple[str, ...]) -> Tokenizer:
    import json

    spec = json.loads(backend.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in keep]
    return Tokenizer.from_str(json.dumps(spec))


def unigram(*, template: str | None = INST) -> Any:
    """T5's kind, here as a language model's."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([*TEXTS, "[INST] [/INST] <>/"], trainer)
    return wrapped(backend, template=template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def words(
    vocabulary: dict[str, int],
    *,
    specials: tuple[str, ...] = ("<eos>",),
    template: str | None = None,
    begin: str = "",
    end: str = "",
    **named: str,
) -> Any:
    """Whole words between blanks, read back without blanks; control tokens are part of the vocabulary, as in tests."""
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>" if "<unk>" in vocabulary else None))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    if begin or end:
        used = [token for token in (begin, end) if token]
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(part for part in (begin, "$A", end) if part),
            special_tokens=[(token, backend.token_to_id(token)) for token in used],
        )
    return wrapped(backend, template=template, **named)


def wrapped(backend: Tokenizer, *, template: str | None, **named: str) -> Any:
    """As transformers would load it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **named)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer
