"""Addresses of services, and whether one leaves this machine. Torch-free."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f]")


def http_address(value: str) -> str:
    """An http or https address as it was given, without the slashes at its end.

    Raises:
        ValueError: it is none, or it holds a password.
    """
    example = "as in http://127.0.0.1:8600"
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{value!r} is no address: {error}; hint: {example}") from None
    if parts.scheme not in ("http", "https") or not host or _UNPRINTABLE.search(value):
        raise ValueError(f"{value!r} is no http or https address; hint: write it {example}")
    if "@" in parts.netloc:
        raise ValueError("an address must hold no user and no password; hint: name a variable in token_env instead")
    if parts.fragment:
        raise ValueError(f"{value!r} has a fragment, which no server sees; hint: leave off what follows '#'")
    return value.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether a host, as a name or a number, is this machine and nobody else can reach it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


Address = Annotated[str, AfterValidator(http_address)]
TokenVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
