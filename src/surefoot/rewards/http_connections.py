"""Connections to one address that are kept open, with limits on the clock.

The standard library's client on sockets whose every wait is cut to what is left of the call's time: a server that
drips a byte now and then cannot hold a call longer. It costs a third of what a general client does per call, which
counts where a call is to take less than a millisecond. Nothing is followed (redirects) and nothing is in between
(proxies, whatever the environment says).
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from surefoot.rewards.http_calls import Answer, CallRefused, CallTrouble, Request

_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ConnectionAbortedError)
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
"""What OpenSSL calls an answer that is no TLS."""
CHUNK = 1 << 16
SMALL = 1 << 18


class Closed(CallRefused):
    """The connections were closed while a call was under way."""


class _Timed:
    """A socket that waits until ``deadline`` at most; what ``http.client`` needs of one."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock, self.deadline = sock, deadline

    def arm(self) -> socket.socket:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)
        return self.sock

    def sendall(self, data: bytes) -> None:
        self.arm().sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self), CHUNK)

    def close(self) -> None:
        """Nothing: ``http.client`` closes before it has read; the owner closes the socket."""


class _Incoming(io.RawIOBase):
    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.arm().recv_into(memoryview(buffer))


class _Connection(http.client.HTTPConnection):
    """One connection; opened by the first request."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._context = context
        self.timed: _Timed | None = None
        self.deadline = 0.0
        self._held: bytes | None = None

    def connect(self) -> None:
        sock = _opened(self.host, self.port, self.deadline)
        if self._context is not None:
            try:
                sock.settimeout(max(0.001, self.deadline - time.monotonic()))
                sock = self._context.wrap_socket(sock, server_hostname=self.host)
            except BaseException:
                sock.close()
                raise
        self.timed = _Timed(sock, self.deadline)
        self.sock: Any = self.timed

    def send(self, data: Any) -> None:
        """Headers and a small body go out together: two packets would wake the other side twice."""
        if self._held == b"":
            self._held = data
            return
        held, self._held = self._held, None
        if held:
            if len(data) < SMALL:
                data = held + data
            else:
                super().send(held)
        super().send(data)

    def begin(self, deadline: float, *, body: bool) -> None:
        self.deadline, self._held = deadline, b"" if body else None
        if self.timed is not None:
            self.timed.deadline = deadline

    def shut(self) -> None:
        """Close the socket; a thread that waits on it wakes."""
        timed, self.timed, self.sock = self.timed, None, None
        if timed is not None:
            with contextlib.suppress(OSError):
                timed.sock.shutdown(socket.SHUT_RDWR)
            timed.sock.close()


def _opened(host: str, port: int, deadline: float) -> socket.socket:
    last: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    raise last or OSError(f"{host} has no address")


class Connections:
    """Connections to one address; any number of threads may send at once.

    Args:
        address: ``http://HOST:PORT/PREFIX`` or https.

    Attributes:
        opened: connections so far. Another process behind the address needs another connection.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        secure = parts.scheme == "https"
        self._context = ssl.create_default_context() if secure else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        self._path, self._query = parts.path.rstrip("/"), f"?{parts.query}" if parts.query else ""
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed, self.opened = False, 0

    def send(self, request: Request, limit_s: float) -> Answer:
        """Send once; a kept connection that the other side had closed meanwhile is replaced.

        Args:
            request: what to send.
            limit_s: seconds until the last byte of the answer.
        Raises:
            CallTrouble: no whole answer came in time.
            CallRefused: what answers cannot be used.
        """
        deadline = time.monotonic() + limit_s
        try:
            while True:
                connection, kept = self._take()
                try:
                    answer = self._exchange(connection, request, deadline)
                except BaseException as error:
                    self._drop(connection)
                    if kept and isinstance(error, _STALE):
                        self._drop_idle()
                        continue
                    raise
                return answer
        except TimeoutError:
            raise CallTrouble(f"no answer within {limit_s:.3g} s") from None
        except (OSError, http.client.HTTPException) as error:
            if self._closed:
                raise Closed("it was closed while a call was under way") from None
            raise _trouble(error) from error

    def close(self) -> None:
        """Close everything; calls under way end with :class:`Closed`."""
        with self._lock:
            self._closed = True
            connections = [*self._idle, *self._busy]
            self._idle.clear()
        for connection in connections:
            connection.shut()

    def _exchange(self, connection: _Connection, request: Request, deadline: float) -> Answer:
        connection.begin(deadline, body=bool(request.body))
        place = f"{self._path}{request.path}{self._query}" or "/"
        try:
            connection.request(request.method, place, request.body, dict(request.headers or {}))
        except (BrokenPipeError, ConnectionResetError):
            # It may have answered without reading to the end, as servers do with what is too large.
            if connection.timed is None:
                raise
        response = connection.getresponse()
        whole = response.length is not None or response.chunked
        body = _body(response, request.answer_bytes)
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, body, whole)
        self._give_back(connection, keep=not response.will_close)
        return answer

    def _take(self) -> tuple[_Connection, bool]:
        with self._lock:
            if self._closed:
                raise Closed("it was closed")
            kept = bool(self._idle)
            connection = self._idle.pop() if kept else _Connection(self._host, self._port, self._context)
            self.opened += not kept
            self._busy.add(connection)
            return connection, kept

    def _give_back(self, connection: _Connection, *, keep: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if keep and not self._closed:
                self._idle.append(connection)
                return
        connection.shut()

    def _drop(self, connection: _Connection) -> None:
        self._give_back(connection, keep=False)

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.shut()


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    if response.length is not None:
        if response.length > limit:
            raise CallRefused(f"it answers with {response.length} bytes, and at most {limit} can be the answer")
        return response.read()
    parts, size = [], 0
    while part := response.read(CHUNK):
        size += len(part)
        if size > limit:
            raise CallRefused(f"it answers with more than the {limit} bytes that can be the answer")
        parts.append(part)
    return b"".join(parts)


def _trouble(error: Exception) -> CallTrouble | CallRefused:
    match error:
        case ssl.SSLCertVerificationError():
            return CallRefused(f"its certificate cannot be trusted: {error.verify_message}")
        case ssl.SSLError() if error.reason in NO_TLS:
            return CallRefused("it does not speak https; is the address http?")
        case socket.gaierror():
            return CallTrouble(f"the name of its host is not known ({error.strerror})")
        case ConnectionRefusedError():
            return CallTrouble("connection refused: nothing listens there")
        case http.client.RemoteDisconnected():
            return CallTrouble("it closed the connection without an answer")
        case http.client.IncompleteRead():
            return CallTrouble(f"the answer was cut after {len(error.partial)} bytes")
        case http.client.BadStatusLine() if not "HTTP/".startswith(_line(error)[:5]):
            return CallRefused(f"what listens there does not speak HTTP: it says {_line(error)[:40]!r}")
        case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
            return CallTrouble("the connection was cut")
        case OSError():
            return CallTrouble(error.strerror or type(error).__name__)
        case _:
            return CallTrouble(f"the answer cannot be read ({type(error).__name__}: {error})"[:200])


def _line(error: http.client.BadStatusLine) -> str:
    return str(error.args[0]).strip() if error.args else ""
