"""Parts as measured processes leave them, with round numbers."""

from __future__ import annotations

from typing import Any

COUNTS = {"prompt_tokens": 30, "positions": 60, "action_tokens": 20, "trained_tokens": 80, "optimizer_steps": 4}


def step(seconds: float, *, peak_gb: float = 8.0, other_cores: float = 0.01, **counts: int) -> dict[str, Any]:
    """A step that spent three quarters of its time on training."""
    return {
        "step_s": seconds,
        "phases": {"generation": seconds / 4, "train_backward": seconds / 2, "other": seconds / 4},
        "peak_gb": peak_gb,
        "other_cores": other_cores,
        "counts": {**COUNTS, **counts},
    }


def part(*steps: dict[str, Any], allocator: str = "default", spoiled: bool = False, **facts: Any) -> dict[str, Any]:
    """A part with these measured steps; log-probabilities agree unless ``facts`` say otherwise."""
    return {
        "steps": list(steps),
        "epochs": 4,
        "spoiled": spoiled,
        "logp_gap": {"max": 2e-5, "mean": 1e-6, "tokens": 20},
        "settings": {"allocator": allocator},
        **facts,
    }
