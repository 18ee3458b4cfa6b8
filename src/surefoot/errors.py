"""Every exception of Surefoot, under one root.

::

    SurefootError
    |-- UserError                 found before step 1; exit code 2, nothing written
    |   |-- ConfigError           (ValueError)   a key, a value or a combination of them
    |   |-- DataError             (ValueError)   a prompt file, a row, a column, a trajectory
    |   |-- ModelError            (ValueError)   a model folder, a tokenizer, an unsupported architecture
    |   |-- RunFolderError        (ValueError)   the run folder exists, is in use or does not fit
    |   `-- MissingExtra          (ImportError)  an optional package is not installed
    `-- RunError                  trouble after step 1; exit code 3, the last checkpoint is whole
        |-- RewardError           (RuntimeError) a reward failed too often, or answered in the wrong shape
        |-- RolloutError          (RuntimeError) the engine or an environment failed
        |-- TrainingError         (RuntimeError) losses or gradients not finite for too long, no update made
        |-- CheckpointError       (RuntimeError) a checkpoint could not be written, or none is whole
        `-- ServiceError          (RuntimeError) the critic or reward service; `code` is the service's own word for it
            |-- ServiceUnavailable             it could not be reached, or was not ready, in the time allowed
            |-- ServiceRefused                 it refused the request: token, limits, something it does not know
            |-- ServiceMismatch                another protocol, model, tokenizer, run or step than expected
            `-- ServiceFailed                  it failed while it worked, or its answer cannot be used
                `-- WireError                  a body that is not what the protocol says

A message says what was wrong, what was got, what is allowed, and ends with a ``hint:``. All are picklable.
"""

from __future__ import annotations

from typing import Any


class SurefootError(Exception):
    """Root of all errors raised on purpose.

    Args:
        what: what was wrong, a clause without a full stop.
        got: what was found instead, shown with ``repr`` unless it is a string.
        allowed: what would have been accepted.
        hint: what to do now.
    """

    exit_code = 1

    def __init__(self, what: str, *, got: Any = None, allowed: Any = None, hint: str | None = None) -> None:
        parts = [what.rstrip(".")]
        if got is not None:
            parts.append(f"got: {got if isinstance(got, str) else repr(got)}")
        if allowed is not None:
            parts.append(f"allowed: {allowed if isinstance(allowed, str) else repr(allowed)}")
        if hint is not None:
            parts.append(f"hint: {hint}")
        self.what, self.got, self.allowed, self.hint = what, got, allowed, hint
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (
            type(self),
            self.what,
            str(self.got) if self.got is not None else None,
            self.allowed,
            self.hint,
        )


def _rebuild(cls: type[SurefootError], what: str, got: Any, allowed: Any, hint: str | None) -> SurefootError:
    return cls(what, got=got, allowed=allowed, hint=hint)


class UserError(SurefootError):
    """Something the user can put right, found before the first step."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A config key, value or combination that cannot be used."""


class DataError(UserError, ValueError):
    """A data file, row, column or trajectory that cannot be used."""


class ModelError(UserError, ValueError):
    """A model folder, tokenizer or architecture that cannot be used."""


class RunFolderError(UserError, ValueError):
    """A run folder that exists already, is in use, or was made by another config."""


class MissingExtra(UserError, ImportError):
    """An optional package that the asked-for feature needs is not installed."""

    def __init__(self, what: str, *, got: Any = None, allowed: Any = None, hint: str | None = None) -> None:
        super().__init__(what, got=got, allowed=allowed, hint=hint)


class RunError(SurefootError):
    """Trouble in a run that had started; the last checkpoint is whole."""

    exit_code = 3


class RewardError(RunError, RuntimeError):
    """A reward failed more often than allowed, or answered in the wrong shape."""


class RolloutError(RunError, RuntimeError):
    """The engine or an environment failed."""


class TrainingError(RunError, RuntimeError):
    """Non-finite losses or gradients past the limit, or a run that made no update."""


class CheckpointError(RunError, RuntimeError):
    """A checkpoint could not be written or read."""


class ServiceError(RunError, RuntimeError):
    """The critic or reward service: root of what can go wrong between it and the trainer.

    Args:
        what, got, allowed, hint: as for every error.
        code: the protocol's word for it (``docs/service.md``), None where it has none.
    """

    def __init__(
        self, what: str, *, got: Any = None, allowed: Any = None, hint: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(what, got=got, allowed=allowed, hint=hint)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"code": self.code}


class ServiceUnavailable(ServiceError):
    """The service could not be reached, or was not ready, within the time allowed. It may come back."""


class ServiceRefused(ServiceError):
    """The service refused the request; the same request would be refused again."""


class ServiceMismatch(ServiceError):
    """The service has another protocol, model, tokenizer, run or step than the trainer expects."""


class ServiceFailed(ServiceError):
    """The service failed while it worked on a request, or its answer cannot be used."""


class WireError(ServiceFailed):
    """A body that is not what the protocol says. ``code`` is one of the protocol's, ``bad_request`` for most."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtra:
    """The one-line error for an optional package that is absent."""
    return MissingExtra(
        f"{purpose} needs the package {package!r}, which is not installed", hint=f"pip install 'surefoot[{extra}]'"
    )
