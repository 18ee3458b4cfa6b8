"""What a host answers when it cannot do what it was asked: errors of the protocol, each with its code. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from surefoot.errors import CheckpointError, ServiceError, ServiceFailed, ServiceMismatch, ServiceRefused
from surefoot.training.durable import disk_full, disk_trouble

RESUME: Final = "resume the run: trainer and service go back to the same checkpoint"


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn a refusal of the system to write, and whatever else goes wrong meanwhile, into an error of the protocol.

    Args:
        what: what could not be done, and what that means.
    Raises:
        ServiceFailed: instead of any exception but a ServiceError; ``disk_full`` where there was no room.
    """
    try:
        yield
    except ServiceError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error, CheckpointError) and error.__cause__ is not None else error
        full = disk_trouble(cause) and disk_full(cause)
        hint = "make room on the service's disk; the request is repeated" if full else "look at the service's log"
        raise ServiceFailed(what, got=str(cause), hint=hint, code="disk_full" if full else "model_failed") from error


def stale(what: str, step: int, expected: int) -> ServiceMismatch:
    """A step out of order."""
    return ServiceMismatch(what, got=f"step {step}", allowed=f"step {expected}", hint=RESUME, code="stale_step")


def unprocessable(what: str, got: Any, allowed: str) -> ServiceRefused:
    """A request that the model cannot take."""
    return ServiceRefused(what, got=got, allowed=allowed, code="unprocessable")


def not_finite() -> ServiceFailed:
    """A critic that gives NaN."""
    return ServiceFailed(
        "the critic's values are not finite",
        hint="its training has diverged: resume from a checkpoint with a lower optim.critic_lr",
        code="model_failed",
    )
