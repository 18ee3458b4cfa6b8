"""The endpoints: bytes in, bytes out. What they mean is :class:`surefoot.serving.service.Service`'s business."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from surefoot.errors import ServiceRefused
from surefoot.serving.batcher import Presence
from surefoot.serving.fields import MAX_CONTROL_BYTES, JsonBody
from surefoot.serving.service import Service
from surefoot.serving.wire import MEDIA_TYPE

JSON = "application/json"
IDLE_S = 60.0
"""Longest silence in the middle of a body."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[Request], Awaitable[Response]]


class Handlers:
    """The endpoints of one service."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> dict[str, tuple[str, Handler]]:
        """Path to method and handler."""
        return {
            "/v1/health": ("GET", self.health),
            "/v1/ready": ("GET", self.ready),
            "/v1/handshake": ("GET", self.handshake),
            "/v1/infer": ("POST", self.infer),
            "/v1/train": ("POST", self.train),
            "/v1/checkpoint": ("POST", self.checkpoint),
            "/v1/restore": ("POST", self.restore),
            "/v1/release": ("POST", self.release),
            "/metrics": ("GET", self.metrics),
        }

    async def health(self, request: Request) -> Response:
        """The process answers."""
        return Response(b'{"status":"alive"}', media_type=JSON)

    async def ready(self, request: Request) -> Response:
        """Whether requests are answered."""
        found = self.service.readiness()
        waits = found.waits_for is not None
        headers = {"retry-after": "1"} if waits else None
        return Response(found.pack(), 503 if waits else 200, headers, media_type=JSON)

    async def handshake(self, request: Request) -> Response:
        """Who this is."""
        return _json(self.service.handshake())

    async def infer(self, request: Request) -> Response:
        """Values and scores."""
        body = await self._tensors(request)
        with _Client(request) as client:
            answer = await self.service.infer(body, client)
        return Response(answer, media_type=MEDIA_TYPE)

    async def train(self, request: Request) -> Response:
        """One step's training."""
        return _json(await self.service.train(await self._tensors(request)))

    async def checkpoint(self, request: Request) -> Response:
        """Save."""
        return _json(await self.service.checkpoint(await self._control(request)))

    async def restore(self, request: Request) -> Response:
        """Go back."""
        return _json(await self.service.restore(await self._control(request)))

    async def release(self, request: Request) -> Response:
        """The end of a run."""
        return _json(await self.service.release(await self._control(request)))

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        return Response(self.service.metrics.text(), headers={"content-type": PROMETHEUS})

    async def _tensors(self, request: Request) -> bytes:
        self.service.require_ready()
        _require_type(request, MEDIA_TYPE)
        return await read_body(request, self.service.options.limits.body_bytes)

    async def _control(self, request: Request) -> bytes:
        _require_type(request, JSON)
        return await read_body(request, min(MAX_CONTROL_BYTES, self.service.options.limits.body_bytes))


def _json(message: JsonBody) -> Response:
    return Response(message.pack(), media_type=JSON)


def _require_type(request: Request, allowed: str) -> None:
    got = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if got != allowed:
        raise ServiceRefused(
            "a body of another type",
            got=got[:100] or "none",
            allowed=allowed,
            hint="set the header content-type",
            code="bad_media_type",
        )


async def read_body(request: Request, limit: int) -> bytes:
    """The body, as long as it is within the limit; it is counted while it comes in.

    Raises:
        ServiceRefused: it is not.
        ClientDisconnect: the client has gone in the middle of it, or is as silent as if it had.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(f"{announced} bytes", limit)
    pieces, size = [], 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(IDLE_S) as patience:
            async for piece in request.stream():
                patience.reschedule(loop.time() + IDLE_S)
                size += len(piece)
                if size > limit:
                    raise _too_large(f"more than {limit} bytes", limit)
                pieces.append(piece)
    except TimeoutError:
        raise ClientDisconnect from None
    if announced.isdigit() and size != int(announced):
        raise ClientDisconnect
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(got: str, limit: int) -> ServiceRefused:
    return ServiceRefused(
        "the body is too large",
        got=got,
        allowed=f"{limit} bytes",
        hint="send fewer rows in a request, or raise serve.body_mb",
        code="too_large",
    )


class _Client(Presence):
    """Who waits for the answer to a request, looked after only where that takes long. Within ``with``."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begin to look."""
        if self._task is None:
            self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.gone = True

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._task is not None:
            self._task.cancel()
