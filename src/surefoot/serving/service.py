"""What a service does with a request: each model has a thread and a queue of its own. No web framework here.

While the critic trains, scores are computed; and who the service is, how it is and what it counts is told at any time,
from its first second on: the models, and the libraries they need, are loaded beside that. Loads no torch by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from surefoot.errors import ServiceError, ServiceRefused, ServiceUnavailable, SurefootError
from surefoot.protocols import Values
from surefoot.serving.batcher import Batcher, Compute, Joining, Presence, QueueFull
from surefoot.serving.control import (
    Checkpointed,
    CheckpointRequest,
    Handshake,
    Readiness,
    Released,
    ReleaseRequest,
    Restored,
    RestoreRequest,
    Role,
    TrainResult,
)
from surefoot.serving.frames import Limits
from surefoot.serving.metrics import ServiceMetrics
from surefoot.serving.scores import Scores
from surefoot.serving.wire import Inferred, InferRequest, TrainRequest

if TYPE_CHECKING:
    from surefoot.serving.critic_host import CriticHost
    from surefoot.serving.reward_host import RewardHost

logger = logging.getLogger("surefoot.serving")

Answer = TypeVar("Answer")
Done = TypeVar("Done")
LARGE = 1 << 20
"""Bytes from which reading a body would hold up other requests, and is done in another thread."""


@dataclass(frozen=True)
class Options:
    """How a service works.

    Attributes:
        software: its name and version.
        roles: what it does.
        limits: of a request.
        joining: how requests are joined; its queue bounds each model's.
    """

    software: str
    roles: Sequence[Role]
    limits: Limits
    joining: Joining


@dataclass(frozen=True)
class Hosts:
    """The models of a service, not yet opened; one for each role.

    Attributes:
        prepare_thread: called first in each model's thread.
    """

    critic: CriticHost | None
    reward: RewardHost | None
    prepare_thread: Callable[[], None] = field(default=lambda: None)


class _Lane(Generic[Answer]):
    """A model's thread with its queue of requests to infer, and what else it is asked to do."""

    def __init__(self, name: str, compute: Compute[Answer], joining: Joining, metrics: ServiceMetrics) -> None:
        self.name, self.others = name, 0
        self.thread = ThreadPoolExecutor(1, f"surefoot-{name}")
        self.batcher: Batcher[InferRequest, Answer] = Batcher(
            compute, self.thread, joining, on_batch=lambda requests, tokens: metrics.computed(name, requests, tokens)
        )

    @property
    def depth(self) -> int:
        """Requests that wait or are being worked on, those being inferred excepted."""
        return self.batcher.depth + self.others

    async def infer(self, request: InferRequest, presence: Presence) -> Answer:
        try:
            return await self.batcher.submit(request, tokens=sum(request.lengths), presence=presence)
        except QueueFull:
            raise _overloaded(self.batcher.joining.queue) from None

    async def do(self, work: Callable[[], Done]) -> Done:
        """Do something else in the model's thread, after what was asked before. It is not undone when nobody waits."""
        if self.others >= self.batcher.joining.queue:
            raise _overloaded(self.batcher.joining.queue)
        self.others += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, work)
        finally:
            self.others -= 1


class Service:
    """Answers requests. All methods run in one event loop.

    Args:
        build: makes its models; called once, in a thread, since that takes seconds.
        options: how it works.

    Attributes:
        metrics: what it counts.
        draining: it has been told to end, and takes no more requests.
    """

    def __init__(self, build: Callable[[], Hosts], options: Options) -> None:
        self._build, self.options = build, options
        self.metrics, self.draining = ServiceMetrics(), False
        self._hosts: Hosts | None = None
        self._critic_lane: _Lane[Values] = _Lane("critic", self._values, options.joining, self.metrics)
        self._reward_lane: _Lane[Scores] = _Lane("reward", self._scores, options.joining, self.metrics)
        self._lanes: list[_Lane[Any]] = [lane for lane in (self._critic_lane, self._reward_lane) if self._has(lane)]
        self._watch()

    @property
    def critic(self) -> CriticHost | None:
        """Its critic, once that is built."""
        return None if self._hosts is None else self._hosts.critic

    @property
    def reward(self) -> RewardHost | None:
        """Its reward model, once that is built."""
        return None if self._hosts is None else self._hosts.reward

    def _has(self, lane: _Lane[Any]) -> bool:
        return lane.name in self.options.roles

    def _values(self, requests: Sequence[InferRequest]) -> Sequence[Values | Exception]:
        assert self.critic is not None
        return self.critic.values(requests)

    def _scores(self, requests: Sequence[InferRequest]) -> Sequence[Scores | Exception]:
        assert self.reward is not None
        return self.reward.scores(requests)

    def _watch(self) -> None:
        watch = self.metrics.watch
        watch("ready", "1 once requests are answered.", lambda: float(self.readiness().status == "ready"))
        for lane in self._lanes:
            watch(f"{lane.name}_queue", "Requests that wait for the model.", partial(getattr, lane, "depth"))
        if self._has(self._critic_lane):
            watch("trained_step", "Last step the critic was trained on.", partial(self._of_critic, "trained_step"))
            watch("replayed_steps", "Steps applied again from the journal.", partial(self._of_critic, "replayed"))
            watch("journal_bytes", "Size of the bound run's journal.", partial(self._of_critic, "journal_bytes"))

    def _of_critic(self, name: str) -> float:
        return float(getattr(self.critic, name, 0))

    async def open(self) -> None:
        """Build the models, then load each in its own thread.

        Raises:
            SurefootError: one cannot be loaded, or not be brought to where it was.
        """
        begun = time.monotonic()
        self._hosts = hosts = await asyncio.to_thread(self._build)
        opening = [
            lane.do(partial(_open, hosts.prepare_thread, host.open))
            for lane, host in ((self._critic_lane, hosts.critic), (self._reward_lane, hosts.reward))
            if host is not None
        ]
        await asyncio.gather(*opening)
        logger.info("ready", extra={"seconds": round(time.monotonic() - begun, 3)})

    async def close(self) -> None:
        """End; what still waits gets no answer, and what a model works on is waited for."""
        for lane in self._lanes:
            await lane.batcher.close()
            lane.thread.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes:
            await asyncio.to_thread(lane.thread.shutdown)

    # ----------------------------------------------------------------------------------------------- told at any time

    def readiness(self) -> Readiness:
        """Whether requests are answered, and if not, what that waits for."""
        waits = self._waits_for()
        if not waits and self.critic is not None and self.critic.broken:
            waits = "a new start: the critic is lost"
        return Readiness("waiting", waits) if waits else Readiness("ready")

    def _waits_for(self) -> str:
        if self.draining:
            return "the end: it has been told to end"
        if self._hosts is None:
            return "loading the libraries"
        return "; ".join(h.waits_for for h in (self.critic, self.reward) if h is not None and h.waits_for)

    def handshake(self) -> Handshake:
        """Who it is.

        Raises:
            ServiceUnavailable: it does not know yet.
        """
        self.require_ready()
        critic, reward = self.critic, self.reward
        return Handshake(
            software=self.options.software,
            roles=list(self.options.roles),
            critic=None if critic is None else critic.card,
            reward=None if reward is None else reward.card,
            run=None if critic is None else critic.run,
            trained_step=0 if critic is None else critic.trained_step,
            limits=self.options.limits,
        )

    def require_ready(self) -> None:
        """Check that requests are answered.

        Raises:
            ServiceUnavailable: not yet, or no more.
        """
        waits = self._waits_for()  # a critic that is lost says so itself: asking again later would not help
        if waits:
            raise ServiceUnavailable("the service is not ready", got=f"waiting for {waits}", code="not_ready")

    # ------------------------------------------------------------------------------------------------------- requests

    async def infer(self, body: bytes, presence: Presence) -> bytes:
        """Values and scores.

        Args:
            body: an :class:`InferRequest`.
            presence: whether somebody still waits for the answer.
        Returns:
            the :class:`Inferred`, packed.
        """
        self.require_ready()
        request = await _aside(len(body), lambda: InferRequest.unpack(body, self.options.limits))
        if self.critic is not None:
            self.critic.touch(request.run)
        work = []
        lanes: tuple[tuple[str, _Lane[Any]], ...] = (("values", self._critic_lane), ("scores", self._reward_lane))
        for want, lane in lanes:
            if want in request.want:
                if not self._has(lane):
                    raise self._no_model(lane.name)
                self.metrics.worked(want, len(request.lengths), sum(request.lengths))
                work.append(lane.infer(request, presence))
        found = [await work[0]] if len(work) == 1 else await asyncio.gather(*work)
        values = next((f for f in found if isinstance(f, Values)), None)
        scores = next((f for f in found if isinstance(f, Scores)), None)
        trained = 0 if self.critic is None else self.critic.trained_step
        if request.trained_step is not None and values is not None:
            trained = request.trained_step
        return await _aside(len(body), lambda: _inferred(request, trained, values, scores).pack())

    async def train(self, body: bytes) -> TrainResult:
        """Train the critic on a step's batch, once."""
        critic, lane = self._training()
        result = await lane.do(lambda: self._train(critic, body))
        (self.metrics.repeated if result.repeated else self.metrics.trained).inc()
        return result

    def _train(self, critic: CriticHost, body: bytes) -> TrainResult:
        request = TrainRequest.unpack(body, self.options.limits)
        result = critic.train(request, body)
        if not result.repeated:
            self.metrics.worked("train", len(request.lengths), sum(request.lengths))
            logger.info("trained", extra={"run": result.run, "step": result.step, "seconds": round(result.seconds, 4)})
        return result

    async def checkpoint(self, body: bytes) -> Checkpointed:
        """Save the critic."""
        critic, lane = self._training()
        request = CheckpointRequest.unpack(body)
        with self.metrics.checkpoint_seconds.time():
            return await lane.do(lambda: critic.checkpoint(request))

    async def restore(self, body: bytes) -> Restored:
        """Put the critic back to a checkpoint, or to its beginning."""
        critic, lane = self._training()
        request = RestoreRequest.unpack(body)
        return await lane.do(lambda: critic.restore(request))

    async def release(self, body: bytes) -> Released:
        """A run is over."""
        critic, lane = self._training()
        request = ReleaseRequest.unpack(body)
        return await lane.do(lambda: critic.release(request))

    def _training(self) -> tuple[CriticHost, _Lane[Values]]:
        self.require_ready()
        if self.critic is None:
            raise self._no_model("critic")
        return self.critic, self._critic_lane

    def _no_model(self, role: str) -> SurefootError:
        return ServiceRefused(
            f"this service has not the role {role}",
            allowed=f"roles: {', '.join(self.options.roles)}",
            hint="ask another address, or start the service with that role in serve.roles",
            code="unprocessable",
        )


def _open(prepare_thread: Callable[[], None], open_model: Callable[[], None]) -> None:
    prepare_thread()
    open_model()


def _inferred(request: InferRequest, trained: int, values: Values | None, scores: Scores | None) -> Inferred:
    return Inferred(
        request.ids,
        request.lengths,
        trained,
        None if values is None else values.values,
        None if values is None else values.after,
        None if scores is None else scores.array(),
        () if scores is None else scores.reasons,
    )


async def _aside(size: int, work: Callable[[], Answer]) -> Answer:
    """Do small work at once, and large work in another thread."""
    return await asyncio.to_thread(work) if size >= LARGE else work()


def _overloaded(queue: int) -> ServiceError:
    return ServiceUnavailable(
        "too many requests wait already",
        allowed=f"{queue} at once",
        hint="the request is repeated; raise serve.queue if there is memory for more",
        code="overloaded",
    )
