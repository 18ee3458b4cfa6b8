"""The web application around a service, and the server that runs it. The framework is here and in ``handlers`` alone.

Every answer that is no success has the one JSON shape of errors, the framework's own too.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.errors import DataError, ModelError, ServiceError, SurefootError
from surefoot.serving.batcher import ClientGone
from surefoot.serving.handlers import JSON, Handlers
from surefoot.serving.refusals import Refusal
from surefoot.serving.service import Service

logger = logging.getLogger("surefoot.serving")

OPEN: Final = ("/v1/health", "/v1/ready")
"""Paths that are answered without the token."""
GONE: Final = 499
"""Status in log and metrics of a request whose client has gone: it got no answer."""
RETRY_AFTER: Final = {"not_ready": "1", "overloaded": "1", "too_many": "1", "disk_full": "5"}


def create_app(service: Service, *, token: str | None = None) -> FastAPI:
    """The application of a service.

    Args:
        service: what answers.
        token: that every request must carry but those for :data:`OPEN`; None: none.
    """
    app = FastAPI(title="surefoot", docs_url=None, redoc_url=None, openapi_url=None)
    handlers = Handlers(service).routes()
    for path, (method, handler) in handlers.items():
        app.router.add_route(path, handler, methods=[method])
    app.add_exception_handler(HTTPException, _framework_error)
    app.add_exception_handler(SurefootError, _own_error)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_middleware(Gate, service=service, token=token, paths=frozenset(handlers))
    return app


async def _own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SurefootError)
    code = None if isinstance(error, ServiceError) else "model_failed"
    if isinstance(error, (DataError, ModelError)):
        code = "unprocessable"  # the model cannot read what it was sent
    return _refused(Refusal.of(error, code))


async def _framework_error(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: an unknown path, another method."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    refusal = Refusal(
        "not_found" if status == 404 else "bad_request" if status < 500 else "model_failed",
        f"{HTTPStatus(status).phrase.lower()}",
        got=f"{request.method} {request.url.path[:100]}",
        hint="docs/service.md lists the endpoints",
    )
    return _refused(refusal, status, dict(error.headers or {}))


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE)


def _refused(refusal: Refusal, status: int | None = None, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if refusal.code in RETRY_AFTER:
        headers["retry-after"] = RETRY_AFTER[refusal.code]
    if refusal.code == "unauthorised":
        headers["www-authenticate"] = "Bearer"
    if refusal.code == "too_large":
        headers["connection"] = "close"  # the rest of the body is not read
    return Response(refusal.pack(), refusal.status if status is None else status, headers, media_type=JSON)


class Gate:
    """Asks for the token, and notes each request with its status and time; what nobody caught becomes an error too."""

    def __init__(self, app: ASGIApp, *, service: Service, token: str | None, paths: frozenset[str]) -> None:
        self.app, self.service, self.paths = app, service, paths
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        headers = Headers(scope=scope)
        try:
            if self._may(scope["path"], headers):
                await self.app(scope, receive, noting)
            else:
                await _refused(UNAUTHORISED)(scope, receive, noting)
        except Exception as error:
            logger.exception("a request failed", extra={"path": scope["path"]})
            if not status:
                await _refused(_unexpected(error))(scope, receive, noting)
        finally:
            self._note(scope["path"], headers, status, time.monotonic() - begun)

    def _may(self, path: str, headers: Headers) -> bool:
        if self.expected is None or path in OPEN:
            return True
        return hmac.compare_digest(headers.get("authorization", "").encode(), self.expected)

    def _note(self, path: str, headers: Headers, status: int, seconds: float) -> None:
        known = path in self.paths
        self.service.metrics.answered(path if known else "other", status, seconds)
        level = logging.DEBUG if path in QUIET else logging.INFO
        if logger.isEnabledFor(level):
            extra = {
                "path": path[:100],
                "status": status,
                "seconds": round(seconds, 5),
                "run": headers.get("x-surefoot-run", "")[:128] or None,
                "step": headers.get("x-surefoot-step", "")[:20] or None,
            }
            logger.log(level, "request", extra=extra)


QUIET: Final = ("/v1/health", "/v1/ready", "/metrics")
"""Asked for again and again by machines; not worth a line each."""

UNAUTHORISED: Final = Refusal(
    "unauthorised",
    "the token is missing or another",
    hint="set token_env on both sides to variables that hold the same token",
)


def _unexpected(error: Exception) -> Refusal:
    return Refusal("model_failed", "the request failed", got=type(error).__name__, hint="look at the service's log")


# --------------------------------------------------------------------------------------------------------- the server


class _Server(uvicorn.Server):
    """Without signal handlers of its own: what a signal means is decided in :func:`run_server`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class _Ending:
    """Why and since when the server ends."""

    since: float | None = None
    error: BaseException | None = None


def run_server(
    service: Service,
    listener: socket.socket,
    *,
    token: str | None,
    drain_s: float,
    announce: Callable[[], None] = lambda: None,
) -> int:
    """Answer requests on a socket that listens already, until a signal or a model that cannot be loaded.

    SIGTERM and SIGINT: no new requests are taken, those under way are answered for up to ``drain_s`` seconds. A second
    one ends the process at once; the journal loses nothing.

    Args:
        service: what answers; it is opened here.
        listener: the socket.
        token: see :func:`create_app`.
        drain_s: see above.
        announce: called once signals are heard.
    Returns:
        the exit code.
    Raises:
        SurefootError: a model could not be loaded.
    """
    config = uvicorn.Config(
        create_app(service, token=token),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_serve(service, listener, config, drain_s, announce))


async def _serve(
    service: Service, listener: socket.socket, config: uvicorn.Config, drain_s: float, announce: Callable[[], None]
) -> int:
    server, ending = _Server(config), _Ending()
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        if ending.since is not None:
            os._exit(128 + number)
        ending.since = time.monotonic()
        service.draining, server.should_exit = True, True
        logger.info("%s: ending once requests under way are answered", number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    announce()
    opening = asyncio.create_task(service.open())

    def opened(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            ending.error, server.should_exit = task.exception(), True

    opening.add_done_callback(opened)
    await server.serve(sockets=[listener])
    if ending.error is not None:
        raise ending.error
    left = drain_s - (time.monotonic() - (ending.since or time.monotonic()))
    try:
        await asyncio.wait_for(service.close(), max(0.5, left))
    except TimeoutError:
        logger.warning("a model still works after %g s: ending all the same, the journal has it", drain_s)
        logging.shutdown()
        os._exit(0)
    return 0
