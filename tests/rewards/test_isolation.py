"""Time limits that limit: whatever a reward function does, the trainer goes on and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from surefoot.config.sections import RewardTerm
from surefoot.errors import RewardError
from surefoot.rewards import FunctionReward
from surefoot.rewards.isolation import MAX_STUCK_THREADS
from tests.rewards.conftest import Make, rollout_of

HANGS_ON_X = """
    import time
    def f(prompts, completions):
        while "x" in completions:
            time.sleep(1)
        return [1.0] * len(completions)
"""


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int, seconds: float = 60) -> bool:
    """Whether a process ends within some seconds."""
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


def children() -> set[str]:
    """All direct children of this process, zombies included."""
    return {n for task in Path("/proc/self/task").iterdir() for n in (task / "children").read_text().split()}


def open_files() -> int:
    """Number of files this process holds open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_srv_06_a_row_that_hangs_fails_alone_and_within_the_limit(make: Make) -> None:
    reward = make(HANGS_ON_X, timeout_s=0.5)
    start = time.monotonic()
    scores = reward.score(rollout_of(["a", "x", "b"]))
    took = time.monotonic() - start
    assert [s.value for s in scores] == [1.0, None, 1.0]
    assert scores[1].reason == "took longer than 0.5 s"
    assert 1.0 <= took < 10.0  # the call, the row, two starts


def test_srv_06_off_the_main_thread_and_from_several_at_once(make: Make) -> None:
    reward = make(HANGS_ON_X, timeout_s=0.5)
    results: dict[int, list[float | None]] = {}

    def work(n: int) -> None:
        results[n] = [s.value for s in reward.score(rollout_of(["a", "x" if n == 1 else "b", "c"]))]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {0: [1.0] * 3, 1: [1.0, None, 1.0], 2: [1.0] * 3, 3: [1.0] * 3}


def test_srv_06_many_such_calls_leave_no_process_and_no_file_behind(make: Make) -> None:
    reward = make(HANGS_ON_X, timeout_s=0.05)
    before, files = len(children()), open_files()
    for _ in range(12):
        assert reward.score(rollout_of(["x"]))[0].failed
    reward.timeout_s = 20.0
    assert [s.value for s in reward.score(rollout_of(["a"]))] == [1.0]
    assert len(children()) == before and open_files() == files


def test_the_search_for_rows_that_hang_is_bounded(make: Make) -> None:
    reward = make(HANGS_ON_X, timeout_s=0.5)
    scores = reward.score(rollout_of(["a", *"x" * 20, "b"]))
    assert reward._callee.starts <= 6, "one start at first, one after each call that was ended"
    assert scores[0].value == 1.0 and all(s.failed for s in scores[1:])
    assert scores[1].reason == "took longer than 0.5 s"
    assert scores[-1].reason == "not scored: the search for rows that hang used up its time"


def test_signals_and_processes_of_the_function_do_not_save_it(make: Make, tmp_path: Path) -> None:
    reward = make(
        f"""
        import pathlib, signal, subprocess, sys, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        def f(prompts, completions):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
            while True:
                try:
                    time.sleep(600)
                except BaseException:
                    pass
        """,
        timeout_s=0.4,
    )
    assert reward.score(rollout_of(["a"]))[0].reason == "took longer than 0.4 s"
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("death", "how"),
    [
        ("os._exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
        ("ctypes.string_at(0)", "signal SIGSEGV"),
        ("os.closerange(3, 100)", "signal SIGKILL"),
    ],
)
def test_a_row_that_kills_the_process_fails_alone(make: Make, death: str, how: str) -> None:
    reward = make(
        f"""
        import ctypes, os, signal, time
        def f(prompts, completions):
            if "x" in completions:
                {death}
                time.sleep(60)
            return [float(ord(c)) for c in completions]
        """,
        timeout_s=20,
    )
    scores = reward.score(rollout_of(["a", "x", "b"]))
    assert [s.value for s in scores] == [97.0, None, 98.0]
    assert scores[1].reason == f"its process ended during the call ({how})"


def test_what_the_function_prints_and_reads_does_not_touch_the_protocol(
    make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    reward = make(
        """
        import os, subprocess, sys
        print("while loading")
        def f(prompts, completions):
            print("to stdout", flush=True)
            os.write(1, b"raw bytes" * 3)
            subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
            assert sys.stdin.read() == "" and os.read(0, 10) == b""
            return [1.0]
        """
    )
    assert [s.value for s in reward.score(rollout_of(["a"]))] == [1.0]
    out, err = capfd.readouterr()
    assert out == ""
    assert all(text in err for text in ("while loading", "to stdout", "raw bytes", "from a child"))


def test_the_worker_loads_neither_torch_nor_surefoot(make: Make) -> None:
    reward = make(
        """
        import sys
        def f(prompts, completions):
            return [float(name in sys.modules) for name in ("torch", "numpy", "pydantic", "surefoot", "sys")]
        """
    )
    assert [s.value for s in reward.score(rollout_of(list("abcde")))] == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_the_function_stays_as_it_was_when_the_file_is_edited(make: Make, tmp_path: Path) -> None:
    reward = make(HANGS_ON_X, timeout_s=0.2)
    (tmp_path / "q.py").write_text("def f(prompts, completions): return [5.0] * len(completions)")
    assert reward.score(rollout_of(["x"]))[0].failed  # the worker is killed and started again
    reward.timeout_s = 20.0
    assert reward.score(rollout_of(["a"]))[0].value == 1.0


def test_a_large_call_passes_in_both_directions(make: Make) -> None:
    reward = make("def f(prompts, completions, completion_ids): return [[float(i) for i in r] for r in completion_ids]")
    text = "text" * 50_000
    scores = reward.score(rollout_of([text, text]))
    assert scores[1].terms["q"] == 50_000.0 * sum(map(ord, "text"))


def test_columns_that_cannot_be_handed_over_are_an_error(make: Make) -> None:
    reward = make("def f(prompts, completions, **columns): return [1.0]")
    with pytest.raises(RewardError, match="columns cannot be handed"):
        reward.score(rollout_of(["a"], [{"lock": threading.Lock()}]))
    assert reward.score(rollout_of(["a"]))[0].value == 1.0


def test_an_interrupted_call_does_not_answer_the_next_one(make: Make) -> None:
    """Ctrl-C in the trainer: the answer that comes late must not be taken for another call's."""
    reward = make(
        """
        import time
        def f(prompts, completions):
            if "slow" in completions: time.sleep(60)
            return [float(len(c)) for c in completions]
        """
    )
    timer = threading.Timer(0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        reward.score(rollout_of(["slow"]))
    assert time.monotonic() - start < 30
    timer.join()
    assert reward.score(rollout_of(["ab"]))[0].value == 2.0


@pytest.mark.parametrize("leave", ["return [float(len(c)) for c in completions]", "sys.exit(0)"])
def test_a_copy_of_the_process_that_comes_back_does_not_answer(make: Make, leave: str) -> None:
    """Its answer would be taken for that of the next call."""
    reward = make(
        f"""
        import os, sys, time
        def f(prompts, completions):
            if os.fork() == 0:
                time.sleep(0.05)
                {leave}
            return [float(len(c)) for c in completions]
        """
    )
    for text in ("a", "abc", "ab", "abcd"):
        assert reward.score(rollout_of([text]))[0].value == len(text)
        time.sleep(0.1)


def test_a_time_limit_of_months_is_one(make: Make) -> None:
    reward = make("def f(prompts, completions): return [1.0]")
    reward.timeout_s = 1e7
    assert reward.score(rollout_of(["a"]))[0].value == 1.0


@pytest.mark.parametrize("value", ["1e308", "{'a': 1e308, 'b': 1e308}", "[1e308, 1e308]"])
def test_numbers_that_only_a_fault_produces_are_failures(make: Make, value: str) -> None:
    reward = make(f"def f(prompts, completions): return [{value}, {value}]")
    assert [score.value for score in reward.score(rollout_of(["a", "b"]))] == [None, None]


def test_closing_twice_is_harmless_and_a_closed_reward_starts_again(make: Make) -> None:
    reward = make(HANGS_ON_X)
    before = len(children())
    reward.close()
    reward.close()
    assert len(children()) == before - 1
    assert reward.score(rollout_of(["a"]))[0].value == 1.0


def test_a_function_may_finish_when_it_is_closed(make: Make, tmp_path: Path) -> None:
    source = """
        import atexit, pathlib
        atexit.register(lambda: pathlib.Path({!r}).write_text("done"))
        def f(prompts, completions): return [1.0]
    """
    make(source.format(str(tmp_path / "log"))).close()
    assert (tmp_path / "log").read_text() == "done"


def test_processes_of_the_function_end_with_it(make: Make, tmp_path: Path) -> None:
    source = """
        import pathlib, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path({!r}).write_text(str(child.pid))
        def f(prompts, completions): return [1.0]
    """
    make(source.format(str(tmp_path / "pid"))).close()
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_worker_that_no_longer_reads_does_not_hold_up_the_trainer(make: Make) -> None:
    """A call larger than a pipe holds: writing it must not wait longer than the limit either."""
    reward = make(
        """
        import os, signal, threading
        def f(prompts, completions):
            if completions == ["last call"]:
                threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGSTOP]).start()
            return [1.0]
        """
    )
    reward.score(rollout_of(["last call"]))
    time.sleep(0.3)
    reward.timeout_s = 0.5
    assert reward.score(rollout_of(["x" * 500_000]))[0].reason == "took longer than 0.5 s"
    reward.timeout_s = 20.0
    assert reward.score(rollout_of(["a"]))[0].value == 1.0


TRAINER = """
    import os, sys
    from surefoot.config.sections import RewardTerm
    from surefoot.records import Rollout, Trajectory
    from surefoot.rewards import FunctionReward
    reward = FunctionReward(RewardTerm(name="q", target=sys.argv[1]), timeout_s=600)
    if sys.argv[2] == "exit":
        sys.exit(0)  # without close
    reward.score(Rollout.of([Trajectory([1, 2], [0, 1])]))
"""


@pytest.mark.parametrize("end", ["kill", "kill before the answer", "exit"])
def test_no_worker_outlives_its_trainer(tmp_path: Path, end: str) -> None:
    busy = 0.5 if end == "kill before the answer" else 600
    (tmp_path / "pid").touch()
    (tmp_path / "q.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        f"def f(prompts, completions):\n    pathlib.Path({str(tmp_path / 'called')!r}).touch()\n"
        f"    time.sleep({busy})\n    return [1.0]"
    )
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(TRAINER), f"{tmp_path}/q.py:f", end]
    trainer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while trainer.poll() is None and not (tmp_path / "called").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    trainer.kill()
    _, errors = trainer.communicate(timeout=120)
    assert errors == ""
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


# --------------------------------------------------------------------------------------------- function objects


def test_a_function_object_runs_in_a_thread_and_its_timeout_is_a_failure() -> None:
    release, names = threading.Event(), []

    def f(prompts: list[str], completions: list[str]) -> list[float]:
        names.append(threading.current_thread().name)
        if "x" in completions:
            release.wait(30)
        return [1.0] * len(completions)

    reward = FunctionReward(RewardTerm(name="q", target="-"), timeout_s=0.05, function=f)
    assert [s.value for s in reward.score(rollout_of(["a", "b"]))] == [1.0, 1.0]
    scores = reward.score(rollout_of(["a", "x"]))
    assert [(s.value, s.reason) for s in scores] == [(None, "took longer than 0.05 s")] * 2
    assert threading.current_thread().name not in names
    for _ in range(MAX_STUCK_THREADS - 1):
        reward.score(rollout_of(["x"]))
    with pytest.raises(RewardError, match=f"f has not come back from {MAX_STUCK_THREADS} calls.*hint: name it"):
        reward.score(rollout_of(["a"]))
    release.set()
    deadline = time.monotonic() + 60
    while any(t.name == "surefoot-reward" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reward.score(rollout_of(["a"]))[0].value == 1.0


def test_an_exception_in_a_thread_fails_the_rows() -> None:
    def f(prompts: list[str], completions: list[str]) -> list[float]:
        raise KeyError("nothing")

    scores = FunctionReward(RewardTerm(name="q", target="-"), function=f).score(rollout_of(["a", "b"]))
    assert all(s.value is None and s.reason.startswith("KeyError: 'nothing' (test_isolation.py:") for s in scores)
