"""Trains toy runs in child processes, kills them, resumes them, and compares with a run that nobody touched.

Run as a script: its process only imports, so that a child costs a fork and not the seconds that the imports take, and
no child inherits another thread. Prints what was found as JSON.

    run_killer.py kills FOLDER VARIANT COUNT SEED [VARIANT COUNT SEED ...]    SIGKILL at random moments
    run_killer.py signals FOLDER       SIGTERM, SIGINT and a second signal
    run_killer.py disk FOLDER          disks without room
    run_killer.py damage FOLDER        damaged checkpoints and records
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Imported here so that no child has to.
import transformers.models.llama.modeling_llama  # noqa: F401
from transformers import PreTrainedTokenizerFast  # noqa: F401

import surefoot.assembly.train  # noqa: F401
from surefoot.cli.main import main
from surefoot.config import Config, dump_config
from surefoot.models.toy import make_toy_model
from surefoot.rewards import CompositeReward
from surefoot.rollout import NativeEngine, decoding
from surefoot.training import trainer
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.durable import read_records
from surefoot.training.evaluation import Evaluator
from surefoot.training.optimizer import Optimizer
from surefoot.training.run_folder import RunFolder
from tests.builders import merged, toy_run

ADAPTIVE = {"coef": 0.1, "controller": "adaptive", "target": 0.5, "horizon": 20}
HELD_OUT = {"every": 2, "max_prompts": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "shared": {
        "model": {"lora": {"rank": 2}},
        "critic": {"kind": "shared"},
        "ppo": {"kl": ADAPTIVE},
        "reward": {"normalise": "running"},
        "evaluate": HELD_OUT,
        "optim": {"schedule": "linear", "warmup_steps": 2},
        "stop": {"patience": 9},
    },
    "separate": {
        "critic": {"warmup_steps": 2, "warmup_explained_variance": 0.2},
        "rollout": {"samples_per_prompt": 2},
        "ppo": {"surrogate": "kl", "cut_off": "bootstrap"},
        "checkpoint": {"every": 1, "keep": 1, "best_by": "score/mean"},
        "reward": {"normalise": "reference"},
        "evaluate": HELD_OUT,
    },
    # The uninterrupted run ends at step 2 or 4, on an evaluation that is a checkpoint too.
    "impatient": {"evaluate": HELD_OUT, "stop": {"patience": 1}, "optim": {"policy_lr": 1e-7}},
    "budget": {"stop": {"kl_budget": 0.02}, "checkpoint": {"every": 1}},
    # A model and batches large enough for both threads to be used.
    "two-threads": {
        "run": {"threads": 2},
        "critic": {"kind": "shared"},
        "rollout": {"prompts_per_step": 7, "samples_per_prompt": 8, "max_new_tokens": 16},
        "evaluate": HELD_OUT,
    },
}
NOT_COMPARED = ("time/", "memory/", "throughput/")


def config_of(folder: Path, variant: str, name: str, **changes: Any) -> Config:
    """The variant's config; ``folder`` holds model, prompts and reward, ``name`` is the run's."""
    base: dict[str, Any] = {"run": {"name": name, "threads": 1}}
    if "evaluate" in VARIANTS[variant]:
        base["evaluate"] = {"prompts": str(folder / "prompts.jsonl")}
    if variant == "two-threads":
        base["model"] = {"policy": str(folder / "wide")}
        if not (folder / "wide").exists():
            make_toy_model(folder / "wide", hidden_size=128, layers=2)
    return toy_run(folder, **merged(merged(base, VARIANTS[variant]), changes))


# ----------------------------------------------------------------------------------------------------- children


def start(cfg: Config, prepare: Callable[[], None] | None = None) -> int:
    """`surefoot train --resume` in a fork; returns the child's id. What it prints is appended to the run's log."""
    base = Path(cfg.run.dir).parent / str(cfg.run.name)
    base.with_suffix(".yaml").write_text(dump_config(cfg), encoding="utf-8")
    pid = os.fork()
    if pid:
        return pid
    with base.with_suffix(".log").open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    code = 70
    try:
        if prepare is not None:
            prepare()
        sys.argv = ["surefoot", "train", str(base.with_suffix(".yaml")), "--resume"]
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def log_of(cfg: Config) -> str:
    """What the run's processes have printed since the log was last read."""
    path = (Path(cfg.run.dir).parent / str(cfg.run.name)).with_suffix(".log")
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


def wait(pid: int) -> int:
    """The child's exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(owner: Any, name: str, number: int, *, after: bool = False) -> None:
    """End this process at the ``number``-th call of a function."""
    real, calls = getattr(owner, name), [0]

    @functools.wraps(real)
    def called(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number and not after:
            die()
        out = real(*args, **kwargs)
        if calls[0] == number:
            die()
        return out

    setattr(owner, name, called)


SYSTEM_CALLS = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir", "ftruncate")


def die_inside(owner: Any, name: str, number: int, *, call: int) -> None:
    """End this process before a call to the system that the ``number``-th call of a function makes."""
    real, calls = getattr(owner, name), [0]

    @functools.wraps(real)
    def called(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] != number:
            return real(*args, **kwargs)
        with dying_at_system_call(call):
            return real(*args, **kwargs)

    setattr(owner, name, called)


@contextmanager
def dying_at_system_call(number: int) -> Iterator[None]:
    real, calls = {name: getattr(os, name) for name in SYSTEM_CALLS}, [0]

    def counted(name: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == number:
                die()
            return real[name](*args, **kwargs)

        return called

    for name in SYSTEM_CALLS:
        setattr(os, name, counted(name))
    try:
        yield
    finally:
        for name in SYSTEM_CALLS:
            setattr(os, name, real[name])


def random_moment(dice: random.Random) -> tuple[str, Callable[[], None] | None, float]:
    """A name, what to prepare in the child, and the seconds after which it is killed from outside."""
    calls: dict[str, tuple[Any, str, int]] = {
        "in a rollout": (decoding, "sample_tokens", 24),
        "between rollout and score": (CompositeReward, "score", 5),
        "in an update": (Optimizer, "step", 20),
        "after the updates": (NativeEngine, "publish", 5),
        "in an evaluation": (Evaluator, "__call__", 3),
        "at a line of metrics": (RunFolder, "append_metrics", 5),
        "at a rollout record": (trainer, "record_step", 2),
    }
    inside: dict[str, tuple[Any, str, int, int]] = {
        "in a checkpoint": (CheckpointStore, "save", 3, 34),
        "in the model": (RunFolder, "publish_model", 1, 20),
        "in the last word": (RunFolder, "finish", 1, 6),
        "in the resume": (RunFolder, "begin", 1, 12),
    }
    name = dice.choice([*calls, *inside, "in a checkpoint", "in a checkpoint", "at any time", "at any time"])
    if name in calls:
        owner, function, most = calls[name]
        number, after = dice.randint(1, most), dice.random() < 0.5
        return name, lambda: die_at_call(owner, function, number, after=after), 60.0
    if name in inside:
        owner, function, most, system_calls = inside[name]
        number, call = dice.randint(1, most), dice.randint(1, system_calls)
        return name, lambda: die_inside(owner, function, number, call=call), 60.0
    return name, None, dice.uniform(0.0, 1.2)


def killed(cfg: Config, prepare: Callable[[], None] | None, seconds: float) -> bool:
    """Let a child run; whether it was killed before it came to its end."""
    pid = start(cfg, prepare)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            if code not in (0, -signal.SIGKILL):
                raise SystemExit(f"a child ended with {code}:\n{log_of(cfg)[-3000:]}")
            return code != 0
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    return wait(pid) == -signal.SIGKILL


# --------------------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True)
class Picture:
    """Everything of a finished run that must not depend on when it was killed."""

    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    samples: dict[str, str]
    weights: dict[str, str]
    end: tuple[str, str, int]


def digests(files: dict[str, Path]) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(files.items())}


def picture(cfg: Config) -> Picture:
    """Of a run that has ended."""
    folder = RunFolder.open(Path(cfg.run.dir) / str(cfg.run.name))
    newest = CheckpointStore(folder.checkpoints, keep=9).latest()
    files = {f"model/{p.name}": p for p in folder.model.glob("*.safetensors")}
    if newest is not None:
        files |= {f"{newest.path.name}/{p.name}": p for p in newest.path.iterdir() if p.name != "manifest.json"}
    state = folder.last_status()
    assert state is not None
    return Picture(
        [{k: v for k, v in line.items() if not k.startswith(NOT_COMPARED)} for line in folder.read_metrics()],
        read_records(folder.path / "evaluations.jsonl"),
        digests({f"{p.parent.name}/{p.name}": p for p in folder.path.glob("*/step-*.jsonl")}),
        digests(files),
        (str(state.status), str(state.reason), state.step),
    )


def differences(found: Picture, expected: Picture) -> list[str]:
    """In words, at most a few."""
    out = []
    for name in ("metrics", "evaluations", "samples", "weights", "end"):
        a, b = getattr(found, name), getattr(expected, name)
        if a == b:
            continue
        if name in ("metrics", "evaluations") and len(a) == len(b):
            keys = [
                (x["step"], k, x.get(k), y.get(k)) for x, y in zip(a, b, strict=True) for k in x if x.get(k) != y.get(k)
            ]
            out.append(f"{name}: {keys[:4]}")
        elif isinstance(a, dict):
            out.append(f"{name}: {sorted(k for k in {*a, *b} if a.get(k) != b.get(k))[:6]}")
        else:
            out.append(f"{name}: {len(a)} entries against {len(b)}: {str(a)[:200]} against {str(b)[:200]}")
    return out


def untouched(folder: Path, variant: str) -> Picture:
    """Of a run that nobody kills."""
    cfg = config_of(folder, variant, f"untouched-{variant}")
    if code := wait(start(cfg)):
        raise SystemExit(f"the untouched run ended with {code}:\n{log_of(cfg)[-3000:]}")
    return picture(cfg)


def reset(cfg: Config) -> None:
    shutil.rmtree(Path(cfg.run.dir) / str(cfg.run.name), ignore_errors=True)


def compare_killed(folder: Path, variant: str, count: int, seed: int) -> dict[str, Any]:
    """Kill a run ``count`` times, going on each time; whenever one comes to its end, compare it and begin anew."""
    dice, problems, moments = random.Random(seed), [], []
    expected = untouched(folder, variant)
    cfg, compared, since = config_of(folder, variant, "killed"), 0, list[str]()
    reset(cfg)
    while len(moments) < count or since:
        name, prepare, seconds = random_moment(dice)
        if len(moments) >= count:
            prepare, seconds = None, 60.0
        if killed(cfg, prepare, seconds):
            moments.append(name)
            since.append(name)
            continue
        compared += 1
        problems += [f"after kills {since}: {d}" for d in differences(picture(cfg), expected)]
        reset(cfg)
        since = []
    counts = {name: moments.count(name) for name in sorted(set(moments))}
    steps, end = len(expected.metrics), expected.end
    found = {"kills": len(moments), "runs": compared, "moments": counts, "steps": steps, "end": end}
    return {**found, "problems": problems[:10]}


# ------------------------------------------------------------------------------------------------------ signals


def signal_at_call(owner: Any, name: str, number: int, *signals: signal.Signals) -> None:
    """Send signals to this process at the ``number``-th call of a function, before it does anything."""
    real, calls = getattr(owner, name), [0]

    @functools.wraps(real)
    def called(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            for each in signals:
                os.kill(os.getpid(), each)
        return real(*args, **kwargs)

    setattr(owner, name, called)


Moment = tuple[Any, str, int]
ON_THE_WAY: dict[str, Moment] = {
    "in the first evaluation": (Evaluator, "__call__", 1),
    "in a rollout": (decoding, "sample_tokens", 15),
    "in scoring": (CompositeReward, "score", 4),
    "in an update": (Optimizer, "step", 10),
    "in a checkpoint": (CheckpointStore, "save", 1),
}
AT_THE_END: dict[str, Moment] = {
    "in the last step": (RunFolder, "append_metrics", 6),
    "in the model": (RunFolder, "publish_model", 1),
}


def state_of(cfg: Config) -> dict[str, Any]:
    """How the run stands: its status, the last step in its metrics, its newest checkpoint, its model."""
    folder = RunFolder.open(Path(cfg.run.dir) / str(cfg.run.name))
    state, newest = folder.last_status(), CheckpointStore(folder.checkpoints, keep=9).latest()
    assert state is not None
    steps = [int(line["step"]) for line in folder.read_metrics()]
    return {
        "status": str(state.status),
        "reason": state.reason,
        "step": state.step,
        "metrics": max(steps, default=0),
        "checkpoint": newest.step if newest else 0,
        "model": folder.model.is_dir(),
    }


def try_signals(folder: Path) -> list[dict[str, Any]]:
    """Signals at each moment; what became of the run, and whether going on leads to the untouched run."""
    variant, found = "shared", []
    expected = untouched(folder, variant)
    cases: list[tuple[str, Moment, tuple[signal.Signals, ...]]] = []
    cases += [(name, moment, (signal.SIGTERM,)) for name, moment in {**ON_THE_WAY, **AT_THE_END}.items()]
    for name, signals in (
        ("in a rollout", (signal.SIGINT,)),
        ("in a rollout", (signal.SIGTERM, signal.SIGINT)),
        ("in a checkpoint", (signal.SIGINT, signal.SIGINT)),
    ):
        cases.append((name, ON_THE_WAY[name], signals))
    for name, moment, signals in cases:
        cfg = config_of(folder, variant, "signalled")
        reset(cfg)
        code = wait(start(cfg, functools.partial(signal_at_call, *moment, *signals)))
        after = {"moment": name, "signals": [s.name for s in signals], "code": code, **state_of(cfg)}
        again = wait(start(cfg))
        found.append({**after, "again": again, "problems": differences(picture(cfg), expected)})
    return found


# -------------------------------------------------------------------------------------- disks without room, damage


def without_room_at(owner: Any, name: str, number: int, *, room: int = 4000) -> None:
    """From the ``number``-th call of a function on, no file of this process may grow beyond so many bytes.

    Into 4000 the first lines of metrics fit, a checkpoint and a model do not.
    """
    real, calls = getattr(owner, name), [0]

    @functools.wraps(real)
    def called(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return real(*args, **kwargs)

    setattr(owner, name, called)


def try_full_disks(folder: Path) -> list[dict[str, Any]]:
    """Room runs out at each kind of writing; then the disk is emptied and the run goes on."""
    expected, found = untouched(folder, "shared"), []
    moments: dict[str, Moment] = {
        "the second checkpoint": (CheckpointStore, "save", 2),
        "metrics": (RunFolder, "append_metrics", 5),
        "a rollout record": (trainer, "record_step", 2),
        "the model": (RunFolder, "publish_model", 1),
        "an evaluation": (Evaluator, "__call__", 3),
    }
    for name, moment in moments.items():
        cfg = config_of(folder, "shared", "full")
        reset(cfg)
        log_of(cfg)
        room = 1000 if name == "an evaluation" else 4000
        code = wait(start(cfg, functools.partial(without_room_at, *moment, room=room)))
        log = log_of(cfg)
        after = {"moment": name, "code": code, "log": log[-1500:], "traceback": "Traceback" in log, **state_of(cfg)}
        again = wait(start(cfg))
        found.append({**after, "again": again, "problems": differences(picture(cfg), expected)})
    return found


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def tear_the_last_line(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b'{"step": 5, "score/me')


def try_damage(folder: Path) -> list[dict[str, Any]]:
    """A run killed after step 4, its newest checkpoint or its records damaged; then it goes on."""
    expected, found = untouched(folder, "separate"), []
    step = "checkpoints/step-{}/{}".format
    damages: list[tuple[str, dict[str, Callable[[Path], None]]]] = [
        ("a bit of the policy", {step(4, "policy.safetensors"): flip_a_bit}),
        ("the end of an optimizer", {step(4, "critic_optimizer.safetensors"): cut_short}),
        ("the manifest", {step(4, "manifest.json"): Path.unlink, step(3, "state.json"): flip_a_bit}),
        ("all checkpoints", {step(n, "critic.safetensors"): flip_a_bit for n in (2, 3, 4)}),
        (
            "the records",
            {"metrics.jsonl": tear_the_last_line, "evaluations.jsonl": tear_the_last_line, "status.json": cut_short},
        ),
    ]
    kept = {"checkpoint": {"every": 1, "keep": 3}}
    for name, files in damages:
        cfg = config_of(folder, "separate", "damaged", **kept)
        reset(cfg)
        code = wait(start(cfg, functools.partial(die_at_call, NativeEngine, "rollout", 8)))
        assert state_of(cfg)["checkpoint"] == 4
        for file, damage in files.items():
            damage(Path(cfg.run.dir) / "damaged" / file)
        log_of(cfg)
        again = wait(start(cfg))
        problems = differences(picture(cfg), expected)
        found.append({"damage": name, "code": code, "again": again, "log": log_of(cfg)[:3000], "problems": problems})
    return found


if __name__ == "__main__":
    mode, place, rest = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if mode == "kills":
        triples = [(rest[i], int(rest[i + 1]), int(rest[i + 2])) for i in range(0, len(rest), 3)]
        print(json.dumps({variant: compare_killed(place, variant, n, seed) for variant, n, seed in triples}))
    else:
        print(json.dumps({"signals": try_signals, "disk": try_full_disks, "damage": try_damage}[mode](place)))
