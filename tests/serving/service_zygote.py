"""Forks `surefoot` processes, so that each costs a fork and not the seconds that the imports take.

Reads a JSON object a line from stdin and answers with one on stdout:

    {"arguments": [...], "stdout": FILE, "stderr": FILE, "die": null | {...}, "limit": null | BYTES}    -> {"pid": ...}
    {"poll": PID}                                                                                -> {"code": null | ...}

``die`` ends the process itself with SIGKILL at a call of a function: ``{"owner": "module:Class", "name": "write",
"number": 1, "after": false, "call": null}``; with ``call`` at that call to the system within it. ``limit`` is the
largest file that the process may write.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# Imported here so that no child has to.
import surefoot.assembly.hosts
import surefoot.serving.app  # noqa: F401
from surefoot.cli.main import main
from surefoot.training import lineage
from tests.training.run_killer import die_at_call, die_inside

# Looked up once: the packages are the same for every child, and each would take a third of its time for that.
PACKAGES = lineage.package_versions()
lineage.package_versions = lambda: PACKAGES


def prepare(die: dict[str, Any] | None, limit: int | None) -> None:
    """Lay the mine."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if die is None:
        return
    module, _, name = die["owner"].partition(":")
    owner = getattr(importlib.import_module(module), name)
    if die.get("call") is not None:
        die_inside(owner, die["name"], die["number"], call=die["call"])
    else:
        die_at_call(owner, die["name"], die["number"], after=die.get("after", False))


def start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        prepare(order.get("die"), order.get("limit"))
        sys.argv = ["surefoot", *order["arguments"]]
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    living: set[int] = set()
    ended: dict[int, int] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            found, status = os.waitpid(order["poll"], os.WNOHANG) if order["poll"] in living else (0, 0)
            if found:
                living.discard(found)
                ended[found] = os.waitstatus_to_exitcode(status)
            answer = {"code": ended.get(order["poll"])}
        else:
            answer = {"pid": start(order)}
            living.add(answer["pid"])
        print(json.dumps(answer), flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
