"""Real services and trainers in processes of their own, for the tests: started, killed, started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from surefoot.config import dump_config
from surefoot.serving.client import ServiceClient
from surefoot.serving.wire import MEDIA_TYPE
from tests.builders import merged
from tests.serving.parts import toy_config

TOKEN = "a-token-of-enough-letters"
TENSORS = {"content-type": MEDIA_TYPE}
JSON = {"content-type": "application/json"}
ZYGOTE = Path(__file__).with_name("service_zygote.py")
PATIENCE_S = 20.0


class Zygote:
    """The process that forks the others, with these variables in their environment."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(variables or {})}
        self._process = subprocess.Popen(
            [sys.executable, str(ZYGOTE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._turn = threading.Lock()

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order; its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """One `surefoot COMMAND ...`.

    Attributes:
        pid: of the process.
        stdout, stderr: the files that it prints and logs to.
    """

    def __init__(self, zygote: Zygote, folder: Path, arguments: Sequence[str], **order: Any) -> None:
        self._zygote = zygote
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.out")))
        self.stdout, self.stderr = folder / f"{number}.out", folder / f"{number}.err"
        for file in (self.stdout, self.stderr):
            file.touch()
        files = {"stdout": str(self.stdout), "stderr": str(self.stderr)}
        self.pid = int(zygote.ask(arguments=list(arguments), **files, **order)["pid"])
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it lives."""
        if self._code is None:
            self._code = self._zygote.ask(poll=self.pid)["code"]
        return self._code

    def wait(self, seconds: float = 3600.0) -> int:
        """As :meth:`poll`, once it has ended."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"it goes on and on: {self.stderr.read_text()[-2000:]}"
            time.sleep(0.01)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def end(self) -> int:
        """Ask it to end; the exit code."""
        if self._code is None:
            self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        self.wait()


class ServiceProcess(Process):
    """One `surefoot serve`."""

    def __init__(self, zygote: Zygote, folder: Path, arguments: Sequence[str], **order: Any) -> None:
        super().__init__(zygote, folder, ["serve", *arguments], **order)

    def address(self) -> str:
        """Where it listens, once it does."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            text = self.stdout.read_text()
            if text.endswith("\n"):
                return text.split()[-1]
            time.sleep(0.01)
        raise AssertionError(f"it does not listen: {self.stderr.read_text()[-2000:]}")

    def log(self) -> list[dict[str, Any]]:
        """What it logged, as JSON."""
        return [json.loads(line) for line in self.stderr.read_text().splitlines()]


@contextlib.contextmanager
def ready_client(url: str, **options: Any) -> Iterator[ServiceClient]:
    """A client of a service that answers requests by now."""
    client = ServiceClient(url, **{"patience_s": PATIENCE_S, **options})
    try:
        client.wait_ready()
        yield client
    finally:
        client.close()


class KilledAgain:
    """A service on one port that is started again whenever it dies, each time with the next mine.

    Args:
        zygote, folder: where processes come from, and their output goes.
        arguments: of `surefoot serve`, without the port.
        mines: what each process dies of, in order; those after the last live.
    """

    def __init__(
        self, zygote: Zygote, folder: Path, arguments: Sequence[str], mines: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.zygote, self.folder, self.mines = zygote, folder, list(mines)
        self.port = free_port()
        self.arguments = [*arguments, "--port", str(self.port)]
        self.codes: list[int] = []
        self._ended = False
        self.process = self._start()
        self._guard = threading.Thread(target=self._watch)
        self._guard.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        """End the living one, which hears of it from when it says its address."""
        self._ended = True
        self.process.address()
        self.process.send(signal.SIGTERM)
        self._guard.join(30)

    def _start(self) -> ServiceProcess:
        die = self.mines.pop(0) if self.mines else None
        return ServiceProcess(self.zygote, self.folder, self.arguments, die=die)

    def _watch(self) -> None:
        while True:
            self.codes.append(self.process.wait())
            if self._ended:
                return
            self.process = self._start()


def raw(url: str, **options: Any) -> httpx.Client:
    """Plain HTTP, which repeats nothing."""
    return httpx.Client(base_url=url, timeout=120.0, trust_env=False, **options)


class Place:
    """A folder for one service and its config."""

    def __init__(self, zygote: Zygote, toy: Path, folder: Path, **sections: Any) -> None:
        self.zygote, self.folder = zygote, folder
        own: dict[str, Any] = {"serve": {"dir": str(folder / "service"), "port": 0}}
        self.cfg = toy_config(toy, **merged(own, sections))
        self.file = folder / "toy.yaml"
        self.file.write_text(dump_config(self.cfg), encoding="utf-8")

    def start(self, *arguments: str, **order: Any) -> ServiceProcess:
        """Start it, with more arguments."""
        return ServiceProcess(self.zygote, self.folder / "out", [str(self.file), *arguments], **order)


def refusal(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error in an answer, in the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "got", "allowed", "hint", "retry"}
    assert error["code"] == code
    return dict(error)


def connected(url: str) -> socket.socket:
    """A bare connection."""
    host, port = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def head(path: str, length: int) -> bytes:
    """The beginning of a request with a body of tensors."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        f"content-type: {MEDIA_TYPE}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()
