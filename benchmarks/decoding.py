"""Decoding alone: tokens per second of Surefoot's ``decode`` and of transformers' ``generate``, by turns.

The same prompts and number of tokens, float32, sampled from the whole distribution, nothing ends a row early. vLLM has
an environment of its own: ``vllm_decoding.py``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.measuring import CpuTime, prefer_this_process
from benchmarks.work import TEMPERATURE, add_decoding_arguments, read_prompts, write_result
from surefoot.assembly.train import exact_arithmetic
from surefoot.models.load import quiet_library
from surefoot.models.policy import CausalPolicy, load_policy
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.parallel.rng import generator
from surefoot.rollout.decoding import Sampling, decode

Rows = Sequence[Sequence[int]]


def surefoot_decoder(policy: CausalPolicy, new_tokens: int) -> Callable[[Rows], int]:
    """Surefoot's, in the arithmetic that training uses; gives the number of tokens drawn."""
    sampling = Sampling(max_new_tokens=new_tokens)
    draws = [generator(0, "rollout", index=row).random(new_tokens) for row in range(1024)]

    def run(rows: Rows) -> int:
        with exact_arithmetic(torch.get_num_threads()):
            found = decode(policy.lm, rows, draws[: len(rows)], sampling)
        return sum(len(continuation.tokens) for continuation in found)

    return run


def transformers_decoder(model: Any, new_tokens: int) -> Callable[[Rows], int]:
    """transformers' ``generate`` on left-padded rows; gives the number of tokens drawn."""
    model.generation_config.eos_token_id = None
    config = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, pad_token_id=0
    )

    def run(rows: Rows) -> int:
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for b, row in enumerate(rows):
            ids[b, width - len(row) :] = torch.tensor(row)
            mask[b, width - len(row) :] = 1
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        return int(out[:, width:].numel())

    return run


def compare(
    decoders: Mapping[str, Callable[[Rows], int]], rows: Rows, *, new_tokens: int, repeats: int
) -> list[dict[str, Any]]:
    """Run the decoders by turns after one uncounted round; tokens per second of each.

    Raises:
        RuntimeError: one of them drew another number of tokens.
    """
    speeds: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(repeats + 1):
        for name, run in decoders.items():
            start = time.perf_counter()
            drawn = run(rows)
            speeds[name].append(drawn / (time.perf_counter() - start))
            if drawn != len(rows) * new_tokens:
                raise RuntimeError(f"{name} drew {drawn} tokens, wanted: {len(rows)} x {new_tokens}")
    return [
        {"engine": name, "sequences": len(rows), "tokens_per_s": statistics.median(found[1:]), "runs": found[1:]}
        for name, found in speeds.items()
    ]


def main() -> None:
    """Decode and write how fast it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_decoding_arguments(parser)
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    # For both: they share a process.
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    with quiet_library():
        theirs = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa")
    decoders = {
        "surefoot": surefoot_decoder(load_policy(args.model, temperature=TEMPERATURE), args.new_tokens),
        "generate": transformers_decoder(theirs.eval(), args.new_tokens),
    }
    ids = [row["input_ids"] for row in read_prompts(args.prompts)]
    start, found = CpuTime.now(), []
    for count in args.sequences:
        found += compare(decoders, ids[:count], new_tokens=args.new_tokens, repeats=args.repeats)
    result = {"side": "decoding", "decoding": found, "threads": torch.get_num_threads()}
    write_result(args.out, {**result, "other_cores": CpuTime.now().other_cores(start)})


if __name__ == "__main__":
    main()
