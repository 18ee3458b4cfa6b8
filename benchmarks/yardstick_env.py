"""The environment that TRL runs in: made once from this interpreter, with the exact versions of constraints-trl.txt."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ENVIRONMENT: Final = HERE / ".venv-trl"
CONSTRAINTS: Final = HERE / "constraints-trl.txt"
PACKAGES: Final = ("trl", "transformers", "torch", "accelerate", "datasets", "peft", "numpy")


def ensure() -> Path:
    """The environment's interpreter; installed (1.5 GB, a few minutes) when it is not there for these versions.

    Raises:
        SystemExit: it could not be made; the message says what to do.
    """
    python, marker = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "surefoot-yardstick"
    wanted = _digest()
    if marker.is_file() and marker.read_text(encoding="ascii").strip() == wanted and python.exists():
        return python
    _say(f"making {ENVIRONMENT.name} for TRL (1.5 GB, a few minutes the first time)")
    marker.unlink(missing_ok=True)
    _run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    # Every package is pinned: an unpinned torch would come with gigabytes of GPU libraries.
    _run([*install, "-c", str(CONSTRAINTS), *PACKAGES])
    marker.write_text(wanted + "\n", encoding="ascii")
    return python


def _digest() -> str:
    """Of all that the environment depends on; its commands hold its absolute path."""
    digest = hashlib.sha256(f"{ENVIRONMENT}\0{sys.version}\0{PACKAGES}\0".encode())
    digest.update(CONSTRAINTS.read_bytes())
    return digest.hexdigest()


def _run(command: list[str]) -> None:
    # What pip says is progress, so it goes where progress goes.
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if code:
        _say(f"'{' '.join(command[1:4])} ...' failed; hint: read the message above, then run the same command again")
        raise SystemExit(code)


def _say(text: str) -> None:
    print(f"yardstick: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(ensure())
