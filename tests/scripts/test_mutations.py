"""Each mutation of the soak tests finds its text in the sources: one that cannot be made proves nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_mutation_finds_its_text_exactly_once() -> None:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
    assert spec is not None and spec.loader is not None
    mutate = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = mutate
    spec.loader.exec_module(mutate)
    assert len(mutate.MUTATIONS) > 50
    counts = {m.name: (ROOT / "src" / "surefoot" / m.file).read_text().count(m.old) for m in mutate.MUTATIONS}
    assert {name: count for name, count in counts.items() if count != 1} == {}
