"""One process that all others are forked from, and one toy model, for all tests of whole runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.parts import make_toy_reward, toy_config
from tests.serving.processes import Zygote
from tests.serving.whole_runs import TOKEN, Outcome, Trial


@pytest.fixture(scope="session")
def runs_zygote() -> Iterator[Zygote]:
    zygote = Zygote({"SERVICE_TOKEN": TOKEN, "WRONG_TOKEN": TOKEN[::-1]})
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def runs_toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_config(folder)
    make_toy_reward(folder / "quality", like=folder / "toy")
    return folder


@pytest.fixture
def trial(runs_zygote: Zygote, runs_toy: Path, tmp_path: Path) -> Trial:
    """Of the toy config as it is."""
    return Trial(runs_zygote, runs_toy, tmp_path)


@pytest.fixture(scope="session")
def untouched(runs_zygote: Zygote, runs_toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of a run of that config in one process, which nobody touches."""
    return Trial(runs_zygote, runs_toy, tmp_path_factory.mktemp("untouched")).finish("local")
