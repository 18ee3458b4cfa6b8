"""Services in real processes, killed with SIGKILL at each stage of their work: nothing is lost, nothing is done twice.

Every case is compared with a service that nobody killed: values, results of training and digests of checkpoints.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surefoot.config import Config, dump_config
from surefoot.serving.client import ServiceClient
from surefoot.serving.wire import TrainRequest
from tests.serving.parts import RUN, infer_request, one_thread, toy_config, toy_rollout, train_requests
from tests.serving.processes import KilledAgain, Zygote

STEPS = 6
JOURNAL = "surefoot.serving.journal:Journal"
STORE = "surefoot.training.checkpoint:CheckpointStore"
HOST = "surefoot.serving.critic_host:CriticHost"
KEEPER = "surefoot.serving.critic_keeper:CriticKeeper"
FILES = "surefoot.serving.bindings:RunFiles"
BINDINGS = "surefoot.serving.bindings:Bindings"


@pytest.fixture(scope="module")
def requests(toy: Path) -> list[TrainRequest]:
    with one_thread():
        return train_requests(toy_config(toy), STEPS)


def config_in(toy: Path, folder: Path) -> tuple[Config, list[str]]:
    """A config whose service lies in ``folder``, and the arguments that serve it."""
    cfg = toy_config(toy, serve={"dir": str(folder / "service"), "batch_wait_ms": 0})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.yaml").write_text(dump_config(cfg), encoding="utf-8")
    return cfg, [str(folder / "toy.yaml")]


def client_of(service: KilledAgain) -> ServiceClient:
    """One that comes back soon."""
    return ServiceClient(service.url, patience_s=60.0, sleep=lambda seconds: time.sleep(min(seconds, 0.03)))


def play(client: ServiceClient, requests: Sequence[TrainRequest], *, start: int = 0) -> list[Any]:
    """A run: values, training, checkpoints, a restore in between. Everything that was answered."""
    answers: list[Any] = []
    if start == 0:
        client.wait_ready()
        client.restore(RUN, 0, None)
    saved: dict[int, str] = {}
    for request in requests:
        answers.append(values_at(client, request.step - 1))
        answers.append(client.train(request).numbers)
        if request.step % 2 == 0:
            saved[request.step] = client.checkpoint(RUN, request.step, keep=list(saved)[-1:]).digest
            answers.append(saved[request.step])
        if request.step == 5:
            answers.append(client.restore(RUN, 4, saved[4]).trained_step)
            answers.append(values_at(client, 4))
            answers.append(client.train(request).numbers)
    answers.append(values_at(client, requests[-1].step))
    return answers


def values_at(client: ServiceClient, step: int) -> Any:
    found = client.infer(infer_request(toy_rollout(3, seed=step), run=RUN, trained_step=step))
    assert found.values is not None and found.after is not None
    return found.values.tobytes(), found.after.tobytes()


@pytest.fixture(scope="module")
def expected(zygote: Zygote, toy: Path, requests: list[TrainRequest], tmp_path_factory: Any) -> list[Any]:
    found, codes = played(zygote, toy, requests, tmp_path_factory.mktemp("untouched"), [])
    assert codes == [0]
    return found


def played(
    zygote: Zygote, toy: Path, requests: Sequence[TrainRequest], folder: Path, mines: Sequence[dict[str, Any]]
) -> tuple[list[Any], list[int]]:
    """The run with a service that dies of each mine in turn; the answers, and how the processes ended."""
    _, arguments = config_in(toy, folder)
    service = KilledAgain(zygote, folder / "out", arguments, mines)
    client = client_of(service)
    try:
        return play(client, requests), service.codes
    finally:
        client.close()
        service.end()


def mine(owner: str, name: str, number: int = 1, *, after: bool = False, call: int | None = None) -> dict[str, Any]:
    return {"owner": owner, "name": name, "number": number, "after": after, "call": call}


CASES: dict[str, list[dict[str, Any]]] = {
    "while it infers": [
        mine("surefoot.models.critic:SeparateCritic", "values", n, after=after)
        for n in (1, 2)
        for after in (False, True)
    ],
    "before it trains": [mine(JOURNAL, "write", n) for n in (1, 2)],
    "while it writes the journal": [mine(JOURNAL, "write", call=call) for call in range(1, 9)],
    "written, not applied": [mine(KEEPER, "apply", n) for n in (1, 2)],
    "applied in part": [
        mine("surefoot.training.optimizer:Optimizer", "step", n, after=n % 2 == 0) for n in (1, 2, 3, 4)
    ],
    "applied, no result": [mine(JOURNAL, "write_result", n) for n in (1, 2)],
    "result not whole": [mine(JOURNAL, "write_result", call=call) for call in (2, 4, 6)],
    "not answered": [mine(HOST, "train", n, after=True) for n in (1, 2)],
    "while it saves": [mine(STORE, "save", call=call) for call in range(1, 18, 2)],
    "saved, not pruned": [mine(HOST, "_prune", n, after=after) for n in (1, 2) for after in (False, True)],
    # What a killed process has removed already, the next need not remove.
    "while it prunes": [mine(HOST, "_prune", 3, call=1)]
    + [mine(HOST, "_prune", call=2)] * 2
    + [mine(JOURNAL, "drop_through", call=2)] * 2,
    "while it goes back": [mine(FILES, "go_back", 2, call=1)] + [mine(FILES, "go_back", call=2)] * 3,
    "gone back, not bound": [
        mine(BINDINGS, "bind"),
        mine(BINDINGS, "bind", after=True),
        mine(BINDINGS, "bind", call=3),
    ],
    "bound, not loaded": [mine(KEEPER, "load"), mine(HOST, "restore", after=True)],
    "while it replays": [mine(KEEPER, "apply", 3), mine(KEEPER, "_replay"), mine(KEEPER, "_replay", 2, after=True)],
    "while it starts": [mine(KEEPER, "apply", 2), mine(KEEPER, "_rebuild"), mine(FILES, "clean", after=True)],
}


@pytest.mark.parametrize("case", CASES)
def test_a_kill_changes_nothing(
    zygote: Zygote, toy: Path, requests: list[TrainRequest], expected: list[Any], tmp_path: Path, case: str
) -> None:
    found, codes = played(zygote, toy, requests, tmp_path, CASES[case])
    assert found == expected
    kills = len(CASES[case])
    assert codes.count(-signal.SIGKILL) >= kills - 1, (codes, kills)
    assert all(code in (0, -signal.SIGKILL) for code in codes)


def test_the_untouched_run_is_worth_comparing_with(expected: list[Any]) -> None:
    values = [answer for answer in expected if isinstance(answer, tuple)]
    assert len(set(values)) > STEPS // 2, "the critic hardly moved"
    digests = [answer for answer in expected if isinstance(answer, str)]
    assert len(set(digests)) == STEPS // 2
    assert expected.count(4) == 1, "there was no restore"


def kill_at_random(
    zygote: Zygote,
    toy: Path,
    requests: Sequence[TrainRequest],
    folder: Path,
    dice: random.Random,
    *,
    longest: float = 0.7,
    most: int = 10,
) -> tuple[list[Any], int]:
    """The run with a service that is killed from outside, again and again; the answers, and the number of kills."""
    _, arguments = config_in(toy, folder)
    service = KilledAgain(zygote, folder / "out", arguments)
    client, ended = client_of(service), threading.Event()

    def killing() -> None:
        # Only so often: kills that come faster than the service starts would go on for ever.
        for _ in range(most):
            if ended.wait(dice.uniform(0.2 * longest, longest)):
                return
            try:
                os.kill(service.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    killer = threading.Thread(target=killing)
    killer.start()
    try:
        return play(client, requests), len(service.codes)
    finally:
        ended.set()
        killer.join()
        client.close()
        service.end()


def test_kills_at_random_moments_change_nothing(
    zygote: Zygote, toy: Path, requests: list[TrainRequest], expected: list[Any], tmp_path: Path
) -> None:
    for seed in range(20):  # a run may be over before the first kill
        folder = tmp_path / str(seed)
        folder.mkdir()
        found, kills = kill_at_random(zygote, toy, requests, folder, random.Random(seed), longest=0.7 / (1 + seed))
        assert found == expected
        if kills:
            return
    raise AssertionError("no kill came in time")


@pytest.mark.soak
def test_many_kills_at_random_moments_change_nothing(
    zygote: Zygote, toy: Path, requests: list[TrainRequest], expected: list[Any], tmp_path: Path
) -> None:
    dice, kills, runs = random.Random(1), 0, 0
    while kills < 40:
        found, more = kill_at_random(zygote, toy, requests, tmp_path / str(runs), dice)
        assert found == expected
        kills, runs = kills + more, runs + 1
