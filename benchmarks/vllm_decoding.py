"""vLLM's tokens per second on a CPU, float32. Runs in ``.venv-vllm`` where somebody has made one; nobody has to.

The engine stays in this process, so that its work is not taken for that of other processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

from benchmarks.measuring import CpuTime, prefer_this_process
from benchmarks.work import TEMPERATURE, add_decoding_arguments, read_prompts, write_result


def main() -> None:
    """Decode and write how fast it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_decoding_arguments(parser)
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile the model first (a minute)")
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    import vllm  # type: ignore[import-not-found, unused-ignore]

    options = {"dtype": "float32", "max_model_len": 512, "disable_log_stats": True}
    engine = vllm.LLM(model=args.model, enforce_eager=not args.compiled, **options)
    name = "vllm, compiled" if args.compiled else "vllm"
    sampling = vllm.SamplingParams(temperature=TEMPERATURE, max_tokens=args.new_tokens, ignore_eos=True)
    ids = [row["input_ids"] for row in read_prompts(args.prompts)]
    start, found = CpuTime.now(), []
    for count in args.sequences:
        runs = [_speed(engine, sampling, ids[:count], args.new_tokens) for _ in range(args.repeats + 1)][1:]
        found.append({"engine": name, "sequences": count, "tokens_per_s": statistics.median(runs), "runs": runs})
    result = {"side": "decoding", "decoding": found, "threads": args.threads, "versions": {"vllm": vllm.__version__}}
    write_result(args.out, {**result, "other_cores": CpuTime.now().other_cores(start)})


def _speed(engine: Any, sampling: Any, rows: list[list[int]], new_tokens: int) -> float:
    start = time.perf_counter()
    out = engine.generate([{"prompt_token_ids": row} for row in rows], sampling, use_tqdm=False)
    seconds = time.perf_counter() - start
    drawn = sum(len(one.outputs[0].token_ids) for one in out)
    if drawn != len(rows) * new_tokens:
        raise RuntimeError(f"vLLM drew {drawn} tokens, wanted: {len(rows)} x {new_tokens}")
    return drawn / seconds


if __name__ == "__main__":
    main()
