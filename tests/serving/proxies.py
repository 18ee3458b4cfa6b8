"""Proxies between a trainer and a real service: one that cuts and drips bytes, one that changes whole answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx


@dataclass(frozen=True)
class Fault:
    """What becomes of one connection.

    Attributes:
        way: ``up`` to the service or ``down`` from it.
        after: bytes on that way that still go through.
        pause_s: None: the connection is cut there; else every further byte takes so many seconds.
    """

    way: Literal["up", "down"]
    after: int
    pause_s: float | None = None


class CuttingProxy:
    """Does to each connection what the next fault says; those after the last are left alone, or all suffer the last.

    Attributes:
        done: faults that have happened.
    """

    def __init__(self, url: str, faults: Sequence[Fault], *, for_good: bool = False) -> None:
        self._target = urlsplit(url)
        self._faults, self._for_good = list(faults), for_good
        self.done: list[Fault] = []
        self._stopping = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = self._listener.accept()
                client.settimeout(None)
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        fault = None
        if self._faults:
            fault = self._faults[0] if self._for_good else self._faults.pop(0)
        server = socket.create_connection((self._target.hostname, self._target.port))
        ways = {"up": (client, server), "down": (server, client)}
        for way, (source, sink) in ways.items():
            own = fault if fault is not None and fault.way == way else None
            threading.Thread(target=self._pass_on, args=(source, sink, own), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, fault: Fault | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if fault is None or passed + len(data) <= fault.after:
                    sink.sendall(data)
                    passed += len(data)
                    continue
                sink.sendall(data[: fault.after - passed])
                self.done.append(fault)
                if fault.pause_s is None:
                    break
                self._drip(sink, data[fault.after - passed :], fault.pause_s)
                break
        if fault is not None and fault not in self.done and not self._for_good:
            self._faults.insert(0, fault)  # the connection ended before: it happens to the next one
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _drip(self, sink: socket.socket, data: bytes, pause_s: float) -> None:
        for at in range(len(data)):
            if self._stopping.is_set():
                return
            time.sleep(pause_s)
            sink.sendall(data[at : at + 1])


Tamper = Callable[[str, bytes], bytes]
"""From the path of a request and the body of its answer to another body."""


class TamperingProxy:
    """Passes requests on and answers with what is made of the answers. ``with`` starts and stops it."""

    def __init__(self, url: str, tamper: Tamper) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _tampering(url, tamper))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _tampering(url: str, tamper: Tamper) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

        def _pass_on(self, body: bytes | None) -> None:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
            with httpx.Client(trust_env=False, timeout=30.0) as client:
                answer = client.request(self.command, url + self.path, content=body, headers=headers)
            content = tamper(self.path, answer.content)
            self.send_response(answer.status_code)
            for name in ("content-type", "retry-after"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    return Handler
