"""Two models taking turns on one device: the one that rests waits in the machine's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

CPU = torch.device("cpu")
Move = Callable[[torch.device], None]


class Turns:
    """Who is on the device. Turns are taken by threads and held for one piece of work each.

    On a CPU there is nothing to take turns on: do without.

    Args:
        device: the one that has room for one model.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.RLock()
        self._moves: dict[str, Move] = {}
        self._there: str | None = None

    def join(self, name: str, move: Move) -> None:
        """Take part.

        Args:
            name: the model's.
            move: takes it to a device; does nothing while it is not loaded.
        """
        self._moves[name] = move

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Within this block the model is on the device, and no other works.

        A model that is loaded within its own turn is on the device by then.
        """
        with self._lock:
            if self._there != name:
                for other, move in self._moves.items():
                    if other != name:
                        move(CPU)
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                self._moves[name](self.device)
                self._there = name
            yield
