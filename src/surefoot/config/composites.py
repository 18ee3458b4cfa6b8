"""Reward terms that come with Surefoot: ``reward.composite: NAME`` starts from a list in ``shipped/``. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from surefoot.config.yaml_text import read_yaml

SHIPPED: Final = Path(__file__).parent / "shipped"


def composite_names() -> list[str]:
    """What ``reward.composite`` may be."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def with_composite(reward: dict[str, Any]) -> dict[str, Any]:
    """Section ``reward`` with the terms of its composite written out.

    A given term with the name of a shipped one changes that one's keys; others follow it. Doing it again changes
    nothing. A section that is not as it should be is left as it is: the validation will say so.
    """
    name, given = reward.get("composite"), reward.get("terms") or []
    if name not in composite_names() or not _named(given):
        return reward
    changes = {term["name"]: term for term in given}
    shipped: list[dict[str, Any]] = read_yaml((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"))
    terms = [{**term, **changes.get(term["name"], {})} for term in shipped]
    known = {term["name"] for term in shipped}
    return {**reward, "terms": [*terms, *(term for term in given if term["name"] not in known)]}


def _named(terms: Any) -> bool:
    return isinstance(terms, list) and all(isinstance(t, dict) and isinstance(t.get("name"), str) for t in terms)
