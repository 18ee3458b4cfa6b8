"""What a service tells of itself: one JSON object a line on stderr, or lines for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

FIELDS: Final = ("run", "step", "path", "status", "seconds")
"""What a line may have besides time, level and message."""

Kind = Literal["json", "text"]


class JsonLines(logging.Formatter):
    """``{"time": ..., "level": ..., "message": ...}``, and run, step, path, status and seconds where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback where there is one."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{time} {record.levelname.lower()}: {record.getMessage()}{'  ' if fields else ''}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = {name: getattr(record, name, None) for name in FIELDS}
    return {name: value for name, value in found.items() if value is not None}


def log_to_stderr(kind: Kind) -> None:
    """All logs of this process, the web server's too, go to stderr in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    logging.getLogger().handlers[:] = [handler]
    for name in ("surefoot", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
