"""Ctrl-C, SIGTERM and a closed terminal end a run at the next safe point, with a checkpoint; twice, at once."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger("surefoot")

ENDING = tuple(s for name in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, name, None)) is not None)
"""Ctrl-C, a polite request to end, and a terminal that closes."""


class GracefulStop:
    """Within this block the first SIGINT, SIGTERM or SIGHUP only sets ``.received``.

    Off the main thread Python cannot handle signals; then nothing is changed.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> GracefulStop:
        if threading.current_thread() is threading.main_thread():
            for name in ENDING:
                # What is ignored stays ignored, as the hang-up under nohup.
                if signal.getsignal(name) is not signal.SIG_IGN:
                    self._before[name] = signal.signal(name, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        logger.warning("%s: finishing this step, then saving (once more to stop at once)", self.received.name)
