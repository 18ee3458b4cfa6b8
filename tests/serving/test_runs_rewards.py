"""Rewards elsewhere: a service's reward model, replicas of it, and a server of the user's own."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from surefoot.assembly.services import remote_reward
from surefoot.config import RewardTerm
from surefoot.errors import ServiceMismatch
from tests.builders import make_rollout, merged
from tests.serving.parts import make_toy_reward
from tests.serving.processes import Process, ServiceProcess, free_port
from tests.serving.whole_runs import (
    TOKEN,
    Trial,
    broken_model,
    differences,
    mine,
    paragraph,
    ready,
    write_failing_reward,
)

SCORING = mine("surefoot.models.reward_model:RewardModel", "score_tokens", 3)
QUIET = {"overlap": False, "rows": 2, "concurrency": 2}
"""The same rows in every request, whoever answers it."""


@pytest.fixture
def scored(trial: Trial) -> Trial:
    """Runs with a reward model, and services that have it."""
    reward = {"terms": [{"name": "quality", "kind": "model", "target": str(trial.toy / "quality")}]}
    return replace(trial, sections={"run": {"steps": 3}, "serve": {"roles": ["reward"]}, "reward": reward})


def asking(*addresses: str, **options: Any) -> dict[str, Any]:
    """The section of a trainer whose reward model is elsewhere."""
    target: Any = addresses[0] if len(addresses) == 1 else list(addresses)
    return {"terms": [{"name": "quality", "kind": "remote", "target": target, **options}]}


def inferred(service: ServiceProcess) -> int:
    """How many requests a service has scored."""
    return sum(line.get("path") == "/v1/infer" and line["status"] == 200 for line in service.log())


def test_a_service_scores_as_one_process_does_bit_for_bit(scored: Trial) -> None:
    service = scored.serve()
    expected = scored.finish("local")
    found = scored.finish("served", reward=asking(service.address(), overlap=False))
    assert differences(found, expected) == []
    assert inferred(service) == 3
    overlapped = scored.finish("overlapped", reward=asking(service.address()))
    for ours, theirs in zip(overlapped.metrics, expected.metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    assert service.end() == 0


def test_replicas_that_die_and_come_back_or_never_came_change_nothing(scored: Trial) -> None:
    steady, dying = scored.serve(), scored.serve_again(SCORING)
    nobody = f"http://127.0.0.1:{free_port()}"
    try:
        addresses = (nobody, dying.url, ready(steady))
        calm = scored.finish("calm", reward=asking(steady.address(), **QUIET))
        alone = inferred(steady)
        found = scored.finish("disturbed", reward=asking(*addresses, **QUIET, timeout_s=20.0, patience_s=60.0))
    finally:
        dying.end()
    assert differences(found, calm) == []
    assert dying.codes == [-signal.SIGKILL, 0]
    assert inferred(steady) > alone, "the load was not spread"
    out = scored.folder / "disturbed-out" / "0.err"
    assert f"the service at {dying.url}" in out.read_text() and "left out until it answers" in out.read_text()
    assert f"the service at {nobody}" in out.read_text()
    assert steady.end() == 0


def test_another_reward_model_behind_the_address_ends_the_run(scored: Trial) -> None:
    other = make_toy_reward(scored.folder / "other", like=scored.toy / "toy", seed=9)
    service = scored.serve(die=SCORING)
    url = ready(service)
    process = scored.train("run", reward=asking(url, **QUIET))
    assert service.wait() == -signal.SIGKILL
    port = int(url.rpartition(":")[2])
    again = scored.serve(serve={"port": port, "reward": str(other)})
    assert process.wait(300) == 3
    assert "two replicas have different reward models" in paragraph(process)
    assert again.end() == 0


def test_another_reward_model_is_noticed_between_two_requests(scored: Trial) -> None:
    other = make_toy_reward(scored.folder / "other", like=scored.toy / "toy", seed=9)
    service = scored.serve()
    url = ready(service)
    port = int(url.rpartition(":")[2])
    reward = remote_reward(RewardTerm(name="quality", kind="remote", target=url))
    rollout = make_rollout(([5, 6], [7, 8]))
    rollout = replace(rollout, trajectories=tuple(replace(t, response="a great film") for t in rollout.trajectories))
    first = reward.score(rollout)
    assert service.end() == 0
    again = scored.serve(serve={"port": port})
    ready(again)
    assert reward.score(rollout) == first, "the same model is welcome"
    assert again.end() == 0
    another = scored.serve(serve={"port": port, "reward": str(other)})
    ready(another)
    with pytest.raises(ServiceMismatch, match="different reward models"):
        reward.score(rollout)
    reward.close()
    assert another.end() == 0


def test_scores_that_are_no_numbers_are_failures_with_a_reason(scored: Trial) -> None:
    reward = broken_model(scored.folder / "broken", model=scored.toy / "quality")
    service = scored.serve(serve={"reward": reward})
    process = scored.train("run", reward=asking(ready(service)))
    assert process.wait(300) == 3
    assert "4 of 4 scores failed; got: 4 x quality: the model's score is nan" in paragraph(process)
    assert service.end() == 0


# ------------------------------------------------------------------------------------------------ a server of one's own

Turn = Callable[["Own"], bool]


class Own(BaseHTTPRequestHandler):
    """Scores as the function in ``failing.py`` does, and says why it does not."""

    turns: list[Turn]
    asked: list[dict[str, Any]]
    lock: threading.Lock

    def do_POST(self) -> None:
        """Score a part of a rollout."""
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            turn = self.turns.pop(0) if self.turns else None
            self.asked.append({**question, "token": self.headers["Authorization"]})
        if turn is not None and turn(self):
            return
        rows = list(zip(question["prompts"], question["completions"], strict=True))
        failed = [len(c.split()) < 3 or "old" in str(p) for p, c in rows]
        scores = [None if f else len(set(c.split())) / 8 for f, (_, c) in zip(failed, rows, strict=True)]
        self.answer({"scores": scores, "reasons": ["too short, or too old" if f else None for f in failed]})

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        """Send JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client has gone: it waited long enough."""


@contextmanager
def own_server(*turns: Turn) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address and what it was asked; each request has the next turn, a true one of which has answered."""
    asked: list[dict[str, Any]] = []
    handler = type("OwnHere", (Own,), {"turns": list(turns), "asked": asked, "lock": threading.Lock()})
    server = _Quiet(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/score", asked
    finally:
        server.shutdown()
        server.server_close()


def busy(own: Own) -> bool:
    own.answer({"error": "busy"}, 503, Retry_After="1")
    return True


def slow(own: Own) -> bool:
    time.sleep(1.5)
    return False


def gone(own: Own) -> bool:
    own.close_connection = True
    return True


def fewer(own: Own) -> bool:
    own.answer({"scores": [0.5]})
    return True


def bad(own: Own) -> bool:
    own.answer({"error": "no such language"}, 400)
    return True


def test_a_server_of_ones_own_scores_as_a_function_does(trial: Trial) -> None:
    lax = {"on_failure": "drop", "max_failures": 1.0}
    trial = replace(trial, sections={"run": {"steps": 4}, "track": {"samples_every": 1}, "reward": lax})
    expected = trial.finish("local", reward={"terms": write_failing_reward(trial.folder)})
    assert any(line["score/failed_share"] for line in expected.metrics)
    with own_server(busy, slow, gone) as (url, asked):
        options = {"timeout_s": 1.0, "patience_s": 60.0, "rows": 3, "token_env": "SERVICE_TOKEN"}
        term = {"name": "distinct", "kind": "remote", "target": url, **options}
        found = trial.finish("own", reward={"terms": [term]})
    assert (found.metrics, found.weights, found.end) == (expected.metrics, expected.weights, expected.end)
    assert {question["token"] for question in asked} == {f"Bearer {TOKEN}"}
    assert max(len(question["completions"]) for question in asked) <= 3
    reasons = {record["score_failure"] for step in range(1, 5) for record in trial.records("own", step)}
    assert reasons == {None, "distinct: too short, or too old"}


def ends(trial: Trial, *turns: Turn, **options: Any) -> str:
    """What a run says that a server of one's own has ended."""
    with own_server(*turns) as (url, _):
        term = {"name": "distinct", "kind": "remote", "target": url, **options}
        process: Process = trial.train(f"ended-{turns[0].__name__}", reward={"terms": [term]})
        assert process.wait(300) == 3, process.stderr.read_text()
    return paragraph(process)


def test_answers_of_ones_own_server_that_cannot_be_used_end_the_run(trial: Trial) -> None:
    text = ends(trial, fewer, overlap=False)
    assert "reward distinct returned the wrong number of scores" in text or "1 for 4" in text, text
    text = ends(trial, *[bad] * 8, overlap=False)
    assert 'answered 400: {"error": "no such language"}' in text and "4 of 4 scores failed" in text
    text = ends(trial, *[slow] * 20, timeout_s=0.3, patience_s=1.5)
    assert "did not answer: " in text and "no answer within 0." in text and "4 of 4 scores failed" in text


# --------------------------------------------------------------------------------------------------------------- check


def test_check_says_whether_the_services_are_what_the_run_needs(scored: Trial) -> None:
    both = replace(scored, sections=merged(scored.sections, {"serve": {"roles": ["critic", "reward"]}}))
    service = both.serve()
    url = ready(service)
    nowhere = f"http://127.0.0.1:{free_port()}"

    def check(critic: str, reward: str, **changes: Any) -> tuple[int, str]:
        asked = merged(
            {"critic": {"url": critic, "patience_s": 2.0}, "reward": asking(reward, patience_s=2.0)}, changes
        )
        process = Process(both.zygote, both.folder / "check-out", ["check", both.file("checked", **asked)])
        return process.wait(600), process.stdout.read_text()

    code, text = check(url, url)
    assert code == 0, text
    assert f"the service at {url} answers, with the critic that this run needs" in text
    code, text = check(nowhere, url)
    assert code == 2 and "connection refused: nothing listens there" in text
    code, text = check(url, nowhere)
    assert code == 2 and "connection refused: nothing listens there" in text
    code, text = check(url, url, optim={"critic_lr": 0.5})
    assert code == 2 and "optim.critic_lr: 0.003, not 0.5" in text
    code, text = check(url, url, rollout={"prompts_per_step": 2000})
    assert code == 2 and "takes fewer trajectories at once than a step has" in text
    assert not both.run_folder("checked").exists()
    assert service.end() == 0
