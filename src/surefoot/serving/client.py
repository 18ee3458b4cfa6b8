"""Clients of the critic and reward service: one blocking, one for asyncio, with one policy on what is repeated.

Every request of the protocol may be made twice, so every one is repeated while the service cannot be reached, is not
ready, or the answer was cut, until ``patience_s`` is over. What it refuses is not repeated. Torch-free.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from surefoot.config.addresses import http_address, is_loopback
from surefoot.errors import ConfigError, ServiceFailed, ServiceRefused
from surefoot.rewards.http_calls import Answer, Attempts, CallRefused, CallTrouble, GaveUp, Outage, Patience, Request
from surefoot.rewards.http_connections import NO_TLS, Connections
from surefoot.serving import operations
from surefoot.serving.operations import Operation, judged, unavailable
from surefoot.serving.wire import (
    Checkpointed,
    Handshake,
    Inferred,
    InferRequest,
    Limits,
    Readiness,
    Restored,
    TrainRequest,
    TrainResult,
)

logger = logging.getLogger("surefoot.serving")
R = TypeVar("R")


class _Base:
    """What both clients know: the address, the token, the patience, and what the service said of its limits."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 120.0,
        patience_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
    ) -> None:
        try:
            self.url = http_address(url)
        except ValueError as error:
            raise ConfigError(f"the service's address cannot be used: {error}") from None
        self.place = f"the service at {self.url}"
        self.patience = Patience(timeout_s, patience_s)
        self.limits: Limits | None = None
        self.outage = Outage(self.place, logger)
        self._token, self._clock, self._draw = token, clock, random.Random(seed)
        parts = urlsplit(self.url)
        if token is not None and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            logger.warning("the token for %s travels unencrypted: use https where others can listen", self.url)

    def _attempts(self, patience: Patience) -> Attempts:
        return Attempts(patience, self.outage, self._draw, self._clock)

    def _authorised(self, request: Request) -> Request:
        """The request with the token; what the service said it would not take is not sent."""
        size = len(request.body or b"")
        if self.limits is not None and size > self.limits.body_bytes:
            raise ServiceRefused(
                f"{self.place} does not take so large a request",
                got=f"{size} bytes",
                allowed=f"{self.limits.body_bytes} bytes",
                hint="raise serve.body_mb of the service",
                code="too_large",
            )
        if self._token is None:
            return request
        headers = {**(request.headers or {}), "Authorization": f"Bearer {self._token}"}
        return Request(request.method, request.path, request.body, headers, request.answer_bytes)

    def _refused(self, error: CallRefused) -> ServiceFailed:
        return ServiceFailed(f"{self.place} cannot be used: {error}", hint="is the address right, and the port?")

    def _met(self, found: Handshake) -> Handshake:
        self.limits = found.limits
        return found


class ServiceClient(_Base):
    """The service as blocking calls; any number of threads may call at once.

    Args:
        url: address of the service, as in ``http://127.0.0.1:8600``.
        token: sent with every request.
        timeout_s: limit for one try, in seconds.
        patience_s: limit for all tries of a call and the pauses between them.
        clock, sleep: for tests: seconds that only grow, and how to wait some.
        seed: of the pauses' random part.
    Raises:
        ConfigError: the address or a limit cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 120.0,
        patience_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(url, token, timeout_s=timeout_s, patience_s=patience_s, clock=clock, seed=seed)
        self._connections = Connections(self.url)
        self._closing = threading.Event()
        self._sleep = sleep or self._closing.wait

    @property
    def connections(self) -> int:
        """Connections opened so far: while this stays, it is the same process that answers."""
        return self._connections.opened

    def handshake(self) -> Handshake:
        """Who answers. Its limits are kept, and larger requests not sent."""
        return self._met(self._call(operations.handshake()))

    def recognise(self) -> Handshake | None:
        """The handshake, or None where something else answers: a server that does not know this protocol."""
        found = self._call(operations.recognise())
        return None if found is None else self._met(found)

    def infer(self, request: InferRequest) -> Inferred:
        """Values, scores or both; checked row by row."""
        return self._call(operations.infer(request))

    def train(self, request: TrainRequest) -> TrainResult:
        """Train on a step. A repeated request gives the stored result."""
        return self._call(operations.train(request))

    def checkpoint(self, run: str, step: int, keep: Sequence[int] = ()) -> Checkpointed:
        """Save the critic as it is after ``step``; checkpoints of other steps than ``keep`` may go."""
        return self._call(operations.checkpoint(run, step, keep))

    def restore(self, run: str, step: int, digest: str | None) -> Restored:
        """Put the critic back to a checkpoint; step 0 without a digest: the initial weights, for a new run."""
        return self._call(operations.restore(run, step, digest))

    def release(self, run: str) -> None:
        """The run is over: another may have the critic."""
        self._call(operations.release(run))

    def ready(self) -> Readiness:
        """Whether it can work now: one try, without patience.

        Raises:
            ServiceUnavailable: it cannot be reached.
        """
        operation, begun = operations.ready(), self._clock()
        try:
            return operations.readiness(self._send(operation.request, self.patience.timeout_s), self.place)
        except CallTrouble as trouble:
            gave_up = GaveUp(1, self._clock() - begun, str(trouble))
            raise unavailable(operation, self.place, gave_up, self.patience) from trouble

    def wait_ready(self) -> None:
        """Wait until it can work, as long as the patience allows."""
        self._call(operations.ready())

    def close(self) -> None:
        """Close the connections; calls under way end."""
        self._closing.set()
        self._connections.close()

    def try_once(self, operation: Operation[R], limit_s: float) -> R:
        """One try of an operation, within ``limit_s`` seconds.

        Raises:
            CallTrouble: another try may succeed.
            ServiceError: it would not.
        """
        return judged(operation, self._send(operation.request, limit_s), self.place)

    def _send(self, request: Request, limit_s: float) -> Answer:
        try:
            return self._connections.send(self._authorised(request), limit_s)
        except CallRefused as error:
            raise self._refused(error) from error

    def _call(self, operation: Operation[R]) -> R:
        attempts = self._attempts(self.patience)
        while True:
            try:
                found = self.try_once(operation, attempts.begin())
            except CallTrouble as trouble:
                try:
                    pause = attempts.failed(trouble)
                except GaveUp as gave_up:
                    raise unavailable(operation, self.place, gave_up, self.patience) from trouble
                self._sleep(pause)
                continue
            attempts.succeeded()
            return found


class AsyncServiceClient(_Base):
    """The service for asyncio: the same calls, the same policy. Close it with ``await client.close()``.

    Args:
        url, token, timeout_s, patience_s, clock, seed: as in :class:`ServiceClient`.
        sleep: for tests: how to wait some seconds.
    Raises:
        ConfigError: the address or a limit cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 120.0,
        patience_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        seed: int = 0,
    ) -> None:
        super().__init__(url, token, timeout_s=timeout_s, patience_s=patience_s, clock=clock, seed=seed)
        self._sleep = sleep
        # No limits of its own: asyncio's timeout holds for the whole try, which the library's do not.
        self._http = httpx.AsyncClient(
            timeout=None,
            trust_env=False,
            follow_redirects=False,
            # Reading the certificates of the system takes a tenth of a second; without https nothing is checked.
            verify=ssl.create_default_context() if self.url.startswith("https:") else False,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=None),
        )

    async def handshake(self) -> Handshake:
        """See :meth:`ServiceClient.handshake`."""
        return self._met(await self._call(operations.handshake()))

    async def infer(self, request: InferRequest) -> Inferred:
        """See :meth:`ServiceClient.infer`."""
        return await self._call(operations.infer(request))

    async def train(self, request: TrainRequest) -> TrainResult:
        """See :meth:`ServiceClient.train`."""
        return await self._call(operations.train(request))

    async def checkpoint(self, run: str, step: int, keep: Sequence[int] = ()) -> Checkpointed:
        """See :meth:`ServiceClient.checkpoint`."""
        return await self._call(operations.checkpoint(run, step, keep))

    async def restore(self, run: str, step: int, digest: str | None) -> Restored:
        """See :meth:`ServiceClient.restore`."""
        return await self._call(operations.restore(run, step, digest))

    async def release(self, run: str) -> None:
        """See :meth:`ServiceClient.release`."""
        await self._call(operations.release(run))

    async def ready(self) -> Readiness:
        """See :meth:`ServiceClient.ready`."""
        operation, begun = operations.ready(), self._clock()
        try:
            return operations.readiness(await self._send(operation.request, self.patience.timeout_s), self.place)
        except CallTrouble as trouble:
            gave_up = GaveUp(1, self._clock() - begun, str(trouble))
            raise unavailable(operation, self.place, gave_up, self.patience) from trouble

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send(self, request: Request, limit_s: float) -> Answer:
        try:
            return await _exchange(self._http, self.url, self._authorised(request), limit_s)
        except CallRefused as error:
            raise self._refused(error) from error

    async def _call(self, operation: Operation[R]) -> R:
        attempts = self._attempts(self.patience)
        while True:
            try:
                found = judged(operation, await self._send(operation.request, attempts.begin()), self.place)
            except CallTrouble as trouble:
                try:
                    pause = attempts.failed(trouble)
                except GaveUp as gave_up:
                    raise unavailable(operation, self.place, gave_up, self.patience) from trouble
                await self._sleep(pause)
                continue
            attempts.succeeded()
            return found


async def _exchange(client: httpx.AsyncClient, url: str, request: Request, limit_s: float) -> Answer:
    headers = {"Accept-Encoding": "identity", **(request.headers or {})}
    parts: list[bytes] = []
    size = 0
    try:
        async with (
            asyncio.timeout(limit_s),
            client.stream(request.method, url + request.path, content=request.body, headers=headers) as response,
        ):
            async for part in response.aiter_raw():
                size += len(part)
                if size > request.answer_bytes:
                    raise CallRefused(
                        f"it answers with more than the {request.answer_bytes} bytes that can be the answer"
                    )
                parts.append(part)
    except TimeoutError:
        raise CallTrouble(f"no answer within {limit_s:.3g} s") from None
    except httpx.TransportError as error:
        raise _trouble(error) from error
    found = {name.lower(): value for name, value in response.headers.items()}
    whole = "content-length" in found or "chunked" in found.get("transfer-encoding", "")
    return Answer(response.status_code, found, b"".join(parts), whole)


def _trouble(error: httpx.TransportError) -> CallTrouble | CallRefused:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CallRefused(f"its certificate cannot be trusted: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError) and cause.reason in NO_TLS:
            return CallRefused("it does not speak https; is the address http?")
        cause = cause.__cause__ or cause.__context__
    if "illegal" in str(error):
        return CallRefused("what listens there does not speak HTTP")
    return CallTrouble(str(error) or type(error).__name__)
