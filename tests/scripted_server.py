"""A server of plain sockets that does, request by request, what a test tells it: answer, hang, cut, drip, vanish."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


@dataclass
class Exchange:
    """A request, and the socket to answer it on."""

    request: Received
    socket: socket.socket
    stopping: threading.Event
    ended: bool = False

    def send(self, data: bytes) -> None:
        """Some bytes of the answer."""
        self.socket.sendall(data)

    def end(self) -> None:
        """Close the connection after this answer."""
        self.ended = True


Step = Callable[[Exchange], None]


def head(status: int, length: int | None, headers: Mapping[str, str] = {}) -> bytes:
    """Status line and headers."""
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{k}: {v}" for k, v in headers.items())]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def reply(status: int = 200, body: bytes | str | dict[str, Any] = b"", **headers: str) -> Step:
    """Answer properly; ``retry_after="1"`` is the header ``Retry-After: 1``."""
    plain = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.send(head(status, len(plain), named) + plain)


def made(build: Callable[[Received], bytes]) -> Step:
    """Answer 200 with what is made from the request."""
    return lambda exchange: reply(200, build(exchange.request))(exchange)


def hang(exchange: Exchange) -> None:
    """Say nothing until the server stops."""
    exchange.stopping.wait(30)
    exchange.end()


def vanish(exchange: Exchange) -> None:
    """Close without an answer."""
    exchange.end()


def cut(body: bytes, after: int, *, announced: bool = True) -> Step:
    """Send the beginning of an answer, then close."""

    def step(exchange: Exchange) -> None:
        exchange.send(head(200, len(body) if announced else None) + body[:after])
        exchange.end()

    return step


def drip(data: bytes, every_s: float = 0.02) -> Step:
    """Send the answer byte by byte."""

    def step(exchange: Exchange) -> None:
        for at in range(len(data)):
            if exchange.stopping.is_set():
                break
            exchange.send(data[at : at + 1])
            time.sleep(every_s)
        exchange.end()

    return step


def raw(data: bytes) -> Step:
    """Send these bytes and close."""

    def step(exchange: Exchange) -> None:
        exchange.send(data)
        exchange.end()

    return step


@dataclass
class ScriptedServer:
    """Answers the n-th request with the n-th step; the last step goes on. ``with`` starts and stops it.

    With ``unread``, requests with a body get that answer and a closed connection, and their body is never read.
    """

    steps: list[Step]
    port: int = 0
    unread: Step | None = None
    received: list[Received] = field(default_factory=list)
    connections: int = 0

    @classmethod
    def of(cls, *steps: Step, port: int = 0, unread: Step | None = None) -> Self:
        """One with these steps."""
        return cls(list(steps), port, unread)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._stopping, self._lock = threading.Event(), threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(5)

    def drop(self) -> None:
        """Close every connection."""
        with self._lock:
            sockets = list(self._open)
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(accepted)
                self.connections += 1
            thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), accepted, accepted.makefile("rb") as stream:
            while (request := _read(stream, body=self.unread is None)) is not None:
                if not request.method:  # as servers do with what is no HTTP
                    accepted.sendall(head(400, 0))
                    break
                with self._lock:
                    step = self.steps[min(len(self.received), len(self.steps) - 1)]
                    self.received.append(request)
                exchange = Exchange(request, accepted, self._stopping)
                (self.unread or step)(exchange)
                if exchange.ended or self.unread is not None:
                    break
        with self._lock:
            self._open.discard(accepted)


def _read(stream: Any, *, body: bool = True) -> Received | None:
    first = stream.readline()
    if not first:
        return None
    try:
        method, path, _ = first.decode().split()
    except ValueError:
        return Received("", "", {}, first)
    headers: dict[str, str] = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", 0)) if body else 0
    found = stream.read(length)
    return Received(method, path, headers, found) if len(found) == length else None


def closed_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
