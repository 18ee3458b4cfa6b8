"""Whole toy runs in processes of their own, with and without a service, and what must be the same of them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from surefoot.config import Config, dump_config
from surefoot.training.checkpoint import MANIFEST, CheckpointStore
from surefoot.training.durable import read_records
from surefoot.training.run_folder import RunFolder
from tests.builders import merged
from tests.serving.parts import toy_config
from tests.serving.processes import TOKEN, KilledAgain, Process, ServiceProcess, Zygote, ready_client

NOT_COMPARED = ("time/", "memory/", "throughput/")
CRITIC = ("critic.safetensors", "critic_optimizer.safetensors")
ONE_BY_ONE = {"critic": {"overlap": False}}
"""Overlap off; what the service computes is then what one process computes, bit for bit."""
FAILING = '''
def score(prompts, completions, **_):
    """Fails on short answers, and on whatever is asked about an old film."""
    failed = [len(c.split()) < 3 or "old" in str(p) for p, c in zip(prompts, completions, strict=True)]
    return [None if f else len(set(c.split())) / 8 for f, c in zip(failed, completions, strict=True)]
'''


@dataclass
class Outcome:
    """What a run came to: nothing of it may depend on where its critic was, or on who was killed when."""

    metrics: list[dict[str, Any]]
    samples: dict[str, str]
    weights: dict[str, str]
    end: tuple[str, str, int]


@dataclass
class Trial:
    """Runs of one config below one folder.

    Attributes:
        zygote: where processes come from.
        toy: model, prompts and reward.
        folder: for run folders, the service's folder and what the processes print.
        sections: of the config, the trainer's and the service's.
    """

    zygote: Zygote
    toy: Path
    folder: Path
    sections: Mapping[str, Any] = field(default_factory=dict)

    def config(self, name: str = "run", **changes: Any) -> Config:
        """The config of a run."""
        serve = {"dir": str(self.folder / "service"), "port": 0, "batch_wait_ms": 0}
        own = {"run": {"name": name, "dir": str(self.folder / "runs")}, "serve": serve}
        return toy_config(self.toy, **merged(merged(own, self.sections), changes))

    def file(self, name: str = "run", **changes: Any) -> str:
        """That config as a file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = dump_config(self.config(name, **changes))
        path = self.folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def serve(
        self, *, die: Mapping[str, Any] | None = None, limit: int | None = None, **changes: Any
    ) -> ServiceProcess:
        """A service that is not started again."""
        file = self.file("service", **changes)
        return ServiceProcess(self.zygote, self.folder / "service-out", [file], die=die, limit=limit)

    def serve_again(self, *mines: dict[str, Any]) -> KilledAgain:
        """A service that is started again on its port whenever it dies, of these mines in turn."""
        return KilledAgain(self.zygote, self.folder / "service-out", [self.file("service")], mines)

    def train(
        self, name: str, url: str | None = None, *, die: Mapping[str, Any] | None = None, **changes: Any
    ) -> Process:
        """`surefoot train --resume`: begins where there is nothing to go on with."""
        if url is not None:
            changes = merged({"critic": {"url": url}}, changes)
        file = self.file(name, **changes)
        return Process(self.zygote, self.folder / f"{name}-out", ["train", file, "--resume"], die=die)

    def finish(self, name: str, url: str | None = None, **changes: Any) -> Outcome:
        """A run to its end, and what it came to."""
        process = self.train(name, url, **changes)
        assert process.wait(600) == 0, process.stderr.read_text()[-3000:]
        return self.outcome(name)

    def run_folder(self, name: str) -> Path:
        """Of a run."""
        return self.folder / "runs" / name

    def checkpoints(self, name: str) -> CheckpointStore:
        """Of a run."""
        return CheckpointStore(self.run_folder(name) / "checkpoints", keep=9)

    def service_checkpoints(self, name: str) -> CheckpointStore:
        """Of a run, at the service."""
        bound = json.loads((self.run_folder(name) / "critic_service.json").read_text())["run"]
        return CheckpointStore(self.folder / "service" / "runs" / bound / "checkpoints", keep=9)

    def outcome(self, name: str) -> Outcome:
        """What a run that has ended came to."""
        folder = RunFolder.open(self.run_folder(name))
        state, newest = folder.last_status(), self.checkpoints(name).latest()
        assert state is not None and newest is not None
        service = newest.meta.get("critic_service")
        critic = newest.path if service is None else self.service_checkpoints(name).folder / service["name"]
        if service is not None:
            assert hashlib.sha256((critic / MANIFEST).read_bytes()).hexdigest() == service["digest"]
        own = [p for p in newest.path.glob("*.safetensors") if p.name not in CRITIC]
        files = [*own, *(critic / part for part in CRITIC), *folder.model.glob("*.safetensors")]
        return Outcome(
            [{k: v for k, v in line.items() if not k.startswith(NOT_COMPARED)} for line in folder.read_metrics()],
            {p.name: digest(p) for p in sorted((folder.path / "samples").glob("step-*.jsonl"))},
            {f"{p.parent.name}/{p.name}": digest(p) for p in sorted(files)},
            (str(state.status), str(state.reason), state.step),
        )

    def records(self, name: str, step: int) -> list[dict[str, Any]]:
        """The rollout records of a step."""
        return read_records(self.run_folder(name) / "samples" / f"step-{step}.jsonl")


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """In words, at most a few."""
    out: list[str] = []
    for name in ("metrics", "samples", "weights", "end"):
        a, b = getattr(found, name), getattr(expected, name)
        if a == b:
            continue
        if name == "metrics" and len(a) == len(b):
            pairs = [(x["step"], k, x.get(k), y.get(k)) for x, y in zip(a, b, strict=True) for k in x | y]
            out.append(f"metrics: {[pair for pair in pairs if pair[2] != pair[3]][:4]}")
        elif isinstance(a, dict):
            out.append(f"{name}: {sorted(k for k in {*a, *b} if a.get(k) != b.get(k))[:6]}")
        else:
            out.append(f"{name}: {str(a)[:300]} against {str(b)[:300]}")
    return out


def paragraph(process: Process) -> str:
    """The one paragraph that a command ends with; there is no traceback."""
    text = process.stderr.read_text()
    assert "Traceback" not in text, text[-3000:]
    assert text.count("\nerror: ") + text.startswith("error: ") == 1, text[-3000:]
    return text[text.index("error: ") :]


def mine(owner: str, name: str, number: int = 1, *, after: bool = False, call: int | None = None) -> dict[str, Any]:
    """SIGKILL at a call of a function."""
    return {"owner": owner, "name": name, "number": number, "after": after, "call": call}


def wait_until(true: Callable[[], bool], seconds: float = 180.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


def in_background(work: Callable[[], Any]) -> threading.Thread:
    """Work in a thread that has begun."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def write_failing_reward(folder: Path) -> Sequence[Mapping[str, Any]]:
    """``reward.terms`` with a function that fails on some rows."""
    (folder / "failing.py").write_text(FAILING, encoding="utf-8")
    return [{"name": "distinct", "target": f"{folder / 'failing.py'}:score"}]


def ready(service: ServiceProcess) -> str:
    """The address of a service, once it answers."""
    with ready_client(service.address(), token=TOKEN):
        return service.address()


def broken_model(folder: Path, *, model: Path) -> str:
    """A copy of a model that gives NaN for every text, and finite numbers for the ids it is first tried with."""
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if "embed_tokens" in name)
    rows = np.array(weights[name])
    tried = [number * 7919 % len(rows) for number in range(1, 13)]
    rows[[row for row in range(len(rows)) if row not in tried]] = np.nan
    save_file({**weights, name: rows}, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
