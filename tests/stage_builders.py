"""Toy runs of the stages before PPO: a model, demonstrations or pairs of two kinds of words, and their configs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surefoot.config import Config, build_config
from surefoot.models.toy import make_toy_model
from tests.builders import merged

PRAISE = ("good", "great", "superb", "lovely")
BLAME = ("bad", "awful", "boring", "dull")
FILMS = ("a film", "the film", "this film", "that film", "a movie", "the story", "old plot", "new script")


def write_rows(file: Path, rows: Sequence[Any]) -> Path:
    """A JSONL file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def asked(film: str) -> list[dict[str, str]]:
    """A prompt about a film."""
    return [{"role": "user", "content": f"Write one sentence about {film}"}]


def demonstrations() -> list[dict[str, Any]]:
    """32 chats: whatever the film, it is praised with one word of four."""
    return [
        {"messages": [*asked(film), {"role": "assistant", "content": f"this is a {word} film"}]}
        for film in FILMS
        for word in PRAISE
    ]


def preferences() -> list[dict[str, Any]]:
    """64 pairs: praise before blame."""
    return [
        {"prompt": asked(film), "chosen": f"it is {good}", "rejected": f"it is {bad}", "margin": 1 + i % 3}
        for film in FILMS
        for i, (good, bad) in enumerate(zip(PRAISE * 2, BLAME + BLAME[::-1], strict=True))
    ]


def toy_sft(folder: Path, **sections: Any) -> Config:
    """A toy model, demonstrations and the config of a run on them, all below ``folder``."""
    _prepare(folder)
    base = {
        "run": {"name": "sft"},
        "model": {"policy": str(folder / "toy")},
        "sft": {
            "data": str(folder / "demonstrations.jsonl"),
            "held_out_share": 0.25,
            "epochs": 2,
            "rows_per_step": 8,
            "lr": 1e-2,
        },
    }
    return _config(folder, merged(base, sections))


def toy_reward_model(folder: Path, **sections: Any) -> Config:
    """A toy model, pairs and the config of a run on them, all below ``folder``."""
    _prepare(folder)
    base = {
        "run": {"name": "rm"},
        "model": {"policy": str(folder / "toy")},
        "reward_model": {
            "data": str(folder / "preferences.jsonl"),
            "held_out_share": 0.25,
            "epochs": 2,
            "pairs_per_step": 16,
            "lr": 3e-3,
        },
    }
    return _config(folder, merged(base, sections))


def _prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "toy").exists():
        make_toy_model(folder / "toy", hidden_size=16, layers=1)
        write_rows(folder / "demonstrations.jsonl", demonstrations())
        write_rows(folder / "preferences.jsonl", preferences())


def _config(folder: Path, sections: dict[str, Any]) -> Config:
    base = {
        "run": {"dir": str(folder / "runs"), "device": "cpu", "threads": 1},
        "evaluate": {"every": 2},
        "checkpoint": {"every": 2},
    }
    return build_config(merged(base, sections))
