"""Both clients against real servers on loopback that misbehave as servers do: what is repeated, what is not, and when.

The servers are plain sockets (``tests/scripted_server.py``); clocks are real and short where a deadline is proven.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from surefoot.errors import (
    ConfigError,
    ServiceError,
    ServiceFailed,
    ServiceMismatch,
    ServiceRefused,
    ServiceUnavailable,
    WireError,
)
from surefoot.serving.client import AsyncServiceClient, ServiceClient
from surefoot.serving.wire import (
    Checkpointed,
    Handshake,
    Inferred,
    InferRequest,
    Limits,
    Readiness,
    Refusal,
    Released,
    Restored,
    TrainRequest,
    TrainResult,
)
from tests.scripted_server import (
    Received,
    ScriptedServer,
    Step,
    closed_port,
    cut,
    drip,
    hang,
    head,
    made,
    raw,
    reply,
    vanish,
)
from tests.serving.made_messages import handshake, infer_request, inferred, train_request

REQUEST = infer_request()
BODY = inferred(REQUEST).pack()
GOOD = reply(200, BODY)
TOKEN = "a-token-of-some-length"


class Client:
    """One client of either kind, called as if it were blocking."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.sleeps: list[float] = []
        if options.pop("fake_sleep", False):
            options["sleep"] = self._async_sleep if kind == "asyncio" else self.sleeps.append
        self.client: Any = (AsyncServiceClient if kind == "asyncio" else ServiceClient)(url, **options)
        self._runner = asyncio.Runner() if kind == "asyncio" else None

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            found = getattr(self.client, name)(*args)
            return found if self._runner is None else self._runner.run(found)

        return call

    async def _async_sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)

    def end(self) -> None:
        self.close()
        if self._runner is not None:
            self._runner.close()


Make = Callable[..., Client]


@pytest.fixture(params=["blocking", "asyncio"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes clients, of each kind in turn; they wait for nothing longer than a second unless told."""
    made_clients: list[Client] = []

    def build(url: str, **options: Any) -> Client:
        made_clients.append(Client(request.param, url, **{"timeout_s": 5.0, "patience_s": 10.0, **options}))
        return made_clients[-1]

    yield build
    for client in made_clients:
        client.end()


def error(code: str, message: str = "it is so", **headers: str) -> Step:
    refusal = Refusal.of(WireError(message, hint="do this", code=code))
    return reply(refusal.status, refusal.pack(), **headers)


# ------------------------------------------------------------------------------------------------ each of the calls


def test_each_call_asks_its_question_and_reads_its_answer(make: Make) -> None:
    answers: dict[str, Callable[[Received], bytes]] = {
        "/v1/handshake": lambda _: handshake().pack(),
        "/v1/ready": lambda _: Readiness("ready").pack(),
        "/v1/infer": lambda r: inferred(InferRequest.unpack(r.body)).pack(),
        "/v1/train": lambda r: TrainResult.of("run-1", TrainRequest.unpack(r.body).step, [], seconds=0.5).pack(),
        "/v1/checkpoint": lambda r: Checkpointed("run-1", r.json()["step"], "step-4", "d" * 64).pack(),
        "/v1/restore": lambda r: Restored("run-1", r.json()["step"]).pack(),
        "/v1/release": lambda r: Released(r.json()["run"]).pack(),
    }
    with ScriptedServer.of(made(lambda r: answers[r.path](r))) as server:
        client = make(server.url, token=TOKEN)
        assert client.handshake() == handshake()
        assert client.ready() == Readiness("ready")
        answer = client.infer(REQUEST)
        assert np.array_equal(answer.values, inferred(REQUEST).values)
        assert client.train(train_request()).step == 4
        assert client.checkpoint("run-1", 4, [2, 3]).digest == "d" * 64
        assert client.restore("run-1", 4, "d" * 64).trained_step == 4
        assert client.restore("run-1", 0, None).trained_step == 0
        client.release("run-1")
    asked = [(r.method, r.path) for r in server.received]
    assert asked[:4] == [("GET", "/v1/handshake"), ("GET", "/v1/ready"), ("POST", "/v1/infer"), ("POST", "/v1/train")]
    assert all(r.headers["authorization"] == f"Bearer {TOKEN}" for r in server.received)
    infer, train, checkpoint = server.received[2:5]
    kind = "application/vnd.surefoot.v1+safetensors"
    assert (infer.headers["content-type"], checkpoint.headers["content-type"]) == (kind, "application/json")
    assert (infer.headers["x-surefoot-run"], infer.headers["x-surefoot-step"]) == ("run-1", "3")
    assert train.headers["x-surefoot-step"] == "4"
    assert checkpoint.json() == {"run": "run-1", "step": 4, "keep": [2, 3]}
    assert server.received[6].json() == {"run": "run-1", "step": 0, "digest": None}
    assert server.connections == 1, "connections are kept open"


def test_without_a_token_none_is_sent(make: Make) -> None:
    with ScriptedServer.of(GOOD) as server:
        make(server.url).infer(REQUEST)
    assert "authorization" not in server.received[0].headers


def test_an_address_may_have_a_path_and_slashes_at_its_end(make: Make) -> None:
    with ScriptedServer.of(GOOD) as server:
        make(f"{server.url}/behind/a/proxy//").infer(REQUEST)
    assert server.received[0].path == "/behind/a/proxy/v1/infer"


CHUNKS = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:100], BODY[100:])) + b"0\r\n\r\n"
WHOLE = {
    "in chunks": raw(head(200, None, {"Transfer-Encoding": "chunked"}) + CHUNKS),
    "until the connection ends": cut(BODY, len(BODY), announced=False),
    "byte by byte": drip(head(200, len(BODY)) + BODY, every_s=0.0),
    "with odd headers": raw(b"HTTP/1.1 200\r\nCONTENT-LENGTH:%d\r\nX: \r\n\r\n" % len(BODY) + BODY),
}


@pytest.mark.parametrize("form", WHOLE)
def test_an_answer_may_come_in_any_form_that_http_has(make: Make, form: str) -> None:
    with ScriptedServer.of(WHOLE[form]) as server:
        make(server.url).infer(REQUEST).check(REQUEST)
    assert len(server.received) == 1


@pytest.mark.parametrize("url", ["", "localhost:8600", "ftp://x", "http://", "http://user:secret@x"])
def test_what_is_no_address_is_refused(make: Make, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(url)
    assert "secret" not in str(caught.value)


def test_proxies_of_the_environment_are_not_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    with ScriptedServer.of(GOOD) as server:
        make(server.url).infer(REQUEST)
    assert server.received[0].path == "/v1/infer"


# --------------------------------------------------------------------------------------------------- what is repeated

TRANSIENT: dict[str, Step] = {
    "503": reply(503),
    "503 of ours": error("overloaded"),
    "not ready": error("not_ready"),
    "429": reply(429, "slow down"),
    "408": reply(408),
    "502": reply(502, "<html>Bad Gateway</html>"),
    "504": reply(504),
    "a full disk": error("disk_full"),
    "a 500 that says so": reply(500, {"error": {"code": "new", "message": "m", "retry": True}}),
    "closed without an answer": vanish,
    "cut in the headers": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "cut in the status": raw(b"HTTP/1"),
    "cut in the body": cut(BODY, len(BODY) // 2),
    "cut at the start of the body": cut(BODY, 0),
    "cut where no length was told": cut(BODY, len(BODY) // 2, announced=False),
    "cut between chunks": raw(head(200, None, {"Transfer-Encoding": "chunked"}) + b"5\r\nabcde\r\n"),
}


@pytest.mark.parametrize("trouble", TRANSIENT)
def test_srv_01_passing_trouble_is_tried_again_with_the_same_request(make: Make, trouble: str) -> None:
    with ScriptedServer.of(TRANSIENT[trouble], TRANSIENT[trouble], GOOD) as server:
        client = make(server.url, fake_sleep=True)
        client.infer(REQUEST).check(REQUEST)
    assert len({r.body for r in server.received}) == 1
    assert len(server.received) == 3
    assert len(client.sleeps) == 2


def test_a_server_that_hangs_is_asked_again(make: Make) -> None:
    with ScriptedServer.of(hang, GOOD) as server:
        client = make(server.url, timeout_s=0.2, fake_sleep=True)
        client.infer(REQUEST)
    assert len(server.received) == 2


def test_a_server_that_starts_late_is_waited_for(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    port = closed_port()
    server = ScriptedServer.of(GOOD, port=port)
    timer = threading.Timer(0.3, server.__enter__)
    timer.start()
    with caplog.at_level(logging.INFO, "surefoot.serving"):
        client = make(f"http://127.0.0.1:{port}")
        client.infer(REQUEST)
        client.infer(REQUEST)
    timer.join()
    server.__exit__(None, None, None)
    notes = [r.getMessage() for r in caplog.records if r.name == "surefoot.serving"]
    assert len(notes) == 2, "one when it begins and one when it is over"
    assert "refused" in notes[0].lower() or "connect" in notes[0].lower()
    assert "trying again for up to 10 s" in notes[0]
    assert "answers again after" in notes[1]


def test_training_that_was_cut_off_is_asked_for_again_and_not_done_twice(make: Make) -> None:
    """The second answer is the stored one: the service knows the request by run and step."""
    done: list[str] = []

    def train(exchange: Any) -> None:
        request = TrainRequest.unpack(exchange.request.body)
        result = TrainResult.of(request.run, request.step, [{"lr": 0.1}], seconds=1.0)
        if request.digest in done:
            reply(200, result.again(request.step).pack())(exchange)
        else:
            done.append(request.digest)
            cut(result.pack(), 10)(exchange)

    with ScriptedServer.of(train) as server:
        result = make(server.url, fake_sleep=True).train(train_request())
    assert (result.repeated, result.numbers, len(done)) == (True, [{"lr": 0.1}], 1)


# ----------------------------------------------------------------------------------------------- what is not repeated

FATAL: dict[str, tuple[Step, type[ServiceError], str]] = {
    "a bad request": (error("bad_request"), ServiceRefused, "it is so"),
    "a wrong token": (error("unauthorised", "the token is not the service's"), ServiceRefused, "the token is not"),
    "a wrong token elsewhere": (reply(401, "who are you?"), ServiceRefused, "who are you?"),
    "another path": (reply(404, {"detail": "Not Found"}), ServiceRefused, "404"),
    "another step": (error("stale_step"), ServiceMismatch, "it is so"),
    "other content": (error("other_content"), ServiceMismatch, "it is so"),
    "another run": (error("in_use"), ServiceMismatch, "it is so"),
    "too large": (error("too_large"), ServiceRefused, "it is so"),
    "another type": (error("bad_media_type"), ServiceRefused, "it is so"),
    "not sound": (error("unprocessable"), ServiceRefused, "it is so"),
    "a model that failed": (error("model_failed", "NaN"), ServiceFailed, "NaN"),
    "a 500 of somebody": (reply(500, "Internal Server Error"), ServiceFailed, "Internal Server Error"),
    "elsewhere": (reply(302, location="http://elsewhere/v1"), ServiceFailed, "302 to http://elsewhere/v1"),
    "elsewhere for good": (reply(308, location="/other"), ServiceFailed, "308 to /other"),
    "a page": (reply(200, "<html>Log in to the hotel</html>"), ServiceFailed, "safetensors"),
    "nothing": (reply(200, b""), ServiceFailed, "safetensors"),
    "no content": (reply(204, b""), ServiceFailed, "204"),
    "other rows": (reply(200, inferred(infer_request(), ids=(0, 2, 1)).pack()), ServiceFailed, "other rows"),
    "too few rows": (reply(200, inferred(infer_request(2)).pack()), ServiceFailed, "other rows"),
    "another shape": (reply(200, inferred(infer_request(3, 6)).pack()), ServiceFailed, "other rows"),
    "another protocol": (reply(200, BODY.replace(b'protocol\\":1', b'protocol\\":2')), ServiceMismatch, "version"),
    "another language": (raw(b"\x00\x01\x02\r\n"), ServiceFailed, "does not speak HTTP"),
    "more than can be": (reply(200, bytes(3 << 20)), ServiceFailed, "can be the answer"),
    "more than can be, in parts": (raw(head(200, None) + bytes(3 << 20)), ServiceFailed, "can be the answer"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FATAL)
def test_srv_01_what_another_try_does_not_change_ends_the_call_at_once(make: Make, fault: str) -> None:
    step, kind, words = FATAL[fault]
    with ScriptedServer.of(step) as server:
        client = make(server.url, fake_sleep=True)
        with pytest.raises(ServiceError) as caught:
            client.infer(REQUEST)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    assert caught.value.hint or "hint" in words or fault.endswith(("elsewhere", "somebody", "path", "content"))
    assert (len(server.received), client.sleeps) == (1, [])


def test_an_answer_with_a_nan_ends_the_call(make: Make) -> None:
    body = bytearray(BODY)
    at = body.index(inferred(REQUEST).values.tobytes())  # type: ignore[union-attr]
    body[at : at + 4] = np.float32(np.nan).tobytes()
    with ScriptedServer.of(reply(200, bytes(body))) as server, pytest.raises(ServiceFailed, match="not finite"):
        make(server.url).infer(REQUEST)
    assert len(server.received) == 1


def test_https_where_there_is_none_ends_the_call(make: Make) -> None:
    with ScriptedServer.of(reply(400)) as server:
        client = make(server.url.replace("http", "https"), fake_sleep=True)
        with pytest.raises(ServiceFailed, match="does not speak https"):
            client.infer(REQUEST)
    assert client.sleeps == []


def test_an_answer_about_another_step_is_refused(make: Make) -> None:
    answers = [TrainResult.of("run-1", 5, [], seconds=0.1).pack(), Checkpointed("other", 4, "step-4", "d" * 64).pack()]
    with ScriptedServer.of(*(reply(200, a) for a in answers), reply(200, Restored("run-1", 3).pack())) as server:
        client = make(server.url)
        for call in (
            lambda: client.train(train_request()),
            lambda: client.checkpoint("run-1", 4, []),
            lambda: client.restore("run-1", 4, "d" * 64),
        ):
            with pytest.raises(ServiceFailed, match="another question"):
                call()


def test_what_the_service_said_is_too_large_is_not_sent(make: Make) -> None:
    with ScriptedServer.of(reply(200, handshake(limits=Limits(body_bytes=100)).pack()), GOOD) as server:
        client = make(server.url)
        client.handshake()
        with pytest.raises(ServiceRefused, match="allowed: 100 bytes"):
            client.infer(REQUEST)
    assert len(server.received) == 1


def test_a_refusal_is_heard_before_the_whole_request_is_sent() -> None:
    """A server that stops reading what is too large says so first; only the blocking client listens for that."""
    with (
        ScriptedServer.of(GOOD, unread=error("too_large")) as server,
        closing(ServiceClient(server.url, patience_s=2.0)) as client,
        pytest.raises(ServiceRefused, match="it is so"),
    ):
        client.train(train_request(4, 300_000))


# ---------------------------------------------------------------------------------------------------------- deadlines

ENDLESS: dict[str, Step] = {
    "hanging": hang,
    "never ready": error("not_ready", "replaying 3 of 7"),
    "dripping its headers": drip(head(200, len(BODY)) + BODY),
    "dripping its body": lambda e: (e.send(head(200, len(BODY))), drip(BODY)(e))[-1],
    "vanishing": vanish,
}


@pytest.mark.parametrize("trouble", ENDLESS)
def test_no_call_takes_longer_than_its_patience(make: Make, trouble: str) -> None:
    with ScriptedServer.of(ENDLESS[trouble]) as server:
        client = make(server.url, timeout_s=0.08, patience_s=0.3)
        begun = time.monotonic()
        with pytest.raises(ServiceUnavailable) as caught:
            client.infer(REQUEST)
        seconds = time.monotonic() - begun
        assert 0.15 < seconds < 20
    text = str(caught.value)
    assert f"127.0.0.1:{server.port}" in text
    assert re.search(r" tries in \d+\.\d s", text)
    assert "the last one: " in text
    assert "0.3 s of patience" in text
    assert "hint: " in text
    assert len(server.received) >= 2
    if trouble == "never ready":
        assert "replaying 3 of 7" in text
    if trouble == "hanging":
        assert "raise timeout_s" in text


def test_a_port_where_nothing_listens_is_named_in_time(make: Make) -> None:
    client = make(f"http://127.0.0.1:{closed_port()}", patience_s=0.2)
    begun = time.monotonic()
    with pytest.raises(ServiceUnavailable, match="is it running"):
        client.handshake()
    assert time.monotonic() - begun < 20


def test_one_try_is_shorter_than_the_patience_that_is_left(make: Make) -> None:
    with ScriptedServer.of(hang) as server:
        client = make(server.url, timeout_s=60.0, patience_s=0.2)
        begun = time.monotonic()
        with pytest.raises(ServiceUnavailable, match="1 try in"):
            client.infer(REQUEST)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(make: Make, form: str) -> None:
    header = "3" if form == "seconds" else email.utils.formatdate(time.time() + 4, usegmt=True)
    with ScriptedServer.of(error("overloaded", retry_after=header), GOOD) as server:
        client = make(server.url, fake_sleep=True)
        client.infer(REQUEST)
    assert client.sleeps == ([3.0] if form == "seconds" else [pytest.approx(3.5, abs=0.6)])


def test_retry_after_really_waits_and_no_longer(make: Make) -> None:
    with ScriptedServer.of(reply(503, retry_after="1"), GOOD) as server:
        begun = time.monotonic()
        make(server.url).infer(REQUEST)
    assert 1.0 <= time.monotonic() - begun < 20


@pytest.mark.parametrize("header", ["soon", "-1", "1.5.2", "", "Thu, 99 Foo 2020 00:00:00 GMT"])
def test_a_retry_after_that_says_nothing_is_ignored(make: Make, header: str) -> None:
    with ScriptedServer.of(reply(503, retry_after=header), GOOD) as server:
        client = make(server.url, fake_sleep=True)
        client.infer(REQUEST)
    assert client.sleeps[0] < 0.3


def test_a_service_that_asks_for_more_patience_than_there_is_ends_the_call_at_once(make: Make) -> None:
    with ScriptedServer.of(reply(503, retry_after="3600")) as server:
        begun = time.monotonic()
        with pytest.raises(ServiceUnavailable, match="come back after 3600 s"):
            make(server.url).infer(REQUEST)
    assert time.monotonic() - begun < 3
    assert len(server.received) == 1


def test_pauses_grow_and_are_spread(make: Make) -> None:
    def pauses(seed: int) -> list[float]:
        with ScriptedServer.of(*[reply(503)] * 9, GOOD) as server:
            client = make(server.url, fake_sleep=True, seed=seed, patience_s=1000.0)
            client.infer(REQUEST)
        return client.sleeps

    first, again, other = pauses(0), pauses(0), pauses(1)
    assert first == again != other
    for number, pause in enumerate(first):
        whole = min(10.0, 0.2 * 2**number)
        assert whole / 2 <= pause <= whole


# -------------------------------------------------------------------------------------------------------- the handshake


def test_another_protocol_is_named_in_the_handshake(make: Make) -> None:
    body = handshake().pack().replace(b'"protocol":1', b'"protocol":7')
    with (
        ScriptedServer.of(reply(200, body)) as server,
        pytest.raises(ServiceMismatch, match="another version of the protocol; got: 7; allowed: 1"),
    ):
        make(server.url).handshake()


def test_a_service_that_loads_is_waiting_and_says_for_what(make: Make) -> None:
    steps = [reply(503, Readiness("waiting", "replaying 3 of 7").pack()), error("not_ready", "loading"), reply(503)]
    with ScriptedServer.of(*steps) as server:
        client = make(server.url)
        assert client.ready() == Readiness("waiting", "replaying 3 of 7")
        assert client.ready() == Readiness("waiting", "loading")
        assert client.ready().status == "waiting"
    with pytest.raises(ServiceUnavailable, match="1 try in"):
        make(f"http://127.0.0.1:{closed_port()}").ready()


def test_waiting_until_a_service_is_ready() -> None:
    waiting = reply(503, Readiness("waiting", "replaying 3 of 7").pack())
    with ScriptedServer.of(waiting, reply(200, Readiness("ready").pack())) as server:
        pauses: list[float] = []
        with closing(ServiceClient(server.url, sleep=pauses.append)) as client:
            client.wait_ready()
    assert len(pauses) == 1
    with (
        ScriptedServer.of(waiting) as server,
        closing(ServiceClient(server.url, patience_s=0.2)) as client,
        pytest.raises(ServiceUnavailable, match="replaying 3 of 7"),
    ):
        client.wait_ready()


OTHERS = {
    "no such path": reply(404, {"detail": "Not Found"}),
    "posts only": reply(405),
    "not written": reply(501, "Unsupported method ('GET')"),
    "a page": reply(200, "<html>hello</html>"),
    "another JSON": reply(200, {"scores": []}),
    "its own token": reply(401, "who are you?"),
    "elsewhere": reply(302, location="/login"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_server_of_another_kind_is_recognised_as_such(other: str) -> None:
    with ScriptedServer.of(OTHERS[other]) as server, closing(ServiceClient(server.url)) as client:
        assert client.recognise() is None
    assert len(server.received) == 1


def test_a_service_is_recognised_even_where_it_refuses() -> None:
    steps = [reply(503), reply(200, handshake().pack()), error("unauthorised")]
    with ScriptedServer.of(*steps) as server, closing(ServiceClient(server.url, sleep=lambda s: None)) as client:
        assert client.recognise() == handshake()
        with pytest.raises(ServiceRefused, match="it is so"):
            client.recognise()


# ------------------------------------------------------------------------------------- connections, threads, the end


def test_a_connection_that_was_closed_meanwhile_is_replaced_without_a_pause() -> None:
    """Servers close what has been idle for a while; that is no trouble."""
    with ScriptedServer.of(GOOD) as server:
        pauses: list[float] = []
        with closing(ServiceClient(server.url, sleep=pauses.append)) as client:
            for _ in range(3):
                client.infer(REQUEST)
                server.drop()
                time.sleep(0.05)
            client.infer(REQUEST)
    assert pauses == []
    assert len(server.received) == server.connections == 4


def test_many_threads_share_a_client() -> None:
    def answer(request: Received) -> bytes:
        time.sleep(0.01)
        return inferred(InferRequest.unpack(request.body)).pack()

    requests = [infer_request(batch) for batch in range(1, 17)]
    wrong: list[BaseException] = []

    def work(request: InferRequest) -> None:
        try:
            for _ in range(5):
                client.infer(request)
        except BaseException as trouble:
            wrong.append(trouble)

    with ScriptedServer.of(made(answer)) as server, closing(ServiceClient(server.url)) as client:
        threads = [threading.Thread(target=work, args=(request,)) for request in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert len(server.received) == 80
    assert server.connections <= 16


def test_closing_ends_a_call_that_is_under_way() -> None:
    with ScriptedServer.of(hang) as server:
        client = ServiceClient(server.url)
        timer = threading.Timer(0.1, client.close)
        timer.start()
        begun = time.monotonic()
        with pytest.raises(ServiceFailed, match="closed"):
            client.infer(REQUEST)
        timer.join()
    assert time.monotonic() - begun < 20


def test_a_cancelled_task_ends_its_call() -> None:
    async def run(url: str) -> float:
        client = AsyncServiceClient(url)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.infer(REQUEST)
        await client.close()
        return time.monotonic() - begun

    with ScriptedServer.of(hang) as server:
        assert asyncio.run(run(server.url)) < 0.5


def test_a_token_that_anyone_may_read_is_warned_of(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    for url, warned in (("http://critic.example", True), ("https://critic.example", False), ("http://[::1]:1", False)):
        caplog.clear()
        make(url, token=TOKEN)
        assert bool(caplog.records) is warned, url
        assert TOKEN not in caplog.text


def test_messages_never_hold_the_token(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer.of(error("unauthorised")) as server, pytest.raises(ServiceRefused) as caught:
        make(server.url, token=TOKEN).handshake()
    assert TOKEN not in str(caught.value)
    assert TOKEN not in caplog.text


def test_the_answers_type_is_what_was_asked() -> None:
    with ScriptedServer.of(reply(200, handshake().pack())) as server, closing(ServiceClient(server.url)) as client:
        assert isinstance(client.handshake(), Handshake)
        assert client.limits == handshake().limits
    assert Inferred.unpack(BODY).ids == REQUEST.ids
