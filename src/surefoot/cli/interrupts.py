"""Ctrl-C ends every command with one line, whatever libraries make of it on its way."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType

STOPPED_EXIT = 130
NOTHING = "stopped at once; nothing was written"
BEGUN = "stopped at once; run the same command again, with --resume if the run folder is there by now"
LEFT = {
    "train": BEGUN,
    "sft": BEGUN,
    "reward-model": BEGUN,
    "pipeline": "stopped at once; the same command goes on from there",
    "eval": "stopped at once; scores so far are kept, and the same command goes on from there",
    "quickstart": "stopped at once; the same command goes on from there",
}
"""What is left by commands that write; a run that has begun knows it better (:mod:`surefoot.cli.train`)."""


class Stopped(Exception):
    """Ctrl-C ended a command; the message, where there is one, says what it left."""


class CtrlC:
    """Within this block Ctrl-C is noted as well as raised: libraries turn what is raised into errors of their own.

    Attributes:
        received: whether there was one.
    """

    def __init__(self) -> None:
        self.received = False
        self._noting = False

    def __enter__(self) -> CtrlC:
        main = threading.current_thread() is threading.main_thread()
        # What is ignored stays ignored, as in a background job.
        self._noting = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._noting:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._noting:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        raise KeyboardInterrupt

    def line(self, error: BaseException) -> str | None:
        """What to say of how a command ended; None where that was not by Ctrl-C.

        Args:
            error: what ended it.
        """
        ended = isinstance(error, SystemExit) and error.code != STOPPED_EXIT
        if not isinstance(error, (Stopped, KeyboardInterrupt)) and (ended or not self.received):
            return None
        # Where the interrupt passed through exec, as in the making of a dataclass, Python would end by the signal.
        exec("")
        said = str(error) if isinstance(error, Stopped) else ""
        return said or LEFT.get("".join(sys.argv[1:2]), NOTHING)
