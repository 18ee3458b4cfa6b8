"""Several services with the same reward model behind one config entry. Torch-free."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from surefoot.errors import ConfigError, ServiceMismatch
from surefoot.rewards.http_calls import CallTrouble, GaveUp, Patience
from surefoot.rewards.spreading import Spread
from surefoot.serving import operations
from surefoot.serving.client import ServiceClient
from surefoot.serving.wire import Handshake, Inferred, InferRequest

R = TypeVar("R")
logger = logging.getLogger("surefoot.serving")


class Replicas:
    """Scoring services that are called as one; any number of threads may call at once.

    A request goes to the replica with the fewest rows under way. One that cannot be reached is left out for a growing
    pause, its request goes to another, and it is taken back once it answers again, ready and with the same model.

    Args:
        clients: one per replica, at least one.
        timeout_s: limit for one try on one replica, in seconds.
        patience_s: limit for a call, over all replicas.
        clock: seconds that only grow.
    Raises:
        ConfigError: no client.
    """

    def __init__(
        self,
        clients: Sequence[ServiceClient],
        *,
        timeout_s: float = 60.0,
        patience_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not clients:
            raise ConfigError("there must be at least one replica", got=0)
        self.clients = tuple(clients)
        self._patience = Patience(timeout_s, patience_s)
        self._first: tuple[str, Handshake] | None = None
        self._met: dict[ServiceClient, int] = {}
        self._lock = threading.Lock()
        self._spread = Spread(
            {client.place: client for client in clients}, self._patience, admit=self._admit, logger=logger, clock=clock
        )

    def handshake(self) -> Handshake:
        """Meet every replica; those that cannot be reached are left out with a warning, as long as one can.

        Returns:
            the handshake of one that answers; what it says of its reward model holds for all.
        Raises:
            ServiceMismatch: two replicas have different models.
            ServiceUnavailable: none answers in time.
        """
        for client in self.clients:
            try:
                self._admit(client, self._patience.timeout_s)
            except CallTrouble as trouble:
                logger.warning("%s: %s; left out until it answers", client.place, trouble)
        if self._first is None:
            self._call(lambda client, limit: None, operations.handshake(), 0)
        assert self._first is not None
        return self._first[1]

    def infer(self, request: InferRequest) -> Inferred:
        """Values or scores from one of the replicas.

        Raises:
            ServiceUnavailable: none answered in time.
            ServiceMismatch: one that came back has another model.
            ServiceRefused, ServiceFailed: what a replica said to the request.
        """
        operation = operations.infer(request)

        def work(client: ServiceClient, limit_s: float) -> Inferred:
            found = client.try_once(operation, limit_s)
            if client.connections != self._met.get(client):
                # Behind the address another service may have been started meanwhile.
                self._admit(client, limit_s)
            return found

        return self._call(work, operation, len(request.ids))

    @property
    def left_out(self) -> dict[str, str]:
        """Replicas that are left out now, each with its last trouble."""
        return self._spread.left_out

    def close(self) -> None:
        """Close every client."""
        for client in self.clients:
            client.close()

    def _call(self, work: Callable[[ServiceClient, float], R], operation: operations.Operation[Any], rows: int) -> R:
        try:
            return self._spread.call(work, rows)
        except GaveUp as gave_up:
            place = f"none of {len(self.clients)} replicas" if len(self.clients) > 1 else self.clients[0].place
            raise operations.unavailable(operation, place, gave_up, self._patience) from gave_up

    def _admit(self, client: ServiceClient, limit_s: float) -> None:
        """Ask a replica whether it is ready, and whether its model is that of the others."""
        client.try_once(operations.ready(), limit_s)
        found = client.try_once(operations.handshake(), limit_s)
        client.limits = found.limits
        self._met[client] = client.connections
        if found.reward is None:
            raise ServiceMismatch(
                f"{client.place} has no reward model",
                got=f"roles: {', '.join(found.roles)}",
                allowed="roles: reward",
                hint="set serve.roles: [reward] in its config",
            )
        with self._lock:
            place, first = self._first or (client.place, found)
            self._first = (place, first)
        assert first.reward is not None
        # The name is a word for people: another name for the same weights is no other model.
        if differences := replace(first.reward, name=found.reward.name).differences(found.reward):
            raise ServiceMismatch(
                f"two replicas have different reward models: {place} and {client.place}",
                got="; ".join(differences),
                hint="start all replicas with the same config",
            )
