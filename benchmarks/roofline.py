"""What the machine can do, and the least time in which a step's plain work could be done on it.

Measured with the given threads, the median of several: the rate of float32 matrix products with the shapes of the
model's own layers at the batch's token count (outputs preallocated), and the rate of copying memory (bytes read plus
bytes written).

With ``N`` tokens in all rows, ``A`` action tokens of ``B`` rows, and ``R = N - B`` tokens that policy, critic and
reference must read (what comes after a row's last token is asked of nobody but the reward model)::

    trunk      = 2 x weights of the layers' matrices, FLOP per token
    head       = 2 x hidden size x vocabulary, FLOP per token
    reference  = trunk R + head A
    reward     = trunk N
    training   = epochs x (k trunk R + j head A), for a separate critic + epochs x k trunk R
                 all weights        k = 3, j = 3   (forward, gradient of the input, gradient of the weights)
                 ... checkpointing  k = 4, j = 3   (the layers' forward twice)
                 LoRA               k = 2, j = 2   (no gradient of the base weights)
    generation = (trunk P + head B) / rate, P prompt tokens, then A / B - 1 times
                 max(bytes of all weights / copy rate, B (trunk + head) / rate)

Left out: attention's own products (under 2 % at these lengths), the adapters' products, everything elementwise, the
optimizer, and what need not be computed: old log-probabilities (the sampler has them) and old values (one minibatch a
step: the first epoch's forward pass gives them). So the limit is what no implementation can beat, not what one reaches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import CpuTime, prefer_this_process
from benchmarks.work import CONFIGS, add_process_arguments, write_result

REPEATS = 7
COPIED_BYTES = 256 * 2**20
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with gated MLPs and grouped keys."""

    hidden: int
    intermediate: int
    layers: int
    query_width: int
    key_width: int
    vocabulary: int

    @classmethod
    def read(cls, folder: Path) -> ModelShape:
        """From a model folder's ``config.json``."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        width = int(config.get("head_dim") or hidden // heads)
        return cls(
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            query_width=heads * width,
            key_width=int(config.get("num_key_value_heads") or heads) * width,
            vocabulary=int(config["vocab_size"]),
        )

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of each matrix of a layer: query, key, value, output, gate, up, down."""
        h, q, k, m = self.hidden, self.query_width, self.key_width, self.intermediate
        return ((h, q), (h, k), (h, k), (q, h), (h, m), (h, m), (m, h))

    @property
    def trunk_flop(self) -> int:
        """Of a token's forward pass through all layers."""
        return 2 * self.layers * sum(n * m for n, m in self.matrices)

    @property
    def head_flop(self) -> int:
        """Of a token's logits."""
        return 2 * self.hidden * self.vocabulary

    @property
    def weight_bytes(self) -> int:
        """Of what a decoding step reads, in float32; the embedding of tied weights is the head."""
        return FLOAT32_BYTES * (self.trunk_flop + self.head_flop) // 2


@dataclass(frozen=True)
class StepWork:
    """The tokens of a step: of all prompts, rows, and action tokens of all rows; and the epochs over them."""

    prompt_tokens: int
    rows: int
    action_tokens: int
    epochs: int


@dataclass(frozen=True)
class Rates:
    """FLOP/s of matrix products and bytes/s of copies."""

    gemm: float
    copy: float


def least_step_s(config: str, shape: ModelShape, work: StepWork, rates: Rates) -> dict[str, float]:
    """Least seconds of each phase and of the whole step (``step``), for a key of ``CONFIGS``."""
    settings = CONFIGS[config]
    lora = any(setting.startswith("model.lora") for setting in settings)
    passes = 2 if lora else 3
    trunk_passes = passes + ("model.gradient_checkpointing=true" in settings)
    read = work.prompt_tokens + work.action_tokens - work.rows
    trunk, head = shape.trunk_flop * read, shape.head_flop * work.action_tokens
    epoch = trunk_passes * trunk + passes * head
    if "critic.kind=separate" in settings:
        epoch += trunk_passes * trunk
    phases = {
        "generation": _generation_s(shape, work, rates),
        "reference": (trunk + head) / rates.gemm,
        "reward": shape.trunk_flop * (work.prompt_tokens + work.action_tokens) / rates.gemm,
        "training": work.epochs * epoch / rates.gemm,
    }
    return {**phases, "step": sum(phases.values())}


def _generation_s(shape: ModelShape, work: StepWork, rates: Rates) -> float:
    prefill = (shape.trunk_flop * work.prompt_tokens + shape.head_flop * work.rows) / rates.gemm
    return prefill + (work.action_tokens / work.rows - 1) * decoding_step_s(shape, work.rows, rates)


def decoding_step_s(shape: ModelShape, rows: int, rates: Rates) -> float:
    """Least seconds for one token a row: reading all weights, or the products, whichever takes longer."""
    return max(shape.weight_bytes / rates.copy, rows * (shape.trunk_flop + shape.head_flop) / rates.gemm)


def _median_s(function: Callable[[], Any]) -> float:
    function()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_rates(shape: ModelShape, tokens: int) -> Rates:
    """Measure; torch's number of threads is set already."""
    import torch

    seconds = 0.0
    for width, out in shape.matrices:
        x, weight, y = torch.randn(tokens, width), torch.randn(out, width), torch.empty(tokens, out)

        def product(x: Any = x, weight: Any = weight, y: Any = y) -> None:
            torch.mm(x, weight.t(), out=y)

        seconds += _median_s(product)
    gemm = tokens * shape.trunk_flop / shape.layers / seconds
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return Rates(gemm, 2 * COPIED_BYTES / _median_s(lambda: target.copy_(source)))


def main() -> None:
    """Measure the machine's rates and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_process_arguments(parser)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="tokens of a batch")
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    import torch

    torch.set_num_threads(args.threads)
    start = CpuTime.now()
    rates = measure_rates(ModelShape.read(args.model), args.tokens)
    result = {"side": "machine", "rates": asdict(rates), "threads": torch.get_num_threads(), "tokens": args.tokens}
    write_result(args.out, {**result, "other_cores": CpuTime.now().other_cores(start)})


if __name__ == "__main__":
    main()
