"""A service at work, beginning and ending: in a process of its own, over real HTTP."""

from __future__ import annotations

import json
import logging
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from surefoot.config import Config
from surefoot.serving.logs import JsonLines
from surefoot.serving.wire import CheckpointRequest, InferRequest, TrainRequest
from tests.serving.parts import (
    RUN,
    build_toy_critic,
    infer_request,
    one_thread,
    toy_batch,
    toy_rollout,
    train_request,
    train_requests,
)
from tests.serving.processes import (
    JSON,
    TENSORS,
    Place,
    Zygote,
    connected,
    head,
    raw,
    ready_client,
    refusal,
)

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
            assert time.monotonic() - begun < 5.0
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
        assert time.monotonic() - begun < 5.0
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
