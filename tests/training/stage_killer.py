"""Runs stages in child processes, kills them with SIGKILL, resumes them, and compares with a run that nobody touched.

Run as a script, as ``run_killer.py`` is, whose parts it uses: its process only imports, so a child costs a fork.

    stage_killer.py FOLDER COMMAND COUNT SEED
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.training import run_killer as killer  # sets the environment before torch is loaded

# isort: split
import surefoot.assembly.reward_model
import surefoot.assembly.sft  # noqa: F401
from surefoot.cli.main import main
from surefoot.config import Config, dump_config
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.optimizer import Optimizer
from surefoot.training.run_folder import RunFolder
from surefoot.training.stage import StageJob
from tests.stage_builders import toy_reward_model, toy_sft

SCHEDULE = {"schedule": "cosine", "warmup_steps": 2}
# The rate makes the best step come before the last, so that the published weights are those of an earlier checkpoint.
VARIANTS: dict[str, Callable[[Path, str], Config]] = {
    "sft": lambda folder, name: toy_sft(
        folder,
        run={"name": name},
        sft={"steps": 6, "lr": 0.5},
        optim=SCHEDULE,
        checkpoint={"every": 3, "keep": 1},
        evaluate={"every": 1},
    ),
    "reward-model": lambda folder, name: toy_reward_model(
        folder,
        run={"name": name},
        model={"lora": {"rank": 2}},
        reward_model={"steps": 6, "heads": 2, "margin_scale": 0.2},
        optim=SCHEDULE,
        checkpoint={"every": 1, "keep": 2},
        stop={"patience": 4},
    ),
}
MOMENTS: dict[str, tuple[Any, str, int]] = {
    "in an update": (Optimizer, "step", 6),
    "in an evaluation": (StageJob, "evaluate", 6),
    "at a line of metrics": (RunFolder, "append_metrics", 6),
    "before the model": (StageJob, "before_publishing", 1),
}
INSIDE: dict[str, tuple[Any, str, int, int]] = {
    "in a checkpoint": (CheckpointStore, "save", 4, 30),
    "in the model": (RunFolder, "publish_model", 1, 20),
    "in a finding": (RunFolder, "append_finding", 1, 3),
    "in the last word": (RunFolder, "finish", 1, 6),
    "in the resume": (RunFolder, "begin", 1, 12),
}


def start(cfg: Config, command: str, prepare: Callable[[], None] | None = None) -> int:
    """`surefoot COMMAND --resume` in a fork; returns the child's id."""
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
        sys.argv = ["surefoot", command, str(base.with_suffix(".yaml")), "--resume"]
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


def moment(dice: random.Random) -> tuple[str, Callable[[], None] | None, float]:
    """A name, what to prepare in the child, and the seconds after which it is killed from outside."""
    name = dice.choice([*MOMENTS, *INSIDE, "in a checkpoint", "at any time"])
    if name in MOMENTS:
        owner, function, most = MOMENTS[name]
        number, after = dice.randint(1, most), dice.random() < 0.5
        return name, functools.partial(killer.die_at_call, owner, function, number, after=after), 60.0
    if name in INSIDE:
        owner, function, most, calls = INSIDE[name]
        number, call = dice.randint(1, most), dice.randint(1, calls)
        return name, functools.partial(killer.die_inside, owner, function, number, call=call), 60.0
    return name, None, dice.uniform(0.0, 0.6)


def killed(cfg: Config, command: str, prepare: Callable[[], None] | None, seconds: float) -> bool:
    """Let a child run; whether it was killed before it came to its end."""
    pid, deadline = start(cfg, command, prepare), time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            if code not in (0, -signal.SIGKILL):
                raise SystemExit(f"a child ended with {code}:\n{killer.log_of(cfg)[-3000:]}")
            return code != 0
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    return killer.wait(pid) == -signal.SIGKILL


def everything(cfg: Config) -> dict[str, str]:
    """Digests of all that a run's end must not depend on: the whole model folder, records of evaluations, findings."""
    path = Path(cfg.run.dir) / str(cfg.run.name)
    files = {str(p.relative_to(path)): p for p in (path / "model").rglob("*") if p.is_file() and p.name != "README.md"}
    files |= {str(p.relative_to(path)): p for p in path.glob("evaluations/*.jsonl")}
    files |= {p.name: p for p in (path / "findings.jsonl",) if p.exists()}
    return killer.digests(files)


def compare(folder: Path, command: str, count: int, seed: int) -> dict[str, Any]:
    """Kill a stage ``count`` times, going on each time; whenever it comes to its end, compare it and begin anew."""
    untouched, cfg = VARIANTS[command](folder, "untouched"), VARIANTS[command](folder, "killed")
    if code := killer.wait(start(untouched, command)):
        raise SystemExit(f"the untouched run ended with {code}:\n{killer.log_of(untouched)[-3000:]}")
    expected, files = killer.picture(untouched), everything(untouched)
    dice, problems, moments, runs = random.Random(seed), list[str](), list[str](), 0
    since: list[str] = []
    while len(moments) < count or since:
        name, prepare, seconds = moment(dice)
        if len(moments) >= count:
            prepare, seconds = None, 60.0
        if killed(cfg, command, prepare, seconds):
            moments.append(name)
            since.append(name)
            continue
        runs += 1
        found = killer.differences(killer.picture(cfg), expected)
        found += [f"{name} differs" for name in files if everything(cfg).get(name) != files[name]]
        problems += [f"after kills {since}: {one}" for one in found]
        shutil.rmtree(Path(cfg.run.dir) / str(cfg.run.name))
        since = []
    counts = {name: moments.count(name) for name in sorted(set(moments))}
    return {"kills": len(moments), "runs": runs, "moments": counts, "end": expected.end, "problems": problems[:10]}


if __name__ == "__main__":
    place, command, count, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    print(json.dumps(compare(place, command, count, seed)))
