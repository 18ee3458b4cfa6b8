"""Processes that others are forked from, toy models, and critics on them; of whole runs one of each for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.config import Config
from surefoot.serving.critic_host import CriticHost
from tests.serving.parts import begun, make_toy_reward, one_thread, toy_config
from tests.serving.processes import TOKEN, Place, Zygote
from tests.serving.whole_runs import Outcome, Trial


@pytest.fixture
def exact() -> Iterator[None]:
    """The same bits each time."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """Whose services may ask for a token."""
    zygote = Zygote({"SERVICE_TOKEN": TOKEN})
    yield zygote
    zygote.close()


def toy_with_reward(folder: Path, name: str) -> Path:
    """A toy model, and a reward model like it under this name."""
    toy_config(folder)
    make_toy_reward(folder / name, like=folder / "toy")
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of services that are asked by themselves."""
    return toy_with_reward(tmp_path_factory.mktemp("toy"), "reward")


@pytest.fixture
def place(zygote: Zygote, toy: Path, tmp_path: Path) -> Place:
    """Where a service lives."""
    return Place(zygote, toy, tmp_path)


@pytest.fixture
def cfg(toy: Path, tmp_path: Path) -> Config:
    """Of a service that keeps its state in this test's folder."""
    return toy_config(toy, serve={"dir": str(tmp_path / "service")})


@pytest.fixture
def host(cfg: Config) -> CriticHost:
    """A critic that a run has begun with."""
    return begun(cfg)


@pytest.fixture(scope="session")
def runs_zygote() -> Iterator[Zygote]:
    zygote = Zygote({"SERVICE_TOKEN": TOKEN, "WRONG_TOKEN": TOKEN[::-1]})
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def runs_toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of whole runs; their reward term is called quality."""
    return toy_with_reward(tmp_path_factory.mktemp("toy"), "quality")


@pytest.fixture
def trial(runs_zygote: Zygote, runs_toy: Path, tmp_path: Path) -> Trial:
    """Of the toy config as it is."""
    return Trial(runs_zygote, runs_toy, tmp_path)


@pytest.fixture(scope="session")
def untouched(runs_zygote: Zygote, runs_toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of a run of that config in one process, which nobody touches."""
    return Trial(runs_zygote, runs_toy, tmp_path_factory.mktemp("untouched")).finish("local")
