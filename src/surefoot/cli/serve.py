"""``surefoot serve``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.config import load_config
from surefoot.errors import ConfigError


def run_serve(config: Path, overrides: Sequence[str], *, host: str | None, port: int | None, log: str) -> int:
    """Serve until a signal, logging as ``log`` says: json or text. Returns the exit code."""
    if port is not None and not 0 <= port < 1 << 16:
        raise ConfigError("there is no such port", got=port, allowed="0 to 65535", hint="--port 0 takes any free one")
    cfg = load_config(config, overrides)
    from surefoot.assembly.serve import serve
    from surefoot.serving.logs import log_to_stderr

    log_to_stderr("text" if log == "text" else "json")
    return serve(cfg, host=host, port=port)
