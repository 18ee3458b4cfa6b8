"""The example on over-optimisation: what it calls a rise and a fall, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.training.durable import json_bytes
from tests.examples.example_scripts import script

gold = script("overoptimisation", "gold")
reward = script("overoptimisation", "reward")


def point(step: int, proxy: float, value: float, half: float = 0.1) -> dict[str, Any]:
    parts = {name: {"mean": x, "low": x - half, "high": x + half} for name, x in (("proxy", proxy), ("gold", value))}
    return {"step": step, "kl": 2.0 * step, "tokens": 20.0, "example": "good", **parts}


def test_a_rise_and_a_fall_need_intervals_that_do_not_meet(tmp_path: Path) -> None:
    points = [point(0, 0.2, 0.0), point(4, 0.7, 1.0), point(8, 0.9, 0.4)]
    found = gold.summary(points)
    assert found["best_step"] == 4 and found["proxy_rose"] and found["gold_fell"]
    assert not gold.summary([*points[:2], point(8, 0.9, 0.9)])["gold_fell"]
    assert not gold.summary([point(0, 0.2, 0), point(4, 0.25, 1), point(8, 0.3, 0)])["proxy_rose"]
    gold.draw(points, tmp_path / "gold.png")
    assert (tmp_path / "gold.png").read_bytes().startswith(b"\x89PNG")


def test_gold_is_in_deviations_of_the_start(tmp_path: Path) -> None:
    class Model:
        def score_texts(self, chats: list[Any]) -> list[float]:
            assert chats[0][0]["content"] == 'Write a one-sentence review of the film "A".'
            return [float(chat[-1]["content"]) for chat in chats]

    steps = {0: ("1", "3"), 4: ("5", "7"), 8: ("2", "2")}
    lines = [{"step": step, "evaluate/reference_k1": 1.0, "evaluate/tokens_mean": 2.0} for step in steps]
    (tmp_path / "evaluations.jsonl").write_bytes(b"".join(map(json_bytes, lines)))
    (tmp_path / "evaluations").mkdir()
    for step, texts in steps.items():
        rows = [
            {
                "prompt_id": f"p:{title}",
                "prompt": f'<|user|>Write a one-sentence review of the film "{title}".<|end|>',
                "response": text,
                "score": 0.5,
            }
            for title, text in zip("AB", texts, strict=True)
        ]
        (tmp_path / "evaluations" / f"step-{step}.jsonl").write_bytes(b"".join(map(json_bytes, rows)))
    points = gold.curve(tmp_path, Model())
    assert [p["gold"]["mean"] for p in points] == pytest.approx([0.0, 4.0, 0.0])


def test_too_few_evaluations_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold, "RewardModel", lambda path: None)
    (tmp_path / "evaluations.jsonl").write_bytes(json_bytes({"step": 0}))
    assert gold.main(tmp_path, tmp_path / "model", tmp_path / "out") == 2
    assert "evaluated too seldom" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_the_proxy_reads_words() -> None:
    good, bad, neither = reward.lexicon(["a great, lovely film", "a dull, awful film", "a film"])
    assert good > 0.5 and bad < -0.5 and neither == 0
