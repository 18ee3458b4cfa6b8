"""docs/metrics.md: every metric that a run writes is documented, and every documented metric is written by some run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from surefoot.models.toy import make_toy_model
from surefoot.records import Prompt
from surefoot.training.clock import StepClock
from surefoot.training.step import ppo_step
from tests.builders import make_config, make_parts, save_llama
from tests.stage_builders import toy_reward_model, toy_sft

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
KEY = re.compile(r"`([a-z]+/[A-Za-z0-9_]+)`")


def documented() -> set[str]:
    """Keys in the first column of the page's tables."""
    keys: set[str] = set()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            keys |= set(KEY.findall(line.split("|")[1]))
    return keys


VARIANTS = {
    "shared": {"critic": {"kind": "shared"}, "reward": {"normalise": True}},
    "separate": {"ppo": {"surrogate": "kl"}, "batch": {"side_by_side": "on"}},
    "k2 as a loss": {"ppo": {"kl": {"place": "loss", "estimator": "k2"}}},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Keys of one step in several configurations, of a foreign engine, and of an evaluation."""
    folder = save_llama(tmp_path_factory.mktemp("model"))
    prompt = Prompt("p", (1, 2, 3))
    keys: set[str] = set()
    for foreign in (False, True):
        for sections in VARIANTS.values():
            cfg = make_config(folder, **sections)
            parts = make_parts(cfg, lambda tokens: float(tokens[0] % 3))
            if foreign:
                parts.engine.is_trainer_code = False  # type: ignore[attr-defined]
            keys |= set(ppo_step(1, [prompt] * 4, parts, cfg, StepClock()).report.metrics)
    stages = stage_keys(tmp_path_factory.mktemp("stages"))
    return keys | evaluation_keys(tmp_path_factory.mktemp("toy")) | stages


def stage_keys(folder: Path) -> set[str]:
    """Keys of a run of each stage before PPO, an ensemble of heads among them."""
    from surefoot.assembly.reward_model import reward_model
    from surefoot.assembly.sft import sft
    from surefoot.training.display import SilentDisplay
    from surefoot.training.durable import read_records

    short: dict[str, Any] = {"steps": 1}
    runs = [
        sft(toy_sft(folder, sft=short), display=SilentDisplay()),
        reward_model(toy_reward_model(folder, reward_model={**short, "heads": 2}), display=SilentDisplay()),
    ]
    records = [
        r for run in runs for name in ("metrics", "evaluations") for r in read_records(run.folder / f"{name}.jsonl")
    ]
    return {key for record in records for key in record} - {"step"}


def evaluation_keys(folder: Path) -> set[str]:
    """Keys of a held-out evaluation at the training temperature."""
    from surefoot.models.tokenizer import load_codec
    from surefoot.training.evaluation import Evaluator

    model = make_toy_model(folder)
    codec = load_codec(str(model))
    cfg = make_config(model)
    parts = make_parts(cfg, lambda tokens: float(len(tokens)), vocabulary=len(codec.token_ids))
    ids, text = codec.encode_prompt("a film")
    evaluator = Evaluator(
        prompts=(Prompt("a", tuple(ids), text), Prompt("b", tuple(ids), text)),
        reward=parts.reward,
        reference=parts.reference,
        environment=parts.environment,
        text=codec,
        stop_ids=codec.stop_ids,
        cfg=cfg,
    )
    return set(evaluator(parts.learner.policy, 0).metrics)


def test_every_metric_of_a_run_is_documented(written: set[str]) -> None:
    terms = {key for key in written if key == "score/table"}  # a reward term: documented as score/TERM
    assert terms and not (written - terms - documented()), sorted(written - terms - documented())


def test_every_documented_metric_is_written_by_some_run(written: set[str]) -> None:
    assert not (documented() - written - {"score/TERM"}), sorted(documented() - written - {"score/TERM"})


def test_the_page_is_read_as_meant() -> None:
    keys = documented()
    assert {"score/mean", "kl/reference_k1", "evaluate/score_low", "time/step_s"} <= keys and len(keys) > 50
