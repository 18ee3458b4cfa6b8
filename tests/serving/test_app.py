"""The service over real HTTP, in a process of its own: what it answers, what it refuses, and how it begins and ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import ClientDisconnect, Request

from surefoot.config import Config
from surefoot.models.reward_model import RewardModel
from surefoot.serving import handlers
from surefoot.serving.wire import MEDIA_TYPE, InferRequest, RestoreRequest
from tests.serving.parts import (
    RUN,
    build_toy_critic,
    infer_request,
    one_thread,
    toy_batch,
    toy_rollout,
    train_locally,
    train_request,
    train_requests,
)
from tests.serving.processes import (
    JSON,
    TENSORS,
    TOKEN,
    Place,
    Zygote,
    connected,
    head,
    raw,
    ready_client,
    refusal,
)


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
        "surefoot_replayed_steps",
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


def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "IDLE_S", 0.05)
    sent = [b"abc", b"def"]

    async def receive() -> Any:
        if not sent:
            await asyncio.sleep(10)
        await asyncio.sleep(0.03)  # slow, and not silent
        return {"type": "http.request", "body": sent.pop(0), "more_body": True}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(ClientDisconnect):
        asyncio.run(asyncio.wait_for(handlers.read_body(request, 1000), 5))
    assert sent == []
