"""What a service counts, for Prometheus. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_REQUESTS: Final = (1, 2, 4, 8, 16, 32, 64)
_TOKENS: Final = tuple(256 * 4**n for n in range(8))


class ServiceMetrics:
    """Counters of one service, in a registry of their own.

    Attributes:
        trained, replayed: steps trained on a request, and applied again from the journal.
        checkpoint_seconds: time that saving took.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("surefoot_requests", "Requests answered.", ["endpoint", "status"], registry=registry)
        self._seconds = Histogram(
            "surefoot_request_seconds", "Time to the answer.", ["endpoint"], buckets=_SECONDS, registry=registry
        )
        joined = Histogram(
            "surefoot_batch_requests", "Requests in a batch.", ["model"], buckets=_REQUESTS, registry=registry
        )
        batch_tokens = Histogram(
            "surefoot_batch_tokens", "Tokens in a batch.", ["model"], buckets=_TOKENS, registry=registry
        )
        rows = Counter("surefoot_rows", "Trajectories inferred on or trained on.", ["work"], registry=registry)
        tokens = Counter("surefoot_tokens", "Tokens of those.", ["work"], registry=registry)
        self.trained = Counter("surefoot_trained_steps", "Steps trained on.", registry=registry)
        self.repeated = Counter("surefoot_repeated_steps", "Steps that were asked for again.", registry=registry)
        self.checkpoint_seconds = Histogram(
            "surefoot_checkpoint_seconds", "Time that saving took.", buckets=_SECONDS, registry=registry
        )

        # Looking labels up takes longer than counting, so it is done once.
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._batches = {m: (joined.labels(m), batch_tokens.labels(m)) for m in ("critic", "reward")}
        self._works = {w: (rows.labels(w), tokens.labels(w)) for w in ("values", "scores", "train")}

    def watch(self, name: str, what: str, read: Callable[[], float]) -> None:
        """A number that is read when it is asked for."""
        Gauge(f"surefoot_{name}", what, registry=self._registry).set_function(read)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """A request was answered."""
        key = (endpoint, status)
        if key not in self._answered:
            self._answered[key] = self._requests.labels(endpoint, str(status)), self._seconds.labels(endpoint)
        count, time = self._answered[key]
        count.inc()
        time.observe(seconds)

    def computed(self, model: str, requests: int, tokens: int) -> None:
        """A batch is computed."""
        joined, size = self._batches[model]
        joined.observe(requests)
        size.observe(tokens)

    def worked(self, work: str, rows: int, tokens: int) -> None:
        """Trajectories came in for ``values``, ``scores`` or ``train``."""
        counted, size = self._works[work]
        counted.inc(rows)
        size.inc(tokens)

    def text(self) -> bytes:
        """In Prometheus' own format."""
        return generate_latest(self._registry)
