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
    spec.loader.exec_module(found)
    return found
