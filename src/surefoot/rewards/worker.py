"""The program that runs a user's reward function in a process of its own.

It is started by path and imports the standard library only: neither torch nor Surefoot is loaded, so that it starts in
a few hundredths of a second and can be killed and started again at any time. ``isolation.py`` is the other end.

Requests are pickles of plain data from the trainer, answers are JSON: what a reward function returns can therefore
not run code in the trainer. Both are frames: eight bytes of length, then the body.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import inspect
import json
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time
import traceback
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO

HEADER = 8
GRACE_S = 2.0
OWN_COLUMNS = ("prompts", "completions")
NOTE = "note"


class Unusable(Exception):
    """A target that cannot be called, or an answer that cannot be read. Arguments: what, got, hint."""


def resolve(target: str, source: bytes | None = None) -> tuple[Callable[..., Any], str]:
    """Find ``file.py:name`` or ``package.module:name``.

    Args:
        target: which function. A file's folder, or the current one for a module, is put at the end of ``sys.path``.
        source: what stood in the file when the run started; read anew when None.
    Returns:
        the function and the file it comes from (empty when unknown).
    Raises:
        Unusable: the file, module or name does not exist, does not load, or is not callable.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise Unusable(
            "a reward function's target must name a function",
            target,
            "write file.py:name or package.module:name",
        )
    found: Any = _load_file(Path(place), source) if place.endswith(".py") else _load_module(place)
    file = str(getattr(found, "__file__", None) or "")
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(found).items() if inspect.isfunction(v)] if hasattr(found, "__dict__") else []
            raise Unusable(
                f"{place} has no {name!r}", f"functions there: {', '.join(known) or 'none'}", "check the name"
            )
        found = getattr(found, part)
    if not callable(found):
        raise Unusable(f"{target} is not a function", type(found).__name__, "name a function")
    return found, file


def _load_file(path: Path, source: bytes | None) -> types.ModuleType:
    try:
        text = path.read_bytes() if source is None else source
    except OSError as error:
        raise Unusable(f"the reward file {path} cannot be read", error.strerror, "check the path") from None
    _search_also(str(path.resolve().parent))
    # A name of its own: `json.py` beside the config must not replace the real json.
    module = types.ModuleType(f"surefoot_reward_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[module.__name__]
        raise _does_not_load(str(path), error) from error
    return module


def _load_module(name: str) -> types.ModuleType:
    _search_also(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise Unusable(
                f"there is no module {name!r}",
                f"{error.name!r} is neither installed nor in {Path.cwd()}",
                "check the name, or write file.py:name",
            ) from None
        raise _does_not_load(name, error) from error


def _does_not_load(place: str, error: BaseException) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    return Unusable(f"{place} does not load", describe(error), "run it with python to see the whole error")


def _search_also(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)


def describe(error: BaseException) -> str:
    """One line: the exception's type, text and the last line of code it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


class Caller:
    """Calls a reward function with the columns that it accepts, and no others.

    By keyword where the function has a parameter ``completions`` or takes ``**columns``; else the prompts and the
    completions go to its first two parameters, whatever they are called.

    Raises:
        Unusable: the signature has no place for completions.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some compiled functions do not tell
            parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in OWN_COLUMNS]
        by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_keyword = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.positional = 0
        nameless = not self.takes_all or any(p.kind is p.POSITIONAL_ONLY for p in parameters)
        if nameless and "completions" not in [p.name for p in by_keyword]:
            self.positional = 2
            if len(by_position) < 2 and not takes_any_number:
                raise Unusable(
                    f"{name} has no place for the completions",
                    f"{name}({', '.join(map(str, parameters))})",
                    "write def f(prompts, completions, **columns)",
                )
        taken = {p.name for p in by_position[: self.positional]}
        self.accepted = [p.name for p in by_keyword if p.name not in taken]
        required = [p for p in (*by_position[self.positional :], *by_keyword) if p.default is p.empty]
        self.required = [n for n in dict.fromkeys(p.name for p in required) if n not in {*taken, *OWN_COLUMNS}]

    def __call__(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        """The function's answer as plain lists, dicts, floats and None."""
        missing = [n for n in self.required if n not in columns]
        if missing:
            others = [n for n in columns if n not in OWN_COLUMNS]
            raise Unusable(
                f"{self.name} needs what the prompts do not have: {', '.join(missing)}",
                f"columns: {', '.join(others)}",
                "add the column to the prompts, or give the parameter a default",
            )
        ahead = [columns[n] for n in OWN_COLUMNS[: self.positional]]
        names = [n for n in columns if n in self.accepted or self.takes_all]
        answer = self.function(*ahead, **{n: columns[n] for n in names if not (ahead and n in OWN_COLUMNS)})
        if inspect.iscoroutine(answer):
            answer = asyncio.run(answer)
        return plain(answer, f"{self.name} returned")


def plain(value: Any, where: str) -> Any:
    """Numbers as floats, sequences and arrays as lists, mappings as dicts; None stays.

    Raises:
        Unusable: anything else, naming its place.
    """
    if value is None:
        return None
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    if isinstance(value, (list, tuple)):
        # Floats first, without a place to name: there may be one for every token.
        return [i if type(i) is float else plain(i, f"{where} in place {n}") for n, i in enumerate(value)]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise Unusable(f"{where} a dict whose keys are not all texts", repr(list(value))[:200], "name each term")
        # A note says why, in words; every other entry is a number.
        notes = {key: item for key, item in value.items() if key == NOTE and isinstance(item, str)}
        return {k: notes[k] if k in notes else plain(v, f"{where} under {k!r}") for k, v in value.items()}
    if hasattr(value, "tolist"):  # numpy arrays and scalars, tensors
        return plain(value.tolist(), where)
    if hasattr(value, "__float__"):
        return float(value)
    raise Unusable(
        f"{where} something that is no reward",
        f"{type(value).__name__} {value!r}"[:200],
        "return a list with one entry per completion: a number, None, a dict of numbers, a list of numbers or of spans",
    )


def seed_all(seed: int) -> None:
    """Seed Python's generator, and numpy's and torch's if the function has loaded them."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


class _Server:
    def __init__(self) -> None:
        self.caller: Caller | None = None

    def answer(self, body: bytes) -> dict[str, Any]:
        try:
            request = pickle.loads(body)
            if request["op"] == "load":
                return self._load(request)
            assert self.caller is not None
            seed_all(request["seed"])
            return {"rows": self.caller(request["columns"])}
        except Unusable as error:
            what, got, hint = error.args
            return {"error": "unusable", "what": what, "got": got, "hint": hint}
        except BaseException as error:
            # The edge of the process: whatever the function raised is told to the trainer, which counts it.
            traceback.print_exc()
            return {"error": "raised", "what": describe(error)}

    def _load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        sys.path[:] = request["path"]
        seed_all(request["seed"])
        function, file = resolve(request["target"], request["source"])
        self.caller = Caller(function, request["target"].rpartition(":")[2])
        return {"file": file, "required": self.caller.required}


def _read_frames(stream: BinaryIO, frames: queue.SimpleQueue[bytes | None]) -> None:
    while header := stream.read(HEADER):
        frames.put(stream.read(int.from_bytes(header, "big")))
    # The trainer is gone, however it went: end, and by force if the function is still busy.
    frames.put(None)
    time.sleep(GRACE_S)
    _end_group()


def _end_group() -> None:
    try:
        os.killpg(os.getpid(), signal.SIGKILL)  # with every process that the function has started
    except ProcessLookupError:  # started by hand, not as the leader of a group
        os._exit(1)


def main() -> None:
    """Answer requests until the trainer closes the pipe or dies."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What the function prints goes to the log, and what it reads is empty: the pipes carry the protocol alone.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    atexit.register(_end_group)  # runs last: first in, last out
    frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_read_frames, args=(requests, frames), daemon=True).start()
    server, own = _Server(), os.getpid()
    # A broken pipe: the trainer went while the function was busy, and nobody waits for the answer.
    with contextlib.suppress(BrokenPipeError):
        while (frame := frames.get()) is not None:
            body = json.dumps(server.answer(frame)).encode()
            if os.getpid() != own:
                # A copy of this process that the function made and let return: the answer is the original's to give.
                os._exit(0)
            answers.write(len(body).to_bytes(HEADER, "big") + body)
            answers.flush()


if __name__ == "__main__":
    main()
