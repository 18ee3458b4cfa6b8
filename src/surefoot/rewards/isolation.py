"""The trainer's end of a reward function that runs in a process of its own, and the limits on its time.

A limit on the clock works from any thread because nothing waits inside the function: the trainer waits on a pipe, and
what takes too long is killed with all processes it has started, and started afresh for the next call.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from surefoot.errors import ConfigError, RewardError
from surefoot.rewards import worker

LOAD_LIMIT_S = 120.0
KILL_LIMIT_S = 5.0
# The system's calls take no more than 24 days at a time.
LONGEST_WAIT_S = 1e6
MAX_STUCK_THREADS = 8
Columns = Mapping[str, Sequence[Any]]


class CallFailed(Exception):
    """One call gave no answer: the function raised. The text says why."""


class CallLost(CallFailed):
    """One call gave no answer because it took too long or its process died: another row may be fine."""


class Callee(Protocol):
    """A reward function, wherever it runs."""

    required: Sequence[str]

    def call(self, columns: Columns, *, seed: int, limit_s: float) -> Any:
        """The function's answer as plain lists, dicts, floats and None.

        Raises:
            CallFailed: the function raised, died or took longer than the limit.
            RewardError: it answered something that is no reward, or needs a column that is not there.
        """
        ...

    def close(self) -> None:
        """End whatever runs. A later call starts it again."""
        ...


class ProcessCallee:
    """A reward function in a worker process, named by its target.

    Args:
        target: ``file.py:name`` or ``package.module:name``. A file is read once, now: a function that is edited during
            the run does not change with the next start of the worker.
        seed: fixes the worker's hash seed and what the module draws while it loads.
    Raises:
        ConfigError: the target cannot be loaded, is not callable, or its signature takes no completions.
    """

    def __init__(self, target: str, *, seed: int) -> None:
        self.target, self.seed = target, seed
        file = Path(target.rpartition(":")[0])
        self._source = file.read_bytes() if file.suffix == ".py" and file.is_file() else None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self.starts = 0
        loaded = self._start()
        if "error" in loaded:
            self.close()
            raise ConfigError(loaded["what"], got=loaded.get("got"), hint=loaded.get("hint"))
        self.required: Sequence[str] = loaded["required"]
        self.file = str(loaded["file"])

    def call(self, columns: Columns, *, seed: int, limit_s: float) -> Any:
        """See :class:`Callee`. The start of a worker does not count against the limit."""
        try:
            body = pickle.dumps({"op": "call", "columns": dict(columns), "seed": seed})
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RewardError(
                "the prompts' columns cannot be handed to a reward function", got=str(error), hint="use plain values"
            ) from error
        with self._lock:
            if self._process is None:
                loaded = self._start()
                if "error" in loaded:
                    raise RewardError(f"reward function {self.target} no longer loads", got=loaded["what"])
            answer = self._exchange(body, limit_s)
        if answer.get("error") == "unusable":
            raise RewardError(answer["what"], got=answer["got"], hint=answer["hint"])
        if "error" in answer:
            raise CallFailed(answer["what"])
        return answer["rows"]

    def close(self) -> None:
        """End the worker; it may finish what it does on exit."""
        with self._lock:
            self._end(worker.GRACE_S)

    def _start(self) -> dict[str, Any]:
        self.starts += 1
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-u", worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # A session of its own: Ctrl-C reaches the trainer alone, and the whole group can be ended.
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": str(self.seed % 2**32)},
        )
        self._finalizer = weakref.finalize(self, _kill, process, os.getpid())
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        request = {"op": "load", "target": self.target, "source": self._source, "path": sys.path, "seed": self.seed}
        try:
            return self._exchange(pickle.dumps(request), LOAD_LIMIT_S)
        except CallLost as error:
            return {"error": "lost", "what": f"reward function {self.target} does not load: {error}"}

    def _exchange(self, body: bytes, limit_s: float) -> dict[str, Any]:
        """Send a frame and wait for the answer; whatever goes wrong in between ends the worker."""
        process = self._process
        assert process is not None
        try:
            answer = _transfer(process, len(body).to_bytes(worker.HEADER, "big") + body, time.monotonic() + limit_s)
        except TimeoutError:
            self._end(0)
            raise CallLost(f"took longer than {limit_s:g} s") from None
        except BaseException:
            # An interrupt in the middle of a frame: the next answer would be this call's.
            self._end(0)
            raise
        if answer is None:
            self._end(0)
            code = process.returncode or 0
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise CallLost(f"its process ended during the call ({how})")
        loaded: dict[str, Any] = json.loads(answer)
        return loaded

    def _end(self, grace_s: float) -> None:
        process, self._process = self._process, None
        if process is None or self._finalizer is None:
            return
        self._finalizer.detach()
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if grace_s:
                process.wait(grace_s)
        _kill(process, os.getpid())


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer goes away: the worker is not its own
        return
    # The whole group, and before the process is reaped: until then its number cannot belong to anyone else.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_LIMIT_S)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def _transfer(process: subprocess.Popen[bytes], frame: bytes, deadline: float) -> bytes | None:
    """Write a frame and read one; None when the other side ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    outgoing, incoming = memoryview(frame), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            ready = selector.select(min(left, LONGEST_WAIT_S)) if left > 0 else []
            if not ready:
                if left > LONGEST_WAIT_S:
                    continue
                raise TimeoutError
            for key, _ in ready:
                try:
                    if key.fileobj is process.stdin:
                        outgoing = outgoing[os.write(key.fd, outgoing) :]
                        if not outgoing:
                            selector.unregister(process.stdin)
                        continue
                    chunk = os.read(key.fd, 1 << 16)
                except BrokenPipeError:
                    return None
                if not chunk:
                    return None
                incoming += chunk
            if len(incoming) >= worker.HEADER:
                end = worker.HEADER + int.from_bytes(incoming[: worker.HEADER], "big")
                if len(incoming) >= end:
                    return bytes(incoming[worker.HEADER : end])


class ThreadCallee:
    """A reward function object, called in a thread: nothing can end it, so it is only for functions without a target.

    A call past its limit counts as failed while its thread goes on; with too many such threads the reward gives up.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        try:
            self._caller = worker.Caller(function, name)
        except worker.Unusable as error:
            what, got, hint = error.args
            raise ConfigError(what, got=got, hint=hint) from None
        self.required: Sequence[str] = self._caller.required
        self._stuck: list[threading.Thread] = []

    def call(self, columns: Columns, *, seed: int, limit_s: float) -> Any:
        """See :class:`Callee`. The function is not seeded: the generators it might use are the trainer's own."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MAX_STUCK_THREADS:
            raise RewardError(
                f"reward function {self._caller.name} has not come back from {len(self._stuck)} calls",
                hint="name it by a target (file.py:name), so that it can be ended",
            )
        outcome: list[Any] = []
        thread = threading.Thread(target=self._run, args=(columns, outcome), daemon=True, name="surefoot-reward")
        thread.start()
        thread.join(limit_s)
        if not outcome:
            self._stuck.append(thread)
            raise CallFailed(f"took longer than {limit_s:g} s")
        rows, error = outcome[0]
        if isinstance(error, worker.Unusable):
            what, got, hint = error.args
            raise RewardError(what, got=got, hint=hint)
        if error is not None:
            raise CallFailed(worker.describe(error)) from error
        return rows

    def _run(self, columns: Columns, outcome: list[Any]) -> None:
        try:
            outcome.append((self._caller(columns), None))
        except BaseException as error:
            # The edge of the thread: handed over to the caller, which counts it.
            outcome.append((None, error))

    def close(self) -> None:
        """Nothing to end."""
