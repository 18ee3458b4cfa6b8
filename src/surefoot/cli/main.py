"""The entry point: commands, and errors in one paragraph.

Exit codes: 0 done; 2 something to put right in config, data or models (nothing was written); 3 trouble in a run (the
last checkpoint is whole); 130 and 143 ended by Ctrl-C or SIGTERM, a run with a checkpoint.
"""

from __future__ import annotations

import logging
import sys

from surefoot.cli.interrupts import STOPPED_EXIT, CtrlC
from surefoot.errors import RunError, SurefootError


def main() -> None:
    """Run a command; a user's mistake is one paragraph and Ctrl-C one line, never a traceback."""
    with CtrlC() as ctrl_c:
        try:
            _run_command()
        except BaseException as error:
            line = ctrl_c.line(error)
            if line is not None:
                sys.stderr.write(f"{line}\n")
                raise SystemExit(STOPPED_EXIT) from None
            if not isinstance(error, SurefootError):
                raise
            sys.stderr.write(_paragraph(error))
            raise SystemExit(error.exit_code) from None


def _run_command() -> None:
    # Imported here, since it takes a while, and Ctrl-C may come by then.
    from surefoot.cli.commands import app
    from surefoot.parallel.allocator import keep_freed_memory

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("surefoot").setLevel(logging.INFO)
    keep_freed_memory()
    app()


def _paragraph(error: SurefootError) -> str:
    """What was wrong, got and allowed in one line; the hint in the next."""
    body, hint = str(error), error.hint
    if hint:
        body = body.removesuffix(f"; hint: {hint}")
    elif isinstance(error, RunError):
        hint = "the last checkpoint is whole: put that right, then run the same command with --resume"
    else:
        hint = "put that right and run the command again; `surefoot check CONFIG` finds what else there is"
    return f"error: {' '.join(body.split())}\nhint: {' '.join(hint.split())}\n"


if __name__ == "__main__":
    main()
