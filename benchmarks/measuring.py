"""What a step cost: wall time by phase, peak memory, and how busy other processes kept the machine. Linux.

Standard library only: both sides are measured by this code, each in an environment of its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY_SAMPLE_S = 0.02
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def prefer_this_process() -> None:
    """Ask the scheduler to run this process session before others; where that is not allowed nothing happens.

    ``nice`` weighs processes of one session only, since each session is scheduled as a group.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-15", encoding="ascii")


@dataclass(frozen=True)
class CpuTime:
    """Processor seconds at a moment: of the whole machine and of this process with its ended children."""

    at: float
    machine: float
    own: float

    @classmethod
    def now(cls) -> CpuTime:
        """Read the counters."""
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _waiting, irq, softirq = (int(field) for field in fields[:7])
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return cls(time.perf_counter(), (user + nice + system + irq + softirq) / TICKS_PER_S, own)

    def other_cores(self, since: CpuTime) -> float:
        """Cores that other processes kept busy, on average since then."""
        seconds = max(self.at - since.at, 1e-9)
        return max(0.0, ((self.machine - since.machine) - (self.own - since.own)) / seconds)


class PeakMemory:
    """The largest resident size of this process between two moments, by sampling; in GB of 10^9 bytes."""

    def __init__(self) -> None:
        self._peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._sample()
            time.sleep(MEMORY_SAMPLE_S)

    def _sample(self) -> None:
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        self._peak = max(self._peak, resident * PAGE_BYTES)

    def start(self) -> None:
        """Forget what was before."""
        self._peak = 0

    def stop(self) -> float:
        """The peak since the start."""
        self._sample()
        return self._peak / 1e9


class StepMeter:
    """Measures steps one after the other; phases within a step are timed by the outermost that is open."""

    def __init__(self) -> None:
        self._memory = PeakMemory()
        self._phases: dict[str, float] = {}
        self._open = False
        self._thread = threading.get_ident()
        self._start: CpuTime | None = None

    @property
    def running(self) -> bool:
        """Whether a step has been started and not stopped."""
        return self._start is not None

    def start(self) -> None:
        """Begin a step."""
        self._phases = {}
        self._memory.start()
        self._start = CpuTime.now()

    def stop(self) -> dict[str, Any]:
        """End the step: ``step_s``, ``phases`` (seconds, with the rest as ``other``), ``peak_gb``, ``other_cores``."""
        assert self._start is not None, "no step was started"
        end, start, self._start = CpuTime.now(), self._start, None
        seconds = end.at - start.at
        return {
            "step_s": seconds,
            "phases": {**self._phases, "other": seconds - sum(self._phases.values())},
            "peak_gb": self._memory.stop(),
            "other_cores": end.other_cores(start),
        }

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block, unless a phase is open already; what other threads do meanwhile belongs to no phase."""
        if self._open or threading.get_ident() != self._thread:
            yield
            return
        self._open, start = True, time.perf_counter()
        try:
            yield
        finally:
            self._open = False
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - start

    def stand_in(self, owner: Any, name: str, phase: str | Callable[..., str]) -> None:
        """Put a timed stand-in in the place of ``owner``'s function.

        Args:
            owner: a module or an object.
            name: of the function.
            phase: where its time counts, or a function of its arguments that says so.
        """
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase if isinstance(phase, str) else phase(*args, **kwargs)):
                return function(*args, **kwargs)

        setattr(owner, name, timed)
