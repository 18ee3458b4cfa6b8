"""Several scoring services as one: spread by load, a dead one left out and taken back, all with one model."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from surefoot.errors import ConfigError, ServiceFailed, ServiceMismatch, ServiceRefused, ServiceUnavailable, WireError
from surefoot.serving.client import ServiceClient
from surefoot.serving.replicas import Replicas
from surefoot.serving.wire import Handshake, Inferred, InferRequest, Readiness, Refusal
from tests.scripted_server import Exchange, ScriptedServer, closed_port, hang, reply
from tests.serving.made_messages import handshake, inferred, score_request


class Service:
    """A scoring service of plain sockets.

    Attributes:
        delay_s: how long it takes for a request.
        broken: what it does instead of scoring.
        says: its handshake.
        scored: rows of each request that it was asked to score.
    """

    def __init__(self, says: Handshake | None = None) -> None:
        self.says = says or handshake(roles=["reward"], critic=None, run=None)
        self.delay_s = 0.0
        self.ready = True
        self.broken: Callable[[Exchange], None] | None = None
        self.scored: list[int] = []
        self.probes = 0
        self.server = ScriptedServer.of(self._answer)

    def _answer(self, exchange: Exchange) -> None:
        path = exchange.request.path
        if path == "/v1/ready":
            self.probes += 1
            found = Readiness("ready") if self.ready else Readiness("waiting", "loading")
            reply(200 if self.ready else 503, found.pack())(exchange)
        elif path == "/v1/handshake":
            reply(200, self.says.pack())(exchange)
        else:
            request = InferRequest.unpack(exchange.request.body)
            self.scored.append(len(request.ids))
            time.sleep(self.delay_s)
            (self.broken or reply(200, inferred(request).pack()))(exchange)

    @property
    def url(self) -> str:
        return self.server.url


Start = Callable[..., tuple[Replicas, list[Service]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services and the replicas in front of them; everything ends with the test."""
    ended: list[Any] = []

    def build(count: int = 2, *, says: list[Handshake] | None = None, **options: Any) -> tuple[Replicas, list[Service]]:
        services = [Service(says[n] if says else None) for n in range(count)]
        for service in services:
            service.server.__enter__()
            ended.append(lambda service=service: service.server.__exit__(None, None, None))
        clients = [ServiceClient(service.url) for service in services]
        replicas = Replicas(clients, **{"timeout_s": 2.0, "patience_s": 5.0, **options})
        ended.append(replicas.close)
        return replicas, services

    yield build
    for end in reversed(ended):
        end()


def request(rows: int = 1) -> InferRequest:
    return score_request(*["text"] * rows)


def at_once(replicas: Replicas, sizes: list[int]) -> list[Inferred | BaseException]:
    """Requests of these sizes, sent one shortly after the other, each from a thread of its own."""
    found: dict[int, Inferred | BaseException] = {}

    def ask(number: int) -> None:
        try:
            found[number] = replicas.infer(request(sizes[number]))
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(sizes))]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join(60)
    return [found[number] for number in range(len(sizes))]


def test_requests_go_where_the_fewest_rows_are_under_way(start: Start) -> None:
    replicas, (one, two) = start()
    replicas.handshake()
    for service in (one, two):  # the first request of each is its admission
        replicas.infer(request())
        service.delay_s = 0.4
    one.scored.clear()
    two.scored.clear()
    answers = at_once(replicas, [10, 2, 2, 2, 5])
    assert all(isinstance(answer, Inferred) for answer in answers)
    # 10 go to one, then 2, 2, 2 and, since 6 are fewer than 10, 5 more to the other.
    assert sorted([one.scored, two.scored]) == [[2, 2, 2, 5], [10]]


def test_replicas_that_are_idle_take_turns(start: Start) -> None:
    replicas, services = start(3)
    for _ in range(9):
        replicas.infer(request())
    assert [len(service.scored) for service in services] == [3, 3, 3]


def test_a_batch_given_to_a_dead_one_goes_to_another(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    replicas, (one, two) = start()
    for _ in range(2):
        replicas.infer(request())
    one.server.__exit__(None, None, None)
    begun = time.monotonic()
    with caplog.at_level(logging.INFO, "surefoot.serving"):
        for _ in range(6):
            replicas.infer(request()).check(request())
    assert time.monotonic() - begun < 20, "nobody waits for a dead one while another lives"
    assert len(two.scored) >= 6
    assert [one.url in place for place in replicas.left_out] == [True]
    notes = [record.getMessage() for record in caplog.records]
    assert len(notes) == 1
    assert one.url in notes[0] and "left out until it answers" in notes[0]


def test_one_that_comes_back_is_taken_back_once_it_is_ready(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    replicas, (one, two) = start()
    for _ in range(2):
        replicas.infer(request())
    one.server.__exit__(None, None, None)
    for _ in range(2):
        replicas.infer(request())
    one.ready, one.scored = False, []
    one.server.__enter__()
    asked = two.scored.copy()
    deadline = time.monotonic() + 0.7
    while time.monotonic() < deadline:
        replicas.infer(request())
        time.sleep(0.02)
    assert one.scored == [], "it answers, and is not ready"
    assert len(two.scored) > len(asked)
    one.ready, probes = True, one.probes
    assert 1 <= probes <= 4, "it is asked now and then, not with every call"
    deadline = time.monotonic() + 60
    while not one.scored and time.monotonic() < deadline:
        replicas.infer(request())
        time.sleep(0.02)
    assert one.scored
    assert replicas.left_out == {}
    assert "answers again" in caplog.text


def test_pauses_of_a_dead_one_grow(start: Start) -> None:
    replicas, (one, two) = start()
    for _ in range(2):
        replicas.infer(request())
    two.ready = False
    two.broken = reply(503)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        replicas.infer(request())
        time.sleep(0.01)
    assert 2 <= two.probes - 1 <= 6
    assert len(one.scored) > 5


@pytest.mark.parametrize("trouble", [hang, reply(503, retry_after="30"), reply(502)])
def test_a_busy_or_stuck_one_is_left_out_too(start: Start, trouble: Callable[[Exchange], None]) -> None:
    replicas, (one, two) = start(timeout_s=0.2)
    for _ in range(2):
        replicas.infer(request())
    one.broken = trouble
    for answer in at_once(replicas, [1] * 6):
        assert isinstance(answer, Inferred)
    assert len(replicas.left_out) == 1
    assert len(two.scored) >= 6


def test_all_replicas_must_have_one_model(start: Start) -> None:
    first = handshake(roles=["reward"], critic=None)
    assert first.reward is not None
    other = dataclasses.replace(first, reward=dataclasses.replace(first.reward, model="e" * 64))
    renamed = dataclasses.replace(first, reward=dataclasses.replace(first.reward, name="other"))
    replicas, _ = start(says=[first, renamed])
    assert replicas.handshake() == first, "another name for the same model is no other model"
    replicas, services = start(says=[first, other])
    with pytest.raises(ServiceMismatch) as caught:
        replicas.handshake()
    for service in services:
        assert service.url in str(caught.value)
    assert "c" * 64 in str(caught.value) and "e" * 64 in str(caught.value)


def test_one_that_comes_back_with_another_model_ends_the_call(start: Start) -> None:
    replicas, (one, _) = start()
    for _ in range(2):
        replicas.infer(request())
    one.server.__exit__(None, None, None)
    assert one.says.reward is not None
    one.says = dataclasses.replace(one.says, reward=dataclasses.replace(one.says.reward, model="e" * 64))
    replicas.infer(request())
    replicas.infer(request())
    one.server.__enter__()
    deadline = time.monotonic() + 60
    with pytest.raises(ServiceMismatch, match="different reward models"):
        while time.monotonic() < deadline:
            replicas.infer(request())
            time.sleep(0.02)


def test_a_service_without_a_reward_model_is_no_replica(start: Start) -> None:
    replicas, _ = start(1, says=[handshake(roles=["critic"], reward=None)])
    with pytest.raises(ServiceMismatch, match="has no reward model"):
        replicas.handshake()


def test_one_that_is_dead_at_the_start_is_left_out(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    replicas, (one, two) = start()
    one.server.__exit__(None, None, None)
    assert replicas.handshake().reward == two.says.reward
    assert "left out until it answers" in caplog.text
    for _ in range(3):
        replicas.infer(request())
    assert len(two.scored) == 3


def test_when_none_answers_the_call_ends_in_time_and_names_all() -> None:
    urls = [f"http://127.0.0.1:{closed_port()}" for _ in range(2)]
    replicas = Replicas([ServiceClient(url) for url in urls], timeout_s=0.1, patience_s=0.5)
    for call in (replicas.handshake, lambda: replicas.infer(request())):
        begun = time.monotonic()
        with pytest.raises(ServiceUnavailable) as caught:
            call()
        assert 0.3 < time.monotonic() - begun < 20
        for url in urls:
            assert url in str(caught.value)
        assert "refused" in str(caught.value)
    replicas.close()


def test_all_that_die_and_one_that_comes_back_in_time(start: Start) -> None:
    replicas, services = start()
    for _ in range(2):
        replicas.infer(request())
    for service in services:
        service.server.__exit__(None, None, None)
    timer = threading.Timer(0.5, services[1].server.__enter__)
    timer.start()
    replicas.infer(request()).check(request())
    timer.join()


@pytest.mark.parametrize(("code", "kind"), [("unauthorised", ServiceRefused), ("model_failed", ServiceFailed)])
def test_what_a_replica_refuses_is_not_sent_to_another(start: Start, code: str, kind: type[Exception]) -> None:
    replicas, (one, two) = start()
    for _ in range(2):
        replicas.infer(request())
    refusal = Refusal.of(WireError("it is so", code=code))
    one.broken = two.broken = reply(refusal.status, refusal.pack())
    one.scored, two.scored = [], []
    with pytest.raises(kind, match="it is so"):
        replicas.infer(request())
    assert len(one.scored) + len(two.scored) == 1
    one.broken = two.broken = None
    replicas.infer(request())
    assert replicas.left_out == {}


def test_many_threads_lose_no_request_while_replicas_come_and_go(start: Start) -> None:
    replicas, services = start(3, patience_s=10.0)
    stop = threading.Event()
    wrong: list[BaseException] = []
    done: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                replicas.infer(request(3)).check(request(3))
                done.append(3)
            except BaseException as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        services[turn % 3].server.__exit__(None, None, None)
        time.sleep(0.15)
        services[turn % 3].server.__enter__()
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(done) > 20
    assert all(place.rows == 0 for place in replicas._spread._places)


def test_there_must_be_one() -> None:
    with pytest.raises(ConfigError, match="at least one replica"):
        Replicas([])
