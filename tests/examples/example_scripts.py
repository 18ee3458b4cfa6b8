"""Scripts of the examples as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def script(folder: str, name: str) -> ModuleType:
    """``examples/FOLDER/NAME.py``."""
    spec = importlib.util.spec_from_file_location(
        f"{folder.replace('-', '_')}_{name}", EXAMPLES / folder / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    places = [str(EXAMPLES / name) for name in (folder, "film-reviews")]
    sys.path[:0] = places  # as when it is run; some take from the film example
    try:
        spec.loader.exec_module(found)
    finally:
        for place in places:
            sys.path.remove(place)
    return found
