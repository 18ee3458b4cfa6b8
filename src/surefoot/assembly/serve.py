"""``surefoot serve``: from a config to a critic and reward service that answers.

It answers within a second that it is alive: what takes longer, the libraries among it, is loaded behind that.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import surefoot
from surefoot.config import Config, ServeSection, require, token_from
from surefoot.errors import ConfigError, RunFolderError, missing_extra
from surefoot.serving.batcher import Joining
from surefoot.serving.frames import Limits
from surefoot.training.folder_lock import FolderLock

if TYPE_CHECKING:
    from surefoot.serving.service import Hosts

BACKLOG: Final = 128
MIB: Final = 1 << 20
SETTINGS: Final = (
    "run.seed",
    "model.lora",
    "ppo.epochs",
    "ppo.minibatches",
    "ppo.value_coef",
    "ppo.value_clip",
    "ppo.aggregate",
    "optim.critic_lr",
    "optim.schedule",
    "optim.warmup_steps",
    "optim.betas",
    "optim.eps",
    "optim.weight_decay",
    "optim.max_grad_norm",
    "batch.tokens",
    "batch.packing",
    "guard.max_skipped",
)
"""What training the critic depends on besides its initial weights: trainer and service must agree on it."""


def critic_settings(config: Config) -> dict[str, Any]:
    """The values of :data:`SETTINGS` as plain JSON, and ``run.steps`` where the learning rate's schedule needs it."""
    tree = config.model_dump(mode="json")
    names = SETTINGS if config.optim.schedule == "constant" else (*SETTINGS, "run.steps")
    return {name: _value(tree, name) for name in names}


def _value(tree: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    return tree[section][key]


def serve(config: Config, *, host: str | None = None, port: int | None = None) -> int:
    """Serve until a signal; prints the address on stdout as soon as it listens.

    Args:
        config: the same as the trainer's, with a section ``serve``.
        host, port: instead of the config's.
    Returns:
        the exit code.
    Raises:
        UserError: something in config, models or folder is wrong, or the port is taken.
        RunError: what stands in the journal cannot be applied.
    """
    require(config, "serve")
    assert config.serve is not None
    given = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    section = config.serve.model_copy(update=given)
    config = config.model_copy(update={"serve": section})
    require(config, "serve")
    token = token_from(section.token_env)
    try:
        from surefoot.serving.app import run_server
        from surefoot.serving.service import Options, Service
    except ModuleNotFoundError as error:
        if str(error.name).startswith("surefoot"):
            raise
        raise missing_extra(str(error.name), "serve", "surefoot serve") from None
    options = Options(
        software=f"surefoot {surefoot.__version__}",
        roles=tuple(section.roles),
        limits=Limits(body_bytes=section.body_mb * MIB, rows=section.max_rows),
        joining=Joining(config.batch.tokens, section.batch_wait_ms / 1000, section.queue),
    )
    with _locked(section), listen(section.host, section.port) as listener:
        service = Service(partial(_build, config), options)
        announce = partial(_say, f"listening on {address_of(listener)}\n")
        return run_server(service, listener, token=token, drain_s=section.drain_s, announce=announce)


def _say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _build(config: Config) -> Hosts:
    # Torch, transformers and peft take seconds; by now the service answers that it is alive.
    from surefoot.assembly.hosts import build_hosts

    return build_hosts(config)


@contextmanager
def _locked(section: ServeSection) -> Iterator[None]:
    """Hold the service's folder, where it has a critic and so a state."""
    if "critic" not in section.roles:
        yield
        return
    folder = Path(section.dir).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock.take(folder / "lock")
    except RunFolderError as error:
        raise RunFolderError(
            error.what.replace("the run folder", "the service's folder"),
            hint="end that service, or choose another serve.dir",
        ) from None
    except OSError as error:
        raise RunFolderError(
            "the service's folder cannot be used", got=f"{folder} ({error.strerror})", hint="choose another serve.dir"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens.

    Args:
        host: a name or a number, with or without brackets.
        port: 0: any that is free.
    Raises:
        ConfigError: the port is taken, or there is no such address on this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        yield listener


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    place = f"{host}, port {port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            "the port is in use",
            got=place,
            hint="is the service running already? end it, or choose another serve.port (0: any that is free)",
        )
    reason = error.strerror or os.strerror(error.errno or 0)
    return ConfigError("the service cannot listen", got=f"{place} ({reason})", hint="check serve.host and serve.port")


def address_of(listener: socket.socket) -> str:
    """``http://HOST:PORT`` of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
