"""The journal: what the service was asked to train, on disk before it is applied. Torch-free.

One run's folder holds ``journal/step-N.request`` (the request's body, byte for byte) and ``journal/step-N.result``
(what was answered), beside ``checkpoints/step-N/``. The state of a run is its newest whole checkpoint (the initial
weights when there is none) with the requests of the steps after it applied in order. Training is deterministic, so a
request that is applied again gives the same weights and the same result.

What a kill can leave, and what becomes of it at the next start:

* before the request is in place: a hidden file, removed. The step was not trained and nobody was told so; the client
  asks again.
* request in place, not yet applied, or applied in part: it is applied. The client asks again and gets the result.
* applied, no result yet: it is applied again, to the state before it; the result is the same.
* result in place, not yet answered: the client asks again and gets the stored result.
* while a checkpoint is written: a hidden folder, removed (:mod:`surefoot.training.checkpoint`). The checkpoint before
  it and the journal give the same state.
* checkpoint whole, older ones and their requests not yet removed: they stay until the next checkpoint. Requests go from
  the lowest step up, so what is left can still be applied in order from every checkpoint that is left.
* while a restore throws later steps away: results before their requests, requests from the highest step down, then
  checkpoints from the highest step down, and the weights in memory last. At each moment the newest checkpoint with the
  requests after it is a state that the run was in; the trainer got no answer and restores again.
* a request that cannot be applied (an exception, no memory) is taken out again, and the state before it is built anew;
  killed in between, the next start finds the same and does the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from surefoot.training.durable import json_bytes, parse_json, remove, sync_folder, write_file

logger = logging.getLogger("surefoot.serving")

_REQUEST: Final = re.compile(r"step-([1-9]\d*)\.request")
_HIDDEN: Final = re.compile(r"\.step-[1-9]\d*\.(request|result)\.tmp-\d+-[0-9a-f]+")


class Journal:
    """Requests and results of one run's training calls. One writer at a time.

    Args:
        folder: made when it is first needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, body: bytes) -> None:
        """Put a request on disk; when this returns, a kill or a power cut does not lose it.

        Raises:
            OSError: it could not be written; nothing is left of it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # A result that a damaged disk kept without its request belongs to another content.
        self._result(step).unlink(missing_ok=True)
        write_file(self._request(step), body)

    def write_result(self, step: int, result: Mapping[str, Any]) -> None:
        """Keep what was answered, JSON.

        Raises:
            OSError: it could not be written. Nothing depends on it: the request gives the result again.
        """
        write_file(self._result(step), json_bytes(result))

    def read(self, step: int) -> bytes:
        """A request's body.

        Raises:
            OSError: there is none, or it cannot be read.
        """
        return self._request(step).read_bytes()

    def result(self, step: int) -> Mapping[str, Any] | None:
        """What was answered; None when that was not kept, or cannot be read."""
        try:
            result = parse_json(self._result(step).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read and is left out: %s", self._result(step), error)
            return None
        return result if isinstance(result, dict) else None

    def steps(self) -> list[int]:
        """Steps with a request, sorted."""
        names = (path.name for path in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted(int(match[1]) for name in names if (match := _REQUEST.fullmatch(name)))

    def steps_after(self, step: int) -> list[int]:
        """The steps that follow ``step`` without a gap: what is to be applied to its checkpoint."""
        later = [s for s in self.steps() if s > step]
        following = [s for i, s in enumerate(later) if s == step + 1 + i]
        if len(following) < len(later):
            logger.warning(
                "%s: the request of step %d is missing, so later ones cannot be applied",
                self.folder,
                step + 1 + len(following),
            )
        return following

    def drop_after(self, step: int) -> None:
        """Throw away requests and results after ``step``, from the highest down.

        Raises:
            OSError: one could not be removed; what is left is in order.
        """
        self._drop([s for s in reversed(self.steps()) if s > step])

    def drop_through(self, step: int) -> None:
        """Throw away requests and results up to ``step`` with it, from the lowest up.

        Raises:
            OSError: one could not be removed; what is left is in order.
        """
        self._drop([s for s in self.steps() if s <= step])

    def clean(self) -> None:
        """Remove what killed writers left behind."""
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if _HIDDEN.fullmatch(path.name):
                remove(path)

    def size(self) -> int:
        """Bytes of all requests and results."""
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return sum(path.stat().st_size for path in paths if not path.name.startswith("."))

    def _drop(self, steps: list[int]) -> None:
        for step in steps:
            self._result(step).unlink(missing_ok=True)
            self._request(step).unlink()
            # One by one: a power cut must not keep a later request and lose an earlier one.
            sync_folder(self.folder)

    def _request(self, step: int) -> Path:
        return self.folder / f"step-{step}.request"

    def _result(self, step: int) -> Path:
        return self.folder / f"step-{step}.result"
