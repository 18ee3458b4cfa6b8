"""Measured processes, one at a time: each result is kept as a part, reused, and thrown away when it was spoiled."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import CpuTime
from benchmarks.work import ALLOCATOR_VARIABLES, write_result

ROOT: Final = Path(__file__).resolve().parents[1]
# One busy neighbour makes timings of two threads 2 to 30 times slower: they wait for each other at every product.
ALLOWED_OTHER_CORES: Final = 0.1
LOG_TAIL: Final = 30

Part = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """A process to measure.

    Attributes:
        name: of its part file.
        python: the interpreter of its environment.
        module: what to run, below ``benchmarks``.
        arguments: of it, without ``--out``.
        environment: variables set for it, on top of those of :func:`process_environment`.
        allocator: name of the allocator settings among them.
        sources: files and folders whose contents the result depends on.
        produces: files that it writes besides its result.
    """

    name: str
    python: Path
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    allocator: str = "default"
    sources: tuple[Path, ...] = ()
    produces: tuple[Path, ...] = ()

    def settings(self) -> dict[str, Any]:
        """What must be equal for a kept part to stand for a run."""
        return {
            "module": self.module,
            "arguments": list(self.arguments),
            "environment": dict(self.environment),
            "allocator": self.allocator,
            "sources": sources_digest(self.sources),
        }


@dataclass(frozen=True)
class Rules:
    """How parts are measured.

    Attributes:
        folder: where they are kept; logs lie beside it.
        attempts: how often a spoiled run is repeated at most, the first one counted.
        quiet_wait_s: how long to wait for a quiet machine before a run.
        allowed_other_cores: more than that spoils a run; None: nothing does.
    """

    folder: Path
    attempts: int = 3
    quiet_wait_s: float = 120.0
    allowed_other_cores: float | None = ALLOWED_OTHER_CORES

    def spoiled(self, part: Part) -> bool:
        """Whether other processes kept the machine too busy during a run."""
        return self.allowed_other_cores is not None and part["other_cores"] > self.allowed_other_cores


def sources_digest(paths: Iterable[Path]) -> str:
    """sha256 over files, and over all Python files of folders."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(path.parent)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def obtain(job: Job, rules: Rules) -> Part:
    """The kept part of a job, or a new one: run until it is not spoiled, at most ``attempts`` times.

    A part that stays spoiled is the quietest of its runs, and says so; it is measured again the next time.

    Raises:
        SystemExit: the process failed; the message shows the end of what it said.
    """
    file, settings = rules.folder / f"{job.name}.json", job.settings()
    kept = read_part(file)
    if kept and kept["settings"] == settings and not kept["spoiled"] and all(p.exists() for p in job.produces):
        say(f"{job.name}: kept from {kept['measured_at']}")
        return kept
    runs: list[Part] = []
    while not runs or (rules.spoiled(runs[-1]) and len(runs) < rules.attempts):
        wait_until_quiet(rules)
        start = time.perf_counter()
        runs.append(run_once(job, rules))
        verdict = "spoiled" if rules.spoiled(runs[-1]) else "done"
        say(
            f"{job.name}: {verdict} in {time.perf_counter() - start:.0f} s, others kept "
            f"{runs[-1]['other_cores']:.2f} cores busy"
        )
    best = min(runs, key=lambda run: run["other_cores"])
    part = {
        **best,
        "settings": settings,
        "spoiled": rules.spoiled(best),
        "attempts": [run["other_cores"] for run in runs],
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    write_result(file, part)
    return part


def read_part(file: Path) -> Part | None:
    """A part file, None when there is none or it is not whole."""
    try:
        part = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return part if isinstance(part, dict) and {"settings", "spoiled", "measured_at"} <= part.keys() else None


def run_once(job: Job, rules: Rules) -> Part:
    """Run the process in a session of its own and read its result; a process that is interrupted ends with us."""
    logs, out = rules.folder.parent / "logs", rules.folder / f".{job.name}.result"
    logs.mkdir(parents=True, exist_ok=True)
    rules.folder.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    command = [str(job.python), "-m", f"benchmarks.{job.module}", "--out", str(out), *job.arguments]
    log = logs / f"{job.name}.log"
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=process_environment(job.environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if code or not out.exists():
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL:])
        say(f"{job.name} failed with exit code {code}; the end of {log}:\n{tail}")
        raise SystemExit(1)
    result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    out.unlink()
    return result


def process_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Our own environment without allocator settings, offline and quiet, with these variables."""
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_VARIABLES}
    fixed = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
    return {**environment, **fixed, **more}


def wait_until_quiet(rules: Rules) -> None:
    """Wait for a second in which others keep the machine no busier than allowed, or until the wait is over."""
    if rules.allowed_other_cores is None:
        return
    deadline, said = time.monotonic() + rules.quiet_wait_s, False
    while time.monotonic() < deadline:
        before = CpuTime.now()
        time.sleep(1.0)
        busy = CpuTime.now().other_cores(before)
        if busy <= rules.allowed_other_cores:
            return
        if not said:
            say(f"waiting up to {rules.quiet_wait_s:.0f} s for a quiet machine: others keep {busy:.2f} cores busy")
            said = True


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"benchmark: {text}", file=sys.stderr, flush=True)
