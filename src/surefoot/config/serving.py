"""The critic and reward service: its section, what it needs of the others, and tokens. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from surefoot.config.addresses import TokenVariable, is_loopback
from surefoot.config.sections import Positive, PositiveFloat, Section
from surefoot.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.config.tree import Config

Role = Literal["critic", "reward"]
MIN_TOKEN = 16


class ServeSection(Section):
    """The service that `surefoot serve` starts; everything else it reads from the same file as the trainer."""

    roles: list[Role] = Field(["critic"])
    """What it does: `critic`, `reward` or both."""
    reward: str | None = None
    """Folder or hub id of the reward model; null: that of the first reward term of kind model."""
    host: str = Field("127.0.0.1", pattern=r"^[A-Za-z0-9.:_\[\]-]+$")
    """Address it listens on. Anything but this machine alone (127.0.0.1, ::1, localhost) needs `token_env`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8600
    """Port it listens on; 0: any that is free, which is logged."""
    token_env: TokenVariable | None = None
    """Name of the environment variable with the token that every request must carry; null: none is asked for."""
    dir: str = "service"
    """Folder of its checkpoints and its journal."""
    body_mb: Positive = 256
    """Largest request in MiB."""
    max_rows: Positive = 1024
    """Most trajectories in a request."""
    queue: Positive = 64
    """Requests that may wait; more are sent away for a moment (503)."""
    batch_wait_ms: Annotated[float, Field(ge=0, le=1000)] = 2.0
    """How long a request waits for others to be computed with; 0: each by itself."""
    memory: Literal["both", "turns"] = "both"
    """`both` models stay on the device, or they take `turns` and the other one waits in the machine's memory."""
    trunk: Literal["separate", "one"] = "separate"
    """`separate` models, or `one` trunk with both heads."""
    lease_s: PositiveFloat = 300.0
    """How long after its last request a run keeps the critic to itself."""
    drain_s: Annotated[float, Field(ge=0)] = 30.0
    """How long requests under way may go on once it is told to end."""

    @field_validator("roles")
    @classmethod
    def _some_once(cls, roles: list[Role]) -> list[Role]:
        if not roles or len(set(roles)) < len(roles):
            raise ValueError(f"{roles} must name critic, reward or both, each once; hint: roles: [critic, reward]")
        return roles


def check_served(config: Config) -> None:
    """Check that a config has what `surefoot serve` needs.

    Raises:
        ConfigError: the first thing that is missing or does not go together.
    """
    serve = config.serve
    if serve is None:
        raise ConfigError("serve needs a section serve", hint="add `serve: {}`; docs/config.md explains its keys")
    if "critic" in serve.roles:
        _check_critic(config)
    if "reward" in serve.roles and serve.reward is None and all(t.kind != "model" for t in config.reward.terms):
        raise ConfigError(
            "serve.roles holds reward, and there is no reward model", hint="name its folder: serve.reward"
        )
    both = set(serve.roles) == {"critic", "reward"}
    for key, asked in {"memory: turns": serve.memory == "turns", "trunk: one": serve.trunk == "one"}.items():
        if asked and not both:
            raise ConfigError(
                f"serve.{key} is for two models, and this service has one",
                got=f"serve.roles: {serve.roles}",
                hint=f"remove serve.{key.partition(':')[0]}, or set serve.roles: [critic, reward]",
            )
    if serve.token_env is None and not is_loopback(serve.host):
        raise ConfigError(
            "a service that others can reach needs a token",
            got=f"serve.host: {serve.host}",
            allowed="without a token: 127.0.0.1, ::1 and localhost",
            hint="put a long random text into an environment variable and name it: serve.token_env: SUREFOOT_TOKEN",
        )


def _check_critic(config: Config) -> None:
    if not config.model.policy:
        raise ConfigError("serve needs model.policy: the critic reads its tokens", hint="name the policy's folder")
    if config.critic.kind == "shared":
        raise ConfigError(
            "a critic on the policy's trunk cannot be served: it lives in the policy",
            got="critic.kind: shared",
            hint="set critic.kind: separate",
        )
    if config.optim.schedule != "constant" and config.run.steps is None:
        raise ConfigError(
            "the learning rate's schedule is stretched over the run, and its length is not given",
            got=f"optim.schedule: {config.optim.schedule}",
            hint="set run.steps as the trainer does",
        )


def check_remote(config: Config) -> None:
    """Check what a trainer asks of services.

    Raises:
        ConfigError: the first combination that cannot work.
    """
    if config.critic.url is not None and config.critic.kind == "shared":
        raise ConfigError(
            "a critic on the policy's trunk has no address: it lives in the policy",
            got=f"critic.kind: shared, critic.url: {config.critic.url}",
            hint="remove critic.url, or set critic.kind: separate",
        )
    for term in config.reward.terms:
        if term.kind == "remote" and term.name == config.critic.init:
            raise ConfigError(
                "critic.init names a remote reward, whose weights are elsewhere",
                got=config.critic.init,
                hint="name the reward model's folder in critic.init",
            )


def token_from(variable: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token in an environment variable; None where no variable is named.

    Raises:
        ConfigError: the variable is not set, or what it holds is too short or cannot stand in a header.
    """
    if variable is None:
        return None
    token = environment.get(variable, "").strip()
    if not token:
        raise ConfigError(f"the environment variable {variable} is not set", hint=f"export {variable}=... first")
    if len(token) < MIN_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(
            f"the token in {variable} cannot be used",
            got=f"{len(token)} characters",
            allowed=f"at least {MIN_TOKEN} letters, digits and signs, without spaces",
            hint='python -c "import secrets; print(secrets.token_urlsafe(32))" makes one',
        )
    return token
