"""The service over real HTTP, in a process of its own: what it answers, what it refuses, and how it begins and ends."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from surefoot.config import Config, dump_config
from surefoot.models.reward_model import RewardModel
from surefoot.serving.logs import JsonLines
from surefoot.serving.wire import MEDIA_TYPE, CheckpointRequest, InferRequest, RestoreRequest, TrainRequest
from tests.builders import merged
from tests.serving.parts import (
    RUN,
    build_toy_critic,
    infer_request,
    make_toy_reward,
    one_thread,
    toy_batch,
    toy_config,
    toy_rollout,
    train_locally,
    train_request,
    train_requests,
)
from tests.serving.processes import ServiceProcess, Zygote, raw, ready_client

TOKEN = "a-token-of-enough-letters"
TENSORS = {"content-type": MEDIA_TYPE}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote({"SERVICE_TOKEN": TOKEN})
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_config(folder)
    make_toy_reward(folder / "reward", like=folder / "toy")
    return folder


class Place:
    """A folder for one service and its config."""

    def __init__(self, zygote: Zygote, toy: Path, folder: Path, **sections: Any) -> None:
        self.zygote, self.folder = zygote, folder
        own: dict[str, Any] = {"serve": {"dir": str(folder / "service"), "port": 0}}
        self.cfg = toy_config(toy, **merged(own, sections))
        self.file = folder / "toy.yaml"
        self.file.write_text(dump_config(self.cfg), encoding="utf-8")

    def start(self, *arguments: str, **order: Any) -> ServiceProcess:
        return ServiceProcess(self.zygote, self.folder / "out", [str(self.file), *arguments], **order)


@pytest.fixture
def place(zygote: Zygote, toy: Path, tmp_path: Path) -> Place:
    return Place(zygote, toy, tmp_path)


@pytest.fixture(scope="module")
def served(zygote: Zygote, toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Config]]:
    """Critic and reward model, small limits, and a token."""
    limits = {"body_mb": 1, "max_rows": 8, "roles": ["critic", "reward"], "reward": str(toy / "reward")}
    section = {**limits, "token_env": "SERVICE_TOKEN"}
    place = Place(zygote, toy, tmp_path_factory.mktemp("served"), serve=section)
    process = place.start()
    url = process.address()
    with ready_client(url, token=TOKEN) as client:
        client.restore(RUN, 0, None)
    yield url, place.cfg
    assert process.end() == 0


@pytest.fixture
def http(served: tuple[str, Config]) -> Iterator[httpx.Client]:
    with raw(served[0], headers={"authorization": f"Bearer {TOKEN}"}) as client:
        yield client


def refusal(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error in an answer, in the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "got", "allowed", "hint", "retry"}
    assert error["code"] == code
    return dict(error)


# -------------------------------------------------------------------------------------------------------- what it does


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_run_over_http_is_a_run_in_one_process(zygote: Zygote, toy: Path, tmp_path: Path, rows: int) -> None:
    place = Place(zygote, toy, tmp_path, serve={"batch_wait_ms": 0})
    process = place.start()
    with one_thread(), ready_client(process.address()) as client:
        local = build_toy_critic(place.cfg)
        client.restore(RUN, 0, None)
        for step in (1, 2, 3):
            batch = toy_batch(local, step, rows=max(rows, 3))
            request = train_request(batch, step)
            found = client.train(request)
            assert found.numbers == [vars(update) for update in train_locally(local, batch, place.cfg)]
            rollout = toy_rollout(rows, seed=step)
            answer = client.infer(infer_request(rollout, run=RUN, trained_step=step))
            expected = local.critic.values(rollout)
            assert answer.values is not None and answer.after is not None
            np.testing.assert_array_equal(answer.values, expected.values)
            np.testing.assert_array_equal(answer.after, expected.after)
        assert client.train(request) == found.again(3)
        assert client.handshake().critic.model != local.digest()  # type: ignore[union-attr]
        assert client.handshake().trained_step == 3
    assert process.end() == 0


def test_many_at_once_get_what_each_would_get_alone(served: tuple[str, Config], http: httpx.Client, toy: Path) -> None:
    def request(number: int) -> InferRequest:
        asked = infer_request(toy_rollout(1 + number % 4, seed=number))
        items = tuple("a great film" if (number + row) % 2 else "dull plot" for row in range(len(asked.ids)))
        return replace(asked, want=("values", "scores"), items=items)

    with ready_client(served[0], token=TOKEN) as client, ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda n: client.infer(request(n)), range(24)))
        for number, found in enumerate(together):
            alone = client.infer(request(number))
            np.testing.assert_allclose(found.values, alone.values, atol=1e-4, rtol=0)  # type: ignore[arg-type]
            np.testing.assert_allclose(found.scores, alone.scores, atol=1e-4, rtol=0)  # type: ignore[arg-type]
        text = http.get("/metrics").text
    sums = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
    batches, requests = (sums[f'surefoot_batch_requests_{n}{{model="critic"}}'] for n in ("count", "sum"))
    assert requests >= 48 and batches < requests, "nothing was joined"
    with one_thread():
        expected = RewardModel(str(toy / "reward")).score_texts(["a great film"])[0]
    assert together[1].scores is not None and together[1].scores[0] == pytest.approx(expected, abs=1e-4)


def test_metrics_count_what_was_done(served: tuple[str, Config], http: httpx.Client) -> None:
    with ready_client(served[0], token=TOKEN) as client:
        client.infer(infer_request(toy_rollout(2, seed=1)))
    text = http.get("/metrics").text
    for name in (
        'surefoot_requests_total{endpoint="/v1/infer",status="200"}',
        'surefoot_request_seconds_count{endpoint="/v1/infer"}',
        'surefoot_rows_total{work="values"}',
        'surefoot_batch_tokens_count{model="critic"}',
        "surefoot_critic_queue",
        "surefoot_trained_steps_total",
        "surefoot_replayed",
        "surefoot_checkpoint_seconds_count",
        "surefoot_journal_bytes",
        "surefoot_ready 1.0",
        "process_resident_memory_bytes",
    ):
        assert name in text, name


# ----------------------------------------------------------------------------------------------------- what it refuses


def test_without_the_token_only_health_and_readiness_are_told(served: tuple[str, Config]) -> None:
    for token in (None, "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN):
        with raw(served[0], headers={} if token is None else {"authorization": token}) as client:
            assert client.get("/v1/health").json() == {"status": "alive"}
            assert client.get("/v1/ready").status_code == 200
            for method, path in (("GET", "/v1/handshake"), ("POST", "/v1/train"), ("GET", "/metrics"), ("GET", "/x")):
                answer = client.request(method, path)
                error = refusal(answer, 401, "unauthorised")
                assert answer.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in str(error)
    with raw(served[0], headers=[(b"authorization", b"Bearer \xff\xfe")]) as client:
        refusal(client.get("/v1/handshake"), 401, "unauthorised")


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "code"),
    [
        ("GET", "/", {}, b"", 404, "not_found"),
        ("GET", "/v1/train/../../etc/passwd", {}, b"", 404, "not_found"),
        ("GET", "/v1/infer", {}, b"", 405, "bad_request"),
        ("DELETE", "/v1/train", {}, b"", 405, "bad_request"),
        ("POST", "/v1/infer", {}, b"{}", 415, "bad_media_type"),
        ("POST", "/v1/infer", JSON, b"{}", 415, "bad_media_type"),
        ("POST", "/v1/train", {"content-type": "application/octet-stream"}, b"", 415, "bad_media_type"),
        ("POST", "/v1/restore", TENSORS, b"{}", 415, "bad_media_type"),
        ("POST", "/v1/infer", TENSORS, b"", 400, "bad_request"),
        ("POST", "/v1/infer", TENSORS, b"\x80\x04pickle", 400, "bad_request"),
        ("POST", "/v1/train", TENSORS, b"\xff" * 64, 400, "bad_request"),
        ("POST", "/v1/restore", JSON, b"{", 400, "bad_request"),
        ("POST", "/v1/restore", JSON, b'{"run": "../../x", "step": 0}', 400, "bad_request"),
        ("POST", "/v1/restore", JSON, b'{"run": "a\\u0000b", "step": 0}', 400, "bad_request"),
        ("POST", "/v1/checkpoint", JSON, b'{"run": "run-1", "step": 3}', 409, "stale_step"),
        ("POST", "/v1/checkpoint", JSON, b'{"run": "run-2", "step": 0}', 409, "mismatch"),
        ("POST", "/v1/restore", JSON, b'{"run": "run-2", "step": 0}', 409, "in_use"),
    ],
)
def test_every_refusal_has_the_one_shape(
    http: httpx.Client, method: str, path: str, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    error = refusal(http.request(method, path, headers=headers, content=body), status, code)
    assert error["message"] and not error["retry"]


def test_too_many_rows_are_refused_before_any_model_work(http: httpx.Client, served: tuple[str, Config]) -> None:
    body = infer_request(toy_rollout(9, seed=1)).pack()
    error = refusal(http.post("/v1/infer", headers=TENSORS, content=body), 413, "too_large")
    assert error["got"] == "9" and error["allowed"] == "8"


def test_a_body_that_is_announced_too_large_is_refused_at_once(served: tuple[str, Config]) -> None:
    lines = [f"POST /v1/train HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"]
    lines += [f"content-type: {MEDIA_TYPE}\r\ncontent-length: {3 << 20}\r\n\r\n"]
    with connected(served[0]) as sock:
        sock.sendall("".join(lines).encode() + b"x" * 1000)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower() and b'"too_large"' in answer


def test_a_body_that_grows_too_large_is_refused_while_it_comes_in(http: httpx.Client) -> None:
    sent = [0]

    def pieces() -> Iterator[bytes]:
        while sent[0] < 64 << 20:
            sent[0] += 1 << 16
            yield bytes(1 << 16)

    with contextlib.suppress(httpx.TransportError):  # where the server has closed while we were still sending
        refusal(http.post("/v1/train", headers=TENSORS, content=pieces()), 413, "too_large")
    assert sent[0] < 32 << 20
    assert http.get("/v1/handshake").status_code == 200


def test_what_a_role_cannot_do_is_refused(zygote: Zygote, toy: Path, tmp_path: Path) -> None:
    serve = {"roles": ["reward"], "reward": str(toy / "reward")}
    place = Place(zygote, toy, tmp_path, serve=serve)
    process = place.start()
    with ready_client(process.address()) as client, raw(process.address()) as http:
        card = client.handshake()
        assert (card.roles, card.critic, card.trained_step) == (["reward"], None, 0)
        assert card.reward is not None and card.reward.name == "reward"
        body = infer_request(toy_rollout(1, seed=1)).pack()
        error = refusal(http.post("/v1/infer", headers=TENSORS, content=body), 422, "unprocessable")
        assert "role critic" in error["message"]
        body = RestoreRequest(RUN, 0).pack()
        refusal(http.post("/v1/restore", headers=JSON, content=body), 422, "unprocessable")
    assert process.end() == 0
    assert not (tmp_path / "service").exists()


# -------------------------------------------------------------------------------------------------- broken connections


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        f"content-type: {MEDIA_TYPE}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def test_a_connection_cut_in_mid_body_leaves_nothing_behind(served: tuple[str, Config], http: httpx.Client) -> None:
    url, cfg = served
    assert cfg.serve is not None
    with one_thread():
        body = train_requests(cfg, 1)[0].pack()
    for cut in (0, 10, len(body) // 2, len(body) - 1):
        with connected(url) as sock:
            sock.sendall(head("/v1/train", len(body)) + body[:cut])
    time.sleep(0.2)
    card = http.get("/v1/handshake").json()
    assert card["trained_step"] == 0
    assert not list((Path(cfg.serve.dir) / "runs" / RUN).glob("journal/*"))


def test_bytes_that_are_no_http_end_one_connection_only(served: tuple[str, Config], http: httpx.Client) -> None:
    with connected(served[0]) as sock:
        sock.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert b"400" in sock.recv(4096)
    assert http.get("/v1/health").status_code == 200


# ------------------------------------------------------------------------------------------------------ while it works


def long_training(cfg: Config, *, epochs: int, step: int = 1) -> TrainRequest:
    """A request that keeps the critic busy for some seconds."""
    with one_thread():
        batch = toy_batch(build_toy_critic(cfg), step)
    return train_request(replace(batch, plan=batch.plan * (epochs // 2)), step)


def test_others_are_answered_while_the_critic_trains(zygote: Zygote, toy: Path, tmp_path: Path) -> None:
    serve = {"roles": ["critic", "reward"], "reward": str(toy / "reward"), "queue": 2, "batch_wait_ms": 0}
    place = Place(zygote, toy, tmp_path, serve=serve)
    process = place.start()
    url, request = process.address(), long_training(place.cfg, epochs=400)
    scored = InferRequest((0,), (3,), ("scores",), items=("a great film",))
    with ready_client(url) as client, raw(url) as http, ThreadPoolExecutor(8) as pool:
        client.restore(RUN, 0, None)
        training = pool.submit(client.train, request)
        time.sleep(0.2)
        waiting = [pool.submit(client.infer, infer_request(toy_rollout(1, seed=n))) for n in range(3)]
        time.sleep(0.2)
        for path in ("/v1/health", "/v1/ready", "/v1/handshake", "/metrics"):
            begun = time.monotonic()
            assert http.get(path).status_code == 200
            assert time.monotonic() - begun < 1.0
        client.infer(scored)
        body = infer_request(toy_rollout(1, seed=9)).pack()
        answer = http.post("/v1/infer", headers=TENSORS, content=body)
        assert refusal(answer, 503, "overloaded")["retry"]
        assert answer.headers["retry-after"] == "1"
        assert not training.done(), "the training was too short to try this"
        assert http.get("/v1/handshake").json()["trained_step"] == 0
        assert training.result(30).trained_step == 1
        assert all(one.result(30).trained_step == 1 for one in waiting)
    assert process.end() == 0


def test_a_request_whose_client_has_gone_is_not_computed(zygote: Zygote, toy: Path, tmp_path: Path) -> None:
    place = Place(zygote, toy, tmp_path, serve={"batch_wait_ms": 0})
    process = place.start()
    url, request = process.address(), long_training(place.cfg, epochs=200)
    body = infer_request(toy_rollout(1, seed=1)).pack()
    with ready_client(url) as client, raw(url) as http, ThreadPoolExecutor(1) as pool:
        client.restore(RUN, 0, None)
        training = pool.submit(client.train, request)
        time.sleep(0.2)
        leaving = [connected(url) for _ in range(3)]
        for sock in leaving:
            sock.sendall(head("/v1/infer", len(body)) + body)
        time.sleep(0.2)
        for sock in leaving:
            sock.close()
        assert not training.done(), "the training was too short to try this"
        training.result(30)
        client.infer(infer_request(toy_rollout(1, seed=1)))
        text = http.get("/metrics").text
    # The first of them was with the critic's thread already, and the last request was ours.
    assert 'surefoot_batch_requests_count{model="critic"} 2.0' in text
    assert 'surefoot_requests_total{endpoint="/v1/infer",status="499"} 2.0' in text
    assert process.end() == 0


def test_a_full_disk_refuses_a_step_and_the_service_goes_on(place: Place) -> None:
    process = place.start(limit=30_000)
    with one_thread():
        requests = train_requests(place.cfg, 2)
    local = build_toy_critic(place.cfg)
    large = train_request(toy_batch(local, 1, rows=400), 1)
    with ready_client(process.address()) as client, raw(process.address()) as http:
        client.restore(RUN, 0, None)
        body = large.pack()
        assert len(body) > 30_000 > len(requests[0].pack())
        answer = http.post("/v1/train", headers=TENSORS, content=body)
        error = refusal(answer, 507, "disk_full")
        assert error["retry"] and answer.headers["retry-after"]
        assert "not trained" in error["message"]
        assert client.handshake().trained_step == 0
        assert client.train(requests[0]).trained_step == 1
        saving = http.post("/v1/checkpoint", headers=JSON, content=CheckpointRequest(RUN, 1).pack())
        assert refusal(saving, 507, "disk_full")["retry"]
        assert client.train(requests[1]).trained_step == 2
    assert process.end() == 0
    again = place.start()
    with ready_client(again.address()) as client:
        assert client.handshake().trained_step == 2
        assert client.checkpoint(RUN, 2, ()).step == 2
    assert again.end() == 0


# ------------------------------------------------------------------------------------------------ beginning and ending


def test_it_says_where_it_listens_and_answers_while_it_loads(place: Place) -> None:
    process = place.start(die={"owner": "surefoot.serving.critic_keeper:CriticKeeper", "name": "open", "number": 99})
    url = process.address()
    assert process.stdout.read_text() == f"listening on {url}\n"
    with raw(url) as http:
        assert http.get("/v1/health").json() == {"status": "alive"}
        first = http.get("/v1/ready")
        if first.status_code == 503:
            assert first.headers["retry-after"] == "1" and "loading" in first.json()["waits_for"]
    with ready_client(url) as client:
        assert client.ready().status == "ready"
    assert process.end() == 0


def test_asked_to_end_it_finishes_what_it_does(place: Place) -> None:
    process = place.start()
    url, request = process.address(), long_training(place.cfg, epochs=200)
    with ready_client(url) as client, raw(url) as http, ThreadPoolExecutor(1) as pool:
        client.restore(RUN, 0, None)
        training = pool.submit(http.post, "/v1/train", headers=TENSORS, content=request.pack())
        time.sleep(0.3)
        assert not training.done(), "the training was too short to try this"
        assert process.end() == 0
        assert training.result().json()["trained_step"] == 1
    messages = [line["message"] for line in process.log()]
    assert any("SIGTERM" in message for message in messages)
    again = place.start()
    with ready_client(again.address()) as client:
        assert client.handshake().trained_step == 1
        assert client.train(request).repeated
    assert again.end() == 0


def test_what_takes_too_long_at_the_end_is_done_at_the_next_start(zygote: Zygote, toy: Path, tmp_path: Path) -> None:
    place = Place(zygote, toy, tmp_path, serve={"drain_s": 0})
    process = place.start()
    url, request = process.address(), long_training(place.cfg, epochs=300)
    with ready_client(url) as client, raw(url) as http, ThreadPoolExecutor(1) as pool:
        client.restore(RUN, 0, None)
        training = pool.submit(http.post, "/v1/train", headers=TENSORS, content=request.pack())
        time.sleep(0.3)
        begun = time.monotonic()
        assert process.end() == 0
        assert time.monotonic() - begun < 3.0
        assert isinstance(training.exception(), httpx.TransportError) or training.result().status_code >= 500
    again = place.start()
    with ready_client(again.address()) as client:
        found = client.train(request)
        assert found.repeated and found.trained_step == 1
    assert again.end() == 0


def test_its_log_is_json_with_run_and_step(place: Place) -> None:
    process = place.start()
    url = process.address()
    with one_thread():
        (request,) = train_requests(place.cfg, 1)
    with ready_client(url) as client, raw(url, headers={"x-surefoot-run": RUN, "x-surefoot-step": "1"}) as http:
        client.restore(RUN, 0, None)
        http.post("/v1/train", headers=TENSORS, content=request.pack())
    process.end()
    lines = process.log()
    assert all({"time", "level", "message"} <= set(line) for line in lines)
    (asked,) = [line for line in lines if line.get("path") == "/v1/train"]
    assert (asked["run"], asked["step"], asked["status"], asked["message"]) == (RUN, "1", 200, "request")
    assert asked["seconds"] > 0
    (trained,) = [line for line in lines if line["message"] == "trained"]
    assert (trained["run"], trained["step"]) == (RUN, 1)
    text = place.start("--log", "text")
    text.address()
    text.end()
    assert "info: " in text.stderr.read_text()


def test_a_second_service_on_the_same_folder_is_refused(place: Place) -> None:
    first = place.start()
    first.address()
    second = place.start()
    assert second.wait() == 2
    said = second.stderr.read_text()
    assert "the service's folder" in said and f"process {first.pid}" in said and "serve.dir" in said
    assert said.count("\n") == 2 and not second.stdout.read_text()
    assert first.end() == 0


def test_a_port_in_use_is_one_paragraph_at_once(zygote: Zygote, toy: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = Place(zygote, toy, tmp_path).start("--port", str(port))
        assert process.wait() == 2
    said = process.stderr.read_text()
    assert said == (
        f"error: the port is in use; got: 127.0.0.1, port {port}\n"
        "hint: is the service running already? end it, or choose another serve.port (0: any that is free)\n"
    )


@pytest.mark.parametrize(
    ("sections", "arguments", "complaint"),
    [
        ({}, ["--host", "0.0.0.0"], "a service that others can reach needs a token"),
        ({"serve": {"token_env": "NO_SUCH_VARIABLE"}}, [], "NO_SUCH_VARIABLE is not set"),
        ({"serve": {"roles": ["critic", "reward"]}}, [], "there is no reward model"),
        ({}, ["--host", "192.0.2.1", "serve.token_env=SERVICE_TOKEN"], "the service cannot listen"),
        ({}, ["--port", "70000"], "there is no such port"),
        ({}, ["model.policy=/no/such/model"], "the model folder does not exist"),
        ({"critic": {"kind": "shared"}}, [], "cannot be served"),
        ({}, ["model.dtype=float16"], "float16"),
    ],
)
def test_a_mistake_is_one_paragraph(
    zygote: Zygote, toy: Path, tmp_path: Path, sections: dict[str, Any], arguments: list[str], complaint: str
) -> None:
    process = Place(zygote, toy, tmp_path, **sections).start(*arguments)
    assert process.wait() == 2
    said = [line for line in process.stderr.read_text().splitlines() if not line.startswith("{")]
    assert len(said) == 2, said
    assert said[0].startswith("error: ") and complaint in said[0]
    assert said[1].startswith("hint: ")


def test_another_model_than_before_ends_it_at_once(place: Place) -> None:
    process = place.start()
    with one_thread():
        (request,) = train_requests(place.cfg, 1)
    with ready_client(process.address()) as client:
        client.restore(RUN, 0, None)
        client.train(request)
    process.kill()
    other = place.start("model.dtype=float64")
    assert other.wait() == 2
    assert "another critic" in other.stderr.read_text()
    again = place.start()
    with ready_client(again.address()) as client:
        assert client.handshake().trained_step == 1
    assert again.end() == 0


def test_stopped_twice_it_ends_at_once(zygote: Zygote, toy: Path, tmp_path: Path) -> None:
    place = Place(zygote, toy, tmp_path)
    process = place.start()
    url, request = process.address(), long_training(place.cfg, epochs=300)
    with ready_client(url) as client, raw(url) as http, ThreadPoolExecutor(1) as pool:
        client.restore(RUN, 0, None)
        pool.submit(http.post, "/v1/train", headers=TENSORS, content=request.pack())
        time.sleep(0.3)
        process.send(signal.SIGINT)
        time.sleep(0.2)
        process.send(signal.SIGINT)
        assert process.wait() == 130


def test_json_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "two\nlines %s", ("and \u2028 more",), None)
    line = JsonLines().format(record)
    assert "\n" not in line and json.loads(line)["message"] == "two\nlines and \u2028 more"
