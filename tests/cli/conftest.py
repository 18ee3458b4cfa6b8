"""A workspace with all that a run needs, and the real command called in this process."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

REWARD = """\
GOOD = {"good", "great", "superb", "lovely", "charming", "wonderful", "funny", "clever"}
BAD = {"bad", "awful", "boring", "terrible", "dull", "weak", "stupid", "horrible"}


def tone(prompts, completions, **columns):
    return [float(sum(w in GOOD for w in t.split()) - sum(w in BAD for w in t.split())) for t in completions]
"""
CONFIG: dict[str, Any] = {
    "run": {"dir": "runs", "steps": 2, "threads": 1},
    "model": {"policy": "toy"},
    "critic": {"kind": "shared"},
    "reward": {"terms": [{"name": "tone", "target": "reward.py:tone"}]},
    "data": {"prompts": "prompts.jsonl"},
    "evaluate": {"prompts": "held-out.jsonl"},
    "rollout": {"prompts_per_step": 4, "max_new_tokens": 8},
}


def chats(texts: list[str]) -> str:
    return "".join(json.dumps({"prompt": [{"role": "user", "content": text}]}) + "\n" for text in texts)


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def findings(self) -> dict[str, dict[str, Any]]:
        """What ``check --json`` printed, by name; of several with one name the worst."""
        rank = {"info": 0, "warning": 1, "error": 2}
        found: dict[str, dict[str, Any]] = {}
        for finding in sorted(json.loads(self.out), key=lambda f: rank[f["severity"]]):
            found[finding["name"]] = finding
        return found


class Workspace:
    """A folder with config, prompts and reward; ``run`` calls ``surefoot`` in it."""

    def __init__(self, path: Path, run: Callable[..., Outcome]) -> None:
        self.path, self._run = path, run
        self.config = path / "c.yaml"

    def run(self, *arguments: str) -> Outcome:
        return self._run(*arguments)

    def check(self, *overrides: str) -> Outcome:
        return self._run("check", "c.yaml", *overrides, "--json")

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def set(self, tree: Mapping[str, Any]) -> None:
        """Write the config anew, with whole sections replaced."""
        self.config.write_text(yaml.safe_dump({**CONFIG, **tree}), encoding="utf-8")

    def contents(self) -> dict[str, Any]:
        """Every file with its bytes and time, every folder."""
        return {
            str(p.relative_to(self.path)): (p.stat().st_mtime_ns, p.read_bytes()) if p.is_file() else None
            for p in sorted(self.path.rglob("*"))
        }


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy model with a chat template."""
    from surefoot.models.toy import make_toy_model

    return make_toy_model(tmp_path_factory.mktemp("model") / "toy")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    """The real entry point, called in this process: a process of its own would load torch for each test."""
    from surefoot.cli.main import main

    root, own = logging.getLogger(), logging.getLogger("surefoot")
    before = list(root.handlers), root.level, own.level

    def run(*arguments: str) -> Outcome:
        root.handlers[:] = []  # so that the command sets up its own log, on the stderr of this test
        monkeypatch.setattr(sys, "argv", ["surefoot", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 0, *capsys.readouterr())

    yield run
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)


@pytest.fixture
def bare(tmp_path: Path, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose model is yet to be made: enough for what is found before a model is looked at."""
    monkeypatch.chdir(tmp_path)
    space = Workspace(tmp_path, command)
    space.set({})
    space.write(
        "prompts.jsonl", chats([f"Write one review about a {a} film ." for a in ("new", "old", "slow", "loud")])
    )
    space.write("held-out.jsonl", chats(["Write one review about a funny film .", "Write about a clever story ."]))
    space.write("reward.py", REWARD)
    return space


@pytest.fixture
def space(bare: Workspace, toy: Path) -> Workspace:
    """A workspace that trains as it stands."""
    (bare.path / "toy").symlink_to(toy)
    return bare
