"""docs/python.md: its example runs as it stands, and its table names what the package offers.

The functions of docs/rewards.md score as the page says.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import surefoot
from surefoot import Prompt, Rollout, Trajectory
from surefoot.config import RewardTerm
from surefoot.rewards import FunctionReward, total

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text(encoding="utf-8")


def example() -> str:
    """The page's one block of Python."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", example()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == example().count("print(") == 5, done.stdout
    status, step, before, after = lines[0].split()
    assert (status, step) == ("FINISHED", "3") and 0 <= float(before) < float(after) <= 1
    start, *later = [abs(kl) for kl in json.loads(lines[1])]
    assert start < 1e-4 < min(later), "the policy starts as its own reference"
    width, value = re.fullmatch(r"\(1, (\d+)\) (\S+)", lines[3]).groups()  # type: ignore[union-attr]
    assert float(value) == 0.0, "a fresh value head is zero"
    kl, loss = map(float, lines[4].split())
    # With a single action token (the prompt has eight) there is nothing to whiten.
    assert kl != 0.0 and (int(width) == 9 or abs(loss) < 1e-5), "ratios are 1, and whitened advantages have mean 0"
    assert (tmp_path / "runs" / "toy-run" / "model" / "config.json").is_file()


def test_every_public_name_is_on_the_page() -> None:
    missing = [name for name in surefoot.__all__ if f"`{name}" not in PAGE and f"{name}." not in PAGE]
    assert missing in ([], ["__version__"]), missing


@pytest.mark.parametrize(
    ("name", "response", "expected"),
    [
        ("exact", "it was good", [1.0, None]),
        ("exact", "it was bad", [0.0, None]),
        ("review", "Please.", [0.4825, 0.4825]),
        ("no_shouting", "it was LOUD and BAD", [-0.2, -0.2]),
        ("no_shouting", "it was good", [0.0, 0.0]),
    ],
)
def test_the_functions_of_the_page_on_rewards_score(
    tmp_path: Path, name: str, response: str, expected: list[float | None]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "rewards.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "reward.py").write_text("\n".join(blocks))
    # A token a character; the second prompt has no answer.
    tokens, mask = [0] * (1 + len(response)), [False, *[True] * len(response)]
    prompts = [Prompt("a", (0,), columns={"answer": "good"}), Prompt("b", (0,))]
    rollout = Rollout.of([Trajectory(tokens, mask, prompt=prompt, response=response) for prompt in prompts])
    term = RewardTerm(name="term", target=f"{tmp_path / 'reward.py'}:{name}")
    reward = FunctionReward(term, offsets=lambda ids: [(i, i + 1) for i in range(len(ids))])
    try:
        scores = reward.score(rollout)
    finally:
        reward.close()
    assert [total(score) for score in scores] == [x if x is None else pytest.approx(x) for x in expected]
    if name == "no_shouting" and expected[0]:
        assert scores[0].token_rewards is not None and scores[0].token_rewards.index(-0.2) == 1 + response.index("D")
