"""Whether a reward model may be used: its report must be of this model, and must have passed. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from surefoot.errors import ConfigError

REPORT_FILE: Final = "report.json"


def check_report(file: Path, *, model: str, identity: Mapping[str, str]) -> dict[str, Any]:
    """Refuse a reward model whose report is of another one, or did not pass.

    Args:
        file: what ``surefoot eval reward-model`` wrote, or its folder.
        model: what the reward model is called in messages.
        identity: what decides its scores, from :func:`surefoot.models.reward_identity.reward_identity`.
    Returns:
        the report.
    Raises:
        ConfigError: why it may not be used.
    """
    place = file / REPORT_FILE if file.is_dir() else file
    hint = f"surefoot eval reward-model {model} --pairs FILE makes one"
    try:
        report = json.loads(place.read_text(encoding="utf-8"))
        tested, found = dict(report["model"]["identity"]), report["verdict"]
        reasons = [str(f["message"]) for f in report["findings"] if f["severity"] == "error"]
    except FileNotFoundError:
        raise ConfigError(f"there is no report on the reward model {model}", got=str(place), hint=hint) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the report on the reward model {model} cannot be read", got=f"{place}: {error!r:.80}", hint=hint
        ) from None
    changed = [
        f"{name} {str(tested.get(name))[:12]}, not {now[:12]}"
        for name, now in identity.items()
        if tested.get(name) != now
    ]
    if changed:
        what = "the report is on another reward model, or on another use of it"
        raise ConfigError(what, got=f"a report on {'; '.join(changed)}", hint=hint)
    if found != "pass":
        raise ConfigError(
            f"the reward model {model} did not pass its tests",
            got="; ".join(reasons[:3]) or str(found),
            hint="train a better one; or test it with bounds that you can answer for, as shift.length=0.5",
        )
    return dict(report)
