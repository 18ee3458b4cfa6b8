"""A service whose critic gives zeros at once: what is left is HTTP, packing and queues.

stub_service.py BATCH_WAIT_MS    prints its address
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.assembly.serve import address_of, listen
from surefoot.protocols import Values
from surefoot.serving.app import run_server
from surefoot.serving.batcher import Joining
from surefoot.serving.control import CriticCard
from surefoot.serving.frames import Limits
from surefoot.serving.service import Hosts, Options, Service
from surefoot.serving.wire import InferRequest


class StubCritic:
    """Has no model."""

    card = CriticCard("0" * 64, None, 1000, None, "float32", 1)
    run, trained_step, waits_for, broken = None, 0, None, None

    def open(self) -> None:
        """Nothing to load."""

    def touch(self, run: str | None) -> None:
        """Nobody's."""

    def values(self, requests: Sequence[InferRequest]) -> list[Values]:
        """Zeros."""
        return [Values(np.zeros(r.tokens.shape, np.float32), np.zeros(len(r.tokens), np.float32)) for r in requests]  # type: ignore[union-attr, arg-type]


def build() -> Hosts:
    """Only the stub."""
    critic: Any = StubCritic()
    return Hosts(critic, None)


if __name__ == "__main__":
    options = Options("stub", ("critic",), Limits(), Joining(8192, float(sys.argv[1]) / 1000, 64))
    with listen("127.0.0.1", 0) as listener:
        print(address_of(listener), flush=True)
        raise SystemExit(run_server(Service(build, options), listener, token=None, drain_s=1.0))
