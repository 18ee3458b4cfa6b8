"""The README's commands and code run as they stand, on a toy model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.models.toy import make_toy_model

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SUREFOOT = str(Path(sys.executable).with_name("surefoot"))


def block(language: str, containing: str) -> str:
    """The fenced block of a language that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    found = [b for b in blocks if containing in b]
    assert len(found) == 1, f"{len(found)} {language} blocks with {containing!r}"
    return str(found[0])


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README's example names: config, reward, prompts and a model."""
    folder = tmp_path_factory.mktemp("readme")
    make_toy_model(folder / "path" / "to" / "a" / "causal-lm")
    (folder / "run.yaml").write_text(block("yaml", "my-first"))
    (folder / "reward.py").write_text(block("python", "def short"))
    for name, start in (("prompts", 0), ("held-out", 40)):
        words = ("good", "bad", "slow", "long", "new", "old", "weak", "dull")
        texts = [f"Write a review about a {words[i % 8]} {words[i // 8]} film ." for i in range(start, start + 24)]
        rows: list[dict[str, object]] = [{"prompt": text} for text in texts[::2]]
        rows += [{"prompt": [{"role": "user", "content": text}]} for text in texts[1::2]]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


SMALL = ("run.steps=2", "rollout.prompts_per_step=8", "rollout.max_new_tokens=12", "run.threads=1")


def test_the_commands_of_the_readme_run(workplace: Path) -> None:
    commands = [line.split("#")[0].split() for line in block("bash", "surefoot check").splitlines()]
    assert [command[:2] for command in commands] == [
        ["surefoot", "check"],
        ["surefoot", "train"],
        ["surefoot", "runs"],
    ]
    for command in commands:
        extra = SMALL if command[1] in ("check", "train") else ()
        done = run(workplace, SUREFOOT, *command[1:], *extra)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "my-first" in done.stdout and "FINISHED" in done.stdout
    overrides = re.search(r"`surefoot train run.yaml ([^`]*)`", README)
    assert overrides is not None
    done = run(workplace, SUREFOOT, "train", "run.yaml", *SMALL, *overrides[1].split())
    assert done.returncode == 0 and (workplace / "runs" / "less-kl" / "model").is_dir(), done.stderr


def test_the_python_of_the_readme_runs(workplace: Path) -> None:
    code = block("python", "load_config")
    small = ", ".join(repr(text) for text in (*SMALL, "run.name=python"))
    assert 'load_config("run.yaml")' in code
    code = code.replace('load_config("run.yaml")', f'load_config("run.yaml", [{small}])')
    done = run(workplace, sys.executable, "-c", code + "\nprint(policy.temperature, result.step)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1.0", "2"]


def test_the_quickstart_runs_and_tells_its_result(tmp_path: Path) -> None:
    assert "make quickstart SIZE=tiny" in README
    done = run(tmp_path, SUREFOOT, "quickstart", "--size", "tiny")
    assert done.returncode == 0, done.stderr
    assert "reached the wanted" in done.stdout and "do not overlap" in done.stdout, done.stdout
    assert (tmp_path / "runs" / "quickstart-tiny" / "model" / "config.json").is_file()
    again = run(tmp_path, SUREFOOT, "quickstart", "--size", "tiny")
    assert again.returncode == 0 and "finished already" in again.stderr
    assert again.stdout == done.stdout
