"""A reward behind a server of the user's own: what is sent, what is understood, and that a failure is never a 0.

The servers are real: the one of ``docs/service.md`` in a process of its own, and scripted ones on plain sockets.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from surefoot.config import build_config
from surefoot.config.sections import RewardSection
from surefoot.errors import RewardError
from surefoot.records import Rollout, Score
from surefoot.rewards import CompositeReward, RemoteReward, check_failures, score_metrics
from surefoot.rewards.composite import Term
from surefoot.rewards.http_calls import Patience
from surefoot.rewards.remote import OwnServer
from tests.rewards.conftest import rollout_of
from tests.scripted_server import (
    Received,
    ScriptedServer,
    Step,
    closed_port,
    cut,
    drip,
    hang,
    head,
    made,
    raw,
    reply,
    vanish,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "service.md"
QUICK = Patience(timeout_s=0.15, patience_s=0.4)
Build = Callable[..., RemoteReward]


@pytest.fixture
def build() -> Iterator[Build]:
    """Makes rewards; all are closed in the end."""
    made_rewards: list[RemoteReward] = []

    def make(*addresses: str, token: str | None = None, patience: Patience = QUICK, **options: Any) -> RemoteReward:
        scorer = OwnServer("far", addresses, token=token, patience=patience, **options.pop("scorer", {}))
        made_rewards.append(RemoteReward("far", scorer, **options))
        return made_rewards[-1]

    yield make
    for reward in made_rewards:
        reward.close()


def lengths(request: Received) -> bytes:
    """The score is the completion's length."""
    scores = [len(text) for text in request.json()["completions"]]
    return b'{"scores": %s}' % str(scores).encode()


def values(scores: Sequence[Score]) -> list[float | None]:
    return [score.value for score in scores]


# ------------------------------------------------------------------------------------------------------- the contract


def test_the_server_in_the_documents_works_as_it_stands(build: Build, tmp_path: Path) -> None:
    """A user who copies it has a server: it is run in a process of its own, with nothing changed but the port."""
    (source,) = re.findall(r"```python\n(.*?http\.server.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in source.splitlines() if line.strip()]) <= 15
    port = closed_port()
    (tmp_path / "server.py").write_text(source.replace("8700", str(port)), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(tmp_path / "server.py")], stderr=subprocess.DEVNULL) as process:
        try:
            reward = build(f"http://127.0.0.1:{port}", patience=Patience(5.0, 20.0))
            scores = reward.score(rollout_of(["abc", "", "x" * 400]))
        finally:
            process.kill()
    assert [score.failed for score in scores] == [False, True, False]
    assert scores[1].reason == "nothing to score"


def test_what_is_sent_is_what_the_contract_says(build: Build) -> None:
    columns = [{"answer": 4, "tags": ["a", 1.5], "gap": None}, {"answer": float("nan"), "extra": {"x": 1}}]
    with ScriptedServer.of(made(lengths)) as server:
        reward = build(f"{server.url}/score?model=x", token="a-token-of-some-length")
        assert values(reward.score(rollout_of(["né 🙂", "b\n"], columns))) == [4.0, 2.0]
    (request,) = server.received
    assert (request.method, request.path) == ("POST", "/score?model=x")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer a-token-of-some-length"
    assert request.json() == {
        "prompts": ["p:", "p:"],
        "completions": ["né 🙂", "b\n"],
        "columns": {
            "answer": [4, None],
            "tags": [["a", 1.5], None],
            "gap": [None, None],
            "extra": [None, {"x": 1}],
        },
    }


def test_it_is_a_term_like_others(build: Build) -> None:
    with ScriptedServer.of(made(lengths)) as server:
        reward: Term = build(server.url)
        total = CompositeReward([reward], weights=[0.5], clips=[3.0])
        first, second = total.score(rollout_of(["ab", "abcdef"]))
    assert (first.value, second.value) == (1.0, 1.5)
    assert second.terms == {"far": 6.0}


def test_srv_04_only_as_many_scores_as_completions_are_taken(build: Build) -> None:
    """One value for three answers is not repeated, and the fourth of four is not dropped."""
    returned = [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]
    accepted = []
    for scores in returned:
        with ScriptedServer.of(reply(200, {"scores": scores})) as server:
            reward = build(server.url)
            try:
                assert values(reward.score(rollout_of(["a", "b", "c"]))) == scores
                accepted.append(True)
            except RewardError as error:
                accepted.append(False)
                assert server.url in str(error)
                assert f"got: {len(scores)} for 3 completions" in str(error)
                assert "exactly 3" in str(error)
    assert accepted == [False, False, True, False]


def test_srv_02_what_is_missing_is_no_zero(build: Build) -> None:
    body = '{"scores": [1.0, null, 0.0], "reasons": [null, "cannot parse", null]}'
    with ScriptedServer.of(reply(200, body)) as server:
        scores = build(server.url).score(rollout_of(["a", "b", "c"]))
    assert values(scores) == [1.0, None, 0.0]
    assert scores[1].reason == "cannot parse"
    assert scores[1].terms == {"far": None}
    metrics = score_metrics(scores)
    assert metrics["score/mean"] == 0.5
    assert metrics["score/failed_share"] == pytest.approx(1 / 3)


def test_a_score_that_is_no_number_has_failed(build: Build) -> None:
    body = '{"scores": [NaN, Infinity, 1e999, -1e400, 2, 1%s]}' % ("0" * 400)
    with ScriptedServer.of(reply(200, body)) as server:
        scores = build(server.url).score(rollout_of(list("abcdef")))
    assert values(scores) == [None, None, None, None, 2.0, None]
    assert all(score.reason for score in scores if score.failed)


def test_a_reason_beside_a_score_changes_nothing(build: Build) -> None:
    with ScriptedServer.of(reply(200, {"scores": [1, None], "reasons": ["fine", None]})) as server:
        scores = build(server.url).score(rollout_of(["a", "b"]))
    assert [(s.value, s.reason) for s in scores] == [(1.0, None), (None, "returned None")]


def test_named_terms_and_rewards_by_token_are_understood_as_of_functions(build: Build) -> None:
    with ScriptedServer.of(reply(200, {"scores": [{"short": 1, "polite": 0.5}]})) as server:
        (score,) = build(server.url).score(rollout_of(["ab"]))
    assert score.terms == {"far": 1.5, "far_short": 1.0, "far_polite": 0.5}
    with ScriptedServer.of(reply(200, {"scores": [[0.5, 0, 1]]})) as server:
        (score,) = build(server.url).score(rollout_of(["ab"]))
    assert score.token_rewards == (0.0, 0.0, 0.5, 0.0, 1.0)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "scores",
        "[1.0, 2.0]",
        '{"rewards": [0.5, 0.5]}',
        '{"scores": 1.0}',
        '{"scores": null}',
        '{"scores": {"a": 1.0}}',
        '{"scores": ["1.0", "2.0"]}',
        '{"scores": [1.0, 2.0], "reasons": ["a"]}',
        '{"scores": [1.0, 2.0], "reasons": "a"}',
        '{"scores": [1.0, 2.0',
        "[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_an_answer_that_cannot_be_read_ends_the_run(build: Build, body: Any) -> None:
    with ScriptedServer.of(reply(200, body)) as server, pytest.raises(RewardError) as caught:
        build(server.url).score(rollout_of(["a", "b"]))
    assert server.url in str(caught.value)
    assert len(str(caught.value)) < 800


def test_a_column_that_is_no_json_is_named(build: Build) -> None:
    with ScriptedServer.of(made(lengths)) as server, pytest.raises(RewardError, match=r"as JSON; got: .*bytes"):
        build(server.url).score(rollout_of(["a"], [{"image": b"png"}]))
    assert server.received == []


# ------------------------------------------------------------------------------------------- what goes wrong on the way

GOOD = made(lengths)
TRANSIENT: dict[str, Step] = {
    "503": reply(503, "warming up"),
    "429": reply(429),
    "408": reply(408),
    "502": reply(502),
    "504": reply(504),
    "vanished": vanish,
    "hangs": hang,
    "cut": cut(b'{"scores": [2.0, 1.0]}', 12),
    "cut without a length": cut(b'{"scores": [2.0, 1.0]}', 12, announced=False),
    "cut status": raw(b"HTTP/1.1 2"),
}


@pytest.mark.parametrize("trouble", TRANSIENT)
def test_srv_01_passing_trouble_is_tried_again(build: Build, trouble: str) -> None:
    with ScriptedServer.of(TRANSIENT[trouble], GOOD) as server:
        reward = build(server.url, patience=Patience(0.3, 10.0))
        assert values(reward.score(rollout_of(["ab", "c"]))) == [2.0, 1.0]
    assert len(server.received) == 2
    assert server.received[0].body == server.received[1].body


REFUSED: dict[str, tuple[Step, str]] = {
    "400": (reply(400, "completion 1 is not German"), "answered 400: completion 1 is not German"),
    "401": (reply(401, '{"error": "wrong token"}'), "wrong token"),
    "404": (reply(404, "no such model"), "answered 404: no such model"),
    "500": (reply(500, "Traceback: KeyError"), "answered 500: Traceback: KeyError"),
    "redirect": (reply(307, location="http://elsewhere"), "leads to http://elsewhere: redirects are not followed"),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH\r\n"), "does not speak HTTP"),
    "too much": (raw(head(200, 1 << 40)), "at most 67108864"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_srv_01_what_another_try_does_not_change_fails_the_rows_at_once(build: Build, fault: str) -> None:
    step, words = REFUSED[fault]
    with ScriptedServer.of(step) as server:
        reward = build(server.url, patience=Patience(60.0, 120.0))
        begun = time.monotonic()
        scores = reward.score(rollout_of(["a", "b"]))
        assert time.monotonic() - begun < 20
    assert values(scores) == [None, None]
    assert len(server.received) <= 1
    for score in scores:
        assert words in (score.reason or "")
        assert server.url in (score.reason or "")
    with pytest.raises(RewardError, match=re.escape(words)):
        check_failures(scores, RewardSection())


@pytest.mark.parametrize(
    "step",
    [hang, vanish, reply(503), reply(503, retry_after="0"), drip(head(200, 9) + b'{"a": 1}')],
    ids=["hangs", "vanishes", "503", "503 at once", "drips"],
)
def test_srv_01_when_patience_is_over_the_rows_have_failed(build: Build, step: Step) -> None:
    with ScriptedServer.of(step) as server:
        begun = time.monotonic()
        scores = build(server.url).score(rollout_of(["a", "b"]))
        assert 0.2 < time.monotonic() - begun < 20
        assert len(server.received) >= 2
    assert values(scores) == [None, None]
    assert re.search(r"did not answer: \d+ tries in \d+\.\d s, the last one: ", scores[0].reason or "")


def test_srv_01_a_port_where_nothing_listens(build: Build) -> None:
    scores = build(f"http://127.0.0.1:{closed_port()}").score(rollout_of(["a"]))
    assert "nothing listens there" in (scores[0].reason or "")


def test_retry_after_is_honoured(build: Build) -> None:
    pauses: list[float] = []
    with ScriptedServer.of(reply(429, retry_after="7"), reply(503, retry_after="2"), GOOD) as server:
        reward = build(server.url, patience=Patience(1.0, 60.0), scorer={"sleep": pauses.append})
        assert values(reward.score(rollout_of(["ab"]))) == [2.0]
    assert pauses == [7.0, 2.0]


def test_only_the_rows_of_the_part_that_failed_have_failed(build: Build) -> None:
    def step(exchange: Any) -> None:
        bad = "x" in exchange.request.json()["completions"]
        (reply(400, "no x") if bad else GOOD)(exchange)

    with ScriptedServer.of(step) as server:
        scores = build(server.url, rows=2).score(rollout_of(["ab", "c", "def", "x", "g"]))
    assert values(scores) == [2.0, 1.0, None, None, 1.0]
    with pytest.raises(RewardError, match="2 of 5 scores failed"):
        check_failures(scores, RewardSection())
    check_failures(scores, RewardSection(max_failures=0.5))


# ------------------------------------------------------------------------------------------------------ parts, threads


def test_rows_are_sent_in_parts_and_come_back_in_order(build: Build) -> None:
    """The first part is answered last."""

    def slow_first(request: Received) -> bytes:
        time.sleep(0.15 if "a" in request.json()["completions"] else 0.0)
        return lengths(request)

    texts = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]
    with ScriptedServer.of(made(slow_first)) as server:
        scores = build(server.url, rows=3, patience=Patience(2.0, 5.0)).score(rollout_of(texts))
    assert values(scores) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert sorted(len(r.json()["completions"]) for r in server.received) == [1, 3, 3]


def test_srv_01_no_more_requests_at_once_than_allowed(build: Build) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def count(request: Received) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return lengths(request)

    rollout = rollout_of(["a"] * 40)
    with ScriptedServer.of(made(count)) as server:
        reward = build(server.url, rows=1, concurrency=3, patience=Patience(2.0, 5.0))
        begun = time.monotonic()
        assert values(reward.score(rollout)) == [1.0] * 40
        assert time.monotonic() - begun < 0.02 * 40, "parts are sent at once"
        assert server.connections <= 3, "connections are kept open"
    assert most == 3


def test_an_error_in_one_part_ends_the_call_without_waiting_for_the_others(build: Build) -> None:
    def step(exchange: Any) -> None:
        bad = "x" in exchange.request.json()["completions"]
        (reply(200, {"scores": []}) if bad else hang)(exchange)

    with ScriptedServer.of(step) as server:
        reward = build(server.url, rows=1, patience=Patience(60.0, 120.0))
        begun = time.monotonic()
        with pytest.raises(RewardError, match="0 for 1 completions"):
            reward.score(rollout_of(["a", "x"]))
        reward.close()
    assert time.monotonic() - begun < 20


def test_parts_that_were_not_sent_before_an_error_are_not_sent_after_it(build: Build) -> None:
    def slowly(exchange: Any) -> None:
        time.sleep(0.05)
        reply(200, {"scores": []})(exchange)

    with ScriptedServer.of(slowly) as server:
        reward = build(server.url, rows=1, concurrency=1, patience=Patience(1.0, 5.0))
        with pytest.raises(RewardError):
            reward.score(rollout_of(["a"] * 9))
        time.sleep(0.3)
    assert len(server.received) <= 2


def test_closing_ends_what_is_under_way(build: Build) -> None:
    with ScriptedServer.of(hang) as server:
        reward = build(server.url, patience=Patience(60.0, 120.0))
        timer = threading.Timer(0.1, reward.close)
        timer.start()
        begun = time.monotonic()
        scores = reward.score(rollout_of(["a"]))
        timer.join()
    assert time.monotonic() - begun < 20
    assert "closed" in (scores[0].reason or "")


def test_several_addresses_share_the_work_and_stand_in_for_each_other(build: Build) -> None:
    with ScriptedServer.of(GOOD) as one, ScriptedServer.of(GOOD) as two:
        reward = build(one.url, two.url, rows=1, concurrency=1, patience=Patience(1.0, 10.0))
        reward.score(rollout_of(["a"] * 6))
        assert [len(one.received), len(two.received)] == [3, 3]
        one.__exit__(None, None, None)
        assert values(reward.score(rollout_of(["ab"] * 6))) == [2.0] * 6
        assert len(two.received) == 9
        one.__enter__()


def test_when_no_address_answers_all_are_named(build: Build) -> None:
    urls = [f"http://127.0.0.1:{closed_port()}" for _ in range(2)]
    (score,) = build(*urls).score(rollout_of(["a"]))
    for url in urls:
        assert url in (score.reason or "")


def test_the_same_rollout_gets_the_same_scores_in_any_number_of_parts(build: Build) -> None:
    rollout: Rollout = rollout_of([chr(97 + n) * n for n in range(9)])
    found = []
    with ScriptedServer.of(GOOD) as server:
        for rows in (1, 2, 4, 64):
            found.append(values(build(server.url, rows=rows).score(rollout)))
    assert found[0] == [float(n) for n in range(9)]
    assert all(scores == found[0] for scores in found)


def test_a_config_names_it() -> None:
    tree = {"reward": {"terms": [{"name": "far", "kind": "remote", "target": ["http://a:1/x/", "http://b:2"]}]}}
    (term,) = build_config(tree).reward.terms
    assert term.addresses == ("http://a:1/x", "http://b:2")
    assert (term.rows, term.concurrency, term.patience_s) == (64, 4, 300.0)


def test_nothing_is_left_behind(build: Build) -> None:
    before = threading.active_count()
    with ScriptedServer.of(GOOD) as server:
        reward = build(server.url, rows=1)
        reward.score(rollout_of(["a"] * 4))
        reward.close()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 1):
            pass
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
