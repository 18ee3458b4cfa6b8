"""``python -m benchmarks.service``: what the critic's service costs and gains; each figure a ratio within one run.

* the round trip of a 16 x 512 batch without a model, against a server that computes nothing;
* values a second of many small requests, computed together and each by itself;
* the update phase with policy and critic on a core each, at the same time and one after the other.

Writes ``benchmarks/out/service.json``. Linux with at least two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measuring import CpuTime, prefer_this_process
from benchmarks.parts import ROOT, say
from benchmarks.prepare import prepare
from benchmarks.work import write_result
from surefoot.serving.client import ServiceClient
from surefoot.serving.wire import InferRequest

OUT: Final = ROOT / "benchmarks" / "out"
STUB: Final = ROOT / "tests" / "serving" / "stub_service.py"
CALLS: Final = 400
WARM_UP: Final = 50
CLIENTS: Final = 8
COMMAND: Final = "from surefoot.cli.main import main; main()"


@contextmanager
def process(arguments: list[str], core: int | None = None) -> Iterator[str]:
    """A server; gives the address that it prints first."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as server:
        try:
            if core is not None:
                os.sched_setaffinity(server.pid, {core})
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def rows(count: int, width: int) -> InferRequest:
    """A request for values of made tokens."""
    tokens = np.random.default_rng(0).integers(10, 60, (count, width)).astype(np.int32)
    mask = np.ones(tokens.shape, dtype=np.bool_)
    mask[:, 0] = False
    return InferRequest(tuple(range(count)), (width,) * count, ("values",), tokens, mask)


def round_trip() -> dict[str, float]:
    """Milliseconds of a call with 16 x 512 tokens to a server without a model, packing and checking included."""
    with process([str(STUB), "0"]) as address:
        client = ServiceClient(address)
        client.wait_ready()
        client.handshake()
        request, times = rows(16, 512), []
        for _ in range(WARM_UP + CALLS):
            begun = time.perf_counter()
            client.infer(request)
            times.append(1e3 * (time.perf_counter() - begun))
        times = times[WARM_UP:]
        client.close()
    ordered = sorted(times)
    return {"median_ms": statistics.median(times), "p90_ms": ordered[int(0.9 * len(ordered))], "least_ms": ordered[0]}


def throughput(config: Path, wait_ms: float, requests: int) -> float:
    """Trajectories a second that several clients get values for, one trajectory a request."""
    with process(["-c", COMMAND, "serve", str(config), f"serve.batch_wait_ms={wait_ms}"]) as address:
        client = ServiceClient(address)
        client.wait_ready()
        client.handshake()
        request = rows(1, 96)
        client.infer(request)

        def ask() -> None:
            for _ in range(requests):
                client.infer(request)

        threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        client.close()
    return CLIENTS * requests / seconds


def update_phase(config: Path, folder: Path, *, overlap: bool) -> dict[str, float]:
    """Median seconds of the update phase, policy on one core and the service on another."""
    name = f"overlap-{'on' if overlap else 'off'}-{os.getpid()}"
    with process(["-c", COMMAND, "serve", str(config), f"serve.dir={folder / f'served-{name}'}"], core=1) as address:
        command = ["train", str(config), f"critic.url={address}", f"critic.overlap={json.dumps(overlap)}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run(
            ["taskset", "-c", "0", sys.executable, "-c", COMMAND, *command, f"run.name={name}", f"run.dir={folder}"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines][1:]
    keys = ("time/update_s", "time/score_s", "time/rollout_s", "time/critic_train_s", "time/critic_wait_s")
    return {key: statistics.median(s[key] for s in steps) for key in keys if key in steps[0]}


def write_config(inputs: dict[str, str], folder: Path, threads: int) -> Path:
    """A config for trainer and service."""
    (folder / "reward.py").write_text(
        "def score(prompts, completions, **columns):\n    return [len(set(c)) / 50 for c in completions]\n",
        encoding="utf-8",
    )
    tree = {
        "run": {"steps": 4, "seed": 0, "device": "cpu", "threads": threads},
        "model": {"policy": inputs["model"]},
        "reward": {"terms": [{"name": "letters", "target": "reward.py:score"}]},
        "data": {"prompts": inputs["prompts"], "shuffle": False},
        "rollout": {"prompts_per_step": 8, "max_new_tokens": 32},
        "ppo": {"epochs": 2, "minibatches": 1},
        "optim": {"policy_lr": 1e-6, "critic_lr": 1e-6},
        "checkpoint": {"every": 0},
        "serve": {"port": 0, "dir": str(folder / "service")},
    }
    file = folder / f"service-{threads}.yaml"
    file.write_text(json.dumps(tree), encoding="utf-8")
    return file


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("smollm2", "toy"), default="smollm2")
    parser.add_argument("--requests", type=int, default=12, help="of each of 8 clients")
    args = parser.parse_args()
    prefer_this_process()
    folder = OUT / "service"
    folder.mkdir(parents=True, exist_ok=True)
    inputs = prepare(args.model, OUT / "cache")
    began = CpuTime.now()
    say("round trip without a model")
    result: dict[str, Any] = {"model": args.model, "round_trip_16x512": round_trip()}
    say("many small requests")
    pair = write_config(inputs, folder, 2)
    together, alone = (throughput(pair, wait, args.requests) for wait in (2.0, 0.0))
    result["trajectories_per_s"] = {"batched": together, "alone": alone, "ratio": together / alone}
    say("the update phase on a core each")
    one = write_config(inputs, folder, 1)
    at_once, in_turn = (update_phase(one, folder, overlap=overlap) for overlap in (True, False))
    ratio = in_turn["time/update_s"] / at_once["time/update_s"]
    result["update_phase"] = {"at_once": at_once, "in_turn": in_turn, "ratio": ratio}
    result["busy_cores"] = CpuTime.now().other_cores(began)
    write_result(OUT / "service.json", result)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
