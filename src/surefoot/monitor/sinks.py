"""Where reports go besides ``metrics.jsonl``: TensorBoard event files.

A tracker is a side channel: whatever goes wrong in it is logged once and counted, and training goes on. What is not
defined (None) is left out; what is not finite is left out, counted, and noted as an event, so that the curve has a gap.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from surefoot.errors import missing_extra
from surefoot.records import StepReport

logger = logging.getLogger("surefoot")

_FLOAT32_MAX: Final = 3.4028234663852886e38


class SideChannel(ABC):
    """A tracker that cannot stop training: subclasses write, this class catches.

    Attributes:
        errors: calls that failed.
    """

    def __init__(self) -> None:
        self.errors = 0

    def log(self, report: StepReport) -> None:
        """Record one step; never raises."""
        try:
            self._write(report)
        except Exception as error:
            self._note(error)
            self._give_up()

    def close(self) -> None:
        """Flush and let go; never raises, and may be called twice."""
        try:
            self._close()
        except Exception as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        self.errors += 1
        if self.errors == 1:
            logger.warning(
                "%s failed; training goes on, further failures are only counted: %s: %s",
                type(self).__name__,
                type(error).__name__,
                error,
            )

    def _give_up(self) -> None:
        """Drop what a failure may have left half written, so that the next report starts clean."""
        with contextlib.suppress(Exception):
            self._close()

    @abstractmethod
    def _write(self, report: StepReport) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class TensorBoardTracker(SideChannel):
    """Writes a report's numbers as scalars into one event file a process.

    Args:
        folder: where event files go; made with the first report.
        resume_step: the step a resumed run goes on from; TensorBoard then drops what was recorded after it.
        parameters: settings shown as text, in a resumed run under a name of their own.
    Attributes:
        errors: calls that failed.
        points: numbers written.
        not_finite: numbers left out because they were NaN or infinite.
    Raises:
        MissingExtra: tensorboard is not installed.
    """

    def __init__(
        self, folder: Path, *, resume_step: int | None = None, parameters: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.folder, self.resume_step, self.parameters = folder, resume_step, dict(parameters or {})
        self.points = self.not_finite = 0
        self._begun = False
        try:
            self._proto = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            self._text = importlib.import_module("tensorboard.plugins.text.metadata")
            self._tensors = importlib.import_module("tensorboard.util.tensor_util")
            self._record_writer = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter
        except ImportError as error:
            raise missing_extra("tensorboard", "track", "track.tensorboard") from error
        self._writer: Any = None

    def _write(self, report: StepReport) -> None:
        if self._writer is None:
            self._open()
        values, bad = [], []
        for name, value in sorted(report.metrics.items()):
            if value is None:
                continue
            number = float(value)
            if math.isfinite(number) and abs(number) <= _FLOAT32_MAX:
                values.append(self._summary.Summary.Value(tag=name, simple_value=number))
            else:
                bad.append(f"{name} was {number}")
        self.not_finite += len(bad)
        if bad:
            values.append(self._text_value("not_finite", "; ".join(bad)))
        self._add(report.step, summary=self._summary.Summary(value=values))
        self._writer.flush()
        self.points += len(values) - bool(bad)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # The name TensorBoard looks for. Time first, so that a resumed run's file is read after the earlier one.
        path = self.folder / f"events.out.tfevents.{time.time_ns() // 10**3:016d}.{os.getpid()}.surefoot"
        self._writer = self._record_writer(path.open("xb"))
        self._add(0, file_version="brain.Event:2")
        if self._begun:  # after a failure: the same run goes on in another file
            return
        self._begun = True
        if self.resume_step is not None:
            start = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._add(self.resume_step + 1, session_log=start)
        if self.parameters:
            tag = "parameters" if self.resume_step is None else f"parameters/from_step_{self.resume_step + 1}"
            text = "\n".join(f"    {key}: {value}" for key, value in self.parameters.items())
            self._add(self.resume_step or 0, summary=self._summary.Summary(value=[self._text_value(tag, text)]))

    def _text_value(self, tag: str, text: str) -> Any:
        return self._summary.Summary.Value(
            tag=tag,
            metadata=self._text.create_summary_metadata(display_name=None, description=None),
            tensor=self._tensors.make_tensor_proto([text.encode()], shape=[1]),
        )

    def _add(self, step: int, **what: Any) -> None:
        event = self._proto.Event(wall_time=time.time(), step=step, **what)
        self._writer.write(event.SerializeToString())
