"""What every test stands on: one thread, no network, and caches that go away with the run."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

# Set before anything imports torch, and inherited by the workers and by every process a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["NO_COLOR"] = "1"

if "PYTEST_XDIST_WORKER" not in os.environ:
    _home = tempfile.mkdtemp(prefix="surefoot-tests-")
    os.environ["HF_HOME"] = _home
    atexit.register(shutil.rmtree, _home, ignore_errors=True)

# Started in the background or under nohup, these are ignored, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
