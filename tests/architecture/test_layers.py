"""A module imports from lower layers only, siblings not at all, and outside packages stay in their homes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import checks


def test_no_module_imports_from_its_own_line_or_above() -> None:
    assert checks.layer_breaks() == []


def test_ray_vllm_and_the_web_framework_stay_in_their_homes() -> None:
    assert checks.home_breaks() == []


# ------------------------------------------------------------------------------------ that these tests can fail


def tree(tmp_path: Path, files: dict[str, str]) -> Path:
    package = tmp_path / "surefoot"
    for name, text in {"__init__.py": "", **files}.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if file.parent != package and not (file.parent / "__init__.py").exists():
            (file.parent / "__init__.py").touch()
    return package


BREAKS = {
    "absolute": ("algo/gae.py", "import surefoot.training.step", "algo imports surefoot.training.step, which"),
    "absolute as": ("algo/gae.py", "import surefoot.models as m", "algo imports surefoot.models, which lies above"),
    "from module": (
        "models/policy.py",
        "from surefoot.rollout.native import Engine",
        "models imports surefoot.rollout.",
    ),
    "from root": ("models/policy.py", "from surefoot import training", "models imports surefoot.training"),
    "relative": ("models/policy.py", "from ..training.step import ppo_step", "models imports surefoot.training.step."),
    "relative root": ("models/policy.py", "from .. import serving", "models imports surefoot.serving"),
    "relative in __init__": ("models/__init__.py", "from ..rewards import x", "models imports surefoot.rewards.x"),
    "relative in layer 0": ("records.py", "from . import config", "records imports surefoot.config"),
    "relative too far": ("models/policy.py", "from ... import x", "beyond the top"),
    "in a function": ("algo/gae.py", "def f():\n    import surefoot.cli.main", "algo imports surefoot.cli.main"),
    "in a deep package": (
        "monitor/detectors/kl.py",
        "from ...training import x",
        "monitor imports surefoot.training.x",
    ),
    "type checking": (
        "algo/gae.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from surefoot.models import Policy",
        "algo imports surefoot.models.Policy",
    ),
    "by text": ("algo/gae.py", "import importlib as i\ni.import_module('surefoot.data')", "algo imports surefoot.data"),
    "by relative text": (
        "algo/gae.py",
        "from importlib import import_module\nimport_module('..data', __package__)",
        "data",
    ),
    "by attribute": ("algo/gae.py", "import surefoot\nsurefoot.training.step", "algo imports surefoot.training"),
    "by renamed attribute": (
        "algo/gae.py",
        "import surefoot as sf\nsf.training.step",
        "algo imports surefoot.training",
    ),
    "public face": ("cli/main.py", "from surefoot import load_policy", "which is the public face"),
    "star": ("cli/main.py", "from surefoot import *", "which is the public face"),
    "sibling": ("rewards/model.py", "from surefoot.data import x", "rewards imports surefoot.data.x, a sibling"),
    "sibling the other way": (
        "envs/tools.py",
        "from surefoot.rollout import x",
        "envs imports surefoot.rollout.x, a sibling",
    ),
    "sibling at the top": ("dashboard/app.py", "import surefoot.cli", "dashboard imports surefoot.cli, a sibling"),
    "errors < records": ("errors.py", "from surefoot.records import Prompt", "errors imports surefoot.records"),
    "records < protocols": (
        "records.py",
        "from surefoot.protocols import Policy",
        "records imports surefoot.protocols",
    ),
    "protocols < config": ("protocols.py", "import surefoot.config", "protocols imports surefoot.config"),
    "the command": ("cli/main.py", "import surefoot.__main__", "cli imports surefoot.__main__, which lies above"),
    "no layer": ("magic/x.py", "", "'magic' has no layer"),
    "vague package": ("models/utils/x.py", "", "a name that says nothing"),
    "vague module": ("models/_common.py", "", "a name that says nothing"),
}


@pytest.mark.parametrize(("file", "text", "complaint"), BREAKS.values(), ids=BREAKS)
def test_a_break_of_the_layers_is_seen(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    found = checks.layer_breaks(tree(tmp_path, {file: text}))
    assert found, "not seen"
    assert any(complaint in line for line in found), found


def test_a_tree_in_order_has_no_complaints(tmp_path: Path) -> None:
    package = tree(
        tmp_path,
        {
            "__init__.py": "def __getattr__(name):\n    from surefoot.assembly import train\n    return train",
            "errors.py": "import typing",
            "records.py": "from surefoot.errors import DataError",
            "algo/gae.py": "from surefoot import __version__\nfrom . import kl\nfrom .kl import k1\nimport torch",
            "algo/kl.py": "import surefoot.errors\nsurefoot.__file__",
            "rollout/native.py": "from surefoot.envs.turns import Turns\nfrom ..algo import gae",
            "envs/turns.py": "",
            "training/step.py": "from surefoot import algo, records\nfrom surefoot.monitor import signals",
            "monitor/signals.py": "",
            "cli/main.py": "def f():\n    from surefoot.assembly import train",
        },
    )
    assert checks.layer_breaks(package) == []
    assert checks.home_breaks(package) == []


AWAY_FROM_HOME = {
    "ray": ("training/trainer.py", "import ray.util"),
    "ray in a function": ("assembly/build.py", "def f():\n    from ray import remote"),
    "vllm": ("rollout/native.py", "import vllm"),
    "vllm by text": ("rollout/engines.py", "import importlib\nimportlib.import_module('vllm')"),
    "fastapi": ("serving/wire.py", "from fastapi import FastAPI"),
    "starlette": ("gateway/routing.py", "from starlette.requests import Request"),
    "uvicorn": ("cli/serve.py", "import uvicorn"),
}


@pytest.mark.parametrize(("file", "text"), AWAY_FROM_HOME.values(), ids=AWAY_FROM_HOME)
def test_a_package_away_from_home_is_seen(tmp_path: Path, file: str, text: str) -> None:
    (found,) = checks.home_breaks(tree(tmp_path, {file: text}))
    assert "is imported outside its home" in found


def test_packages_at_home_have_no_complaints(tmp_path: Path) -> None:
    files = {
        "cluster/driver.py": "import ray",
        "rollout/engine_vllm.py": "from vllm import LLM",
        "serving/app.py": "import fastapi, uvicorn",
        "gateway/handlers.py": "from starlette.responses import Response",
        "models/arrays.py": "from . import raytrace",
    }
    assert checks.home_breaks(tree(tmp_path, files)) == []
