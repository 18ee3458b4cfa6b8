"""What may run without torch does not load it, and ``surefoot --help`` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.architecture import checks

MAX_HELP_SECONDS = 0.5


def test_torch_free_modules_load_neither_torch_nor_transformers() -> None:
    modules = checks.light_modules()
    for name in ("surefoot", "surefoot.errors", "surefoot.records", "surefoot.protocols", "surefoot.config"):
        assert name in modules
    assert checks.heavy_imports(modules) == []


@pytest.mark.skipif(not (checks.PACKAGE / "cli" / "main.py").exists(), reason="there is no command yet")
def test_help_answers_within_half_a_second() -> None:
    command = [str(Path(sys.executable).with_name("surefoot")), "--help"]
    tries = []
    for _ in range(5):  # processor time, and the best of five: other processes may share the machine
        seconds, printed = checks.process_seconds(command)
        assert "train" in printed
        tries.append(seconds)
        if seconds < MAX_HELP_SECONDS:
            return
    pytest.fail(f"surefoot --help took {min(tries):.2f} s of processor time, at most {MAX_HELP_SECONDS}")


# ------------------------------------------------------------------------------------ that these tests can fail


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small package in which a stand-in for a heavy package is loaded directly, indirectly and late."""
    package = tmp_path / "tiny_package"
    for name, text in {
        "__init__.py": "",
        "records.py": "import json",
        "config/__init__.py": "from tiny_package.config import tree",
        "config/tree.py": "def late():\n    import heavy_stand_in",
        "gateway/__init__.py": "",
        "gateway/plan.py": "import tiny_package.models",
        "monitor/__init__.py": "",
        "monitor/signals.py": "from heavy_stand_in import tensor",
        "monitor/sinks/__init__.py": "import heavy_stand_in",
        "models.py": "try:\n    import heavy_stand_in\nexcept ImportError:\n    pass",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    (tmp_path / "heavy_stand_in.py").write_text("tensor = list", encoding="utf-8")
    return package


def test_light_modules_are_found_on_disk(package: Path) -> None:
    assert checks.light_modules(package) == [
        "tiny_package",
        "tiny_package.config",
        "tiny_package.config.tree",
        "tiny_package.gateway",
        "tiny_package.gateway.plan",
        "tiny_package.monitor",
        "tiny_package.monitor.signals",
        "tiny_package.records",
    ]


def test_each_heavy_import_is_seen_with_the_line_that_asked_for_it(package: Path) -> None:
    found = checks.heavy_imports(checks.light_modules(package), package, ["heavy_stand_in"])
    assert found == [
        f"tiny_package.gateway.plan loads heavy_stand_in, from {package / 'models.py'}:2",
        f"tiny_package.monitor.signals loads heavy_stand_in, from {package / 'monitor' / 'signals.py'}:1",
    ]


def test_a_module_that_cannot_be_imported_is_seen(package: Path) -> None:
    (package / "records.py").write_text("import no_such_package", encoding="utf-8")
    (found,) = checks.heavy_imports(["tiny_package.records"], package)
    assert "No module named 'no_such_package'" in found


def test_processor_time_is_measured() -> None:
    seconds, printed = checks.process_seconds([sys.executable, "-c", "sum(range(10**7)); print('done')"])
    assert printed == "done\n"
    assert seconds > 0.05
    with pytest.raises(AssertionError, match="on purpose"):
        checks.process_seconds([sys.executable, "-c", "raise SystemExit('on purpose')"])
