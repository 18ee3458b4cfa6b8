"""Trouble while a run goes on: nothing is lost and nothing done twice, or the run stops soon and says why."""

from __future__ import annotations

import json
import resource
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from surefoot.serving.frames import Limits, open_frame, pack_frame
from surefoot.serving.wire import Inferred
from tests.builders import merged
from tests.scripted_server import Exchange, ScriptedServer, reply
from tests.scripted_server import raw as script_raw
from tests.serving.processes import Process, free_port
from tests.serving.proxies import CuttingProxy, Fault, TamperingProxy
from tests.serving.whole_runs import (
    ONE_BY_ONE,
    TOKEN,
    Outcome,
    Trial,
    broken_model,
    differences,
    mine,
    paragraph,
    ready,
    wait_until,
)

JOURNAL = "surefoot.serving.journal:Journal"
STORE = "surefoot.training.checkpoint:CheckpointStore"
HOST = "surefoot.serving.critic_host:CriticHost"
KEEPER = "surefoot.serving.critic_keeper:CriticKeeper"
OPTIMIZER = "surefoot.training.optimizer:Optimizer"
CRITIC = "surefoot.models.critic:SeparateCritic"
KILLS = [
    mine(CRITIC, "values", 2),
    mine(CRITIC, "values", 1, after=True),
    mine(JOURNAL, "write", 1),
    mine(JOURNAL, "write", 1, call=3),
    mine(KEEPER, "apply", 1),
    # One step is applied again at the start; then in the midst of the next one's four updates.
    mine(OPTIMIZER, "step", 2),
    mine(HOST, "train", 1, after=True),
    mine(STORE, "save", 1, call=5),
    mine(STORE, "save", 1, after=True),
    mine(HOST, "checkpoint", 2, after=True),
]
SHORT = {"patience_s": 3.0, "timeout_s": 1.0}


def seconds_until_end(process: Process, code: int = 3) -> float:
    """How long it takes to end."""
    begun = time.monotonic()
    assert process.wait(300) == code, process.stderr.read_text()[-3000:]
    return time.monotonic() - begun


# --------------------------------------------------------------------------------------------------------------- kills


def test_a_service_killed_again_and_again_changes_nothing(trial: Trial, untouched: Outcome) -> None:
    service = trial.serve_again(*KILLS)
    try:
        found = trial.finish("killed", service.url, **ONE_BY_ONE)
    finally:
        service.end()
    assert differences(found, untouched) == []
    assert service.codes == [-signal.SIGKILL] * len(KILLS) + [0]


def test_with_overlap_too(trial: Trial, untouched: Outcome) -> None:
    kills = [mine(CRITIC, "values", 2), mine(OPTIMIZER, "step", 6), mine(JOURNAL, "write_result", 1)]
    service = trial.serve_again(*kills)
    try:
        found = trial.finish("killed", service.url)
    finally:
        service.end()
    assert service.codes == [-signal.SIGKILL] * len(kills) + [0]
    assert len(found.metrics) == len(untouched.metrics)
    for ours, theirs in zip(found.metrics, untouched.metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def test_a_service_that_does_not_come_back_ends_the_run_and_harms_nothing(trial: Trial, untouched: Outcome) -> None:
    service = trial.serve(die=mine(HOST, "train", 3))
    url = ready(service)
    process = trial.train("run", url, **merged(ONE_BY_ONE, {"critic": SHORT}))
    assert service.wait() == -signal.SIGKILL
    assert seconds_until_end(process) < 60
    text = paragraph(process)
    print(text)
    assert f"the service at {url} did not answer train in time; got: " in text
    assert "connection refused: nothing listens there" in text and "--resume" in text
    assert [line["step"] for line in trial.outcome("run").metrics] == [1, 2]
    again = trial.serve()
    assert differences(trial.finish("run", again.address(), **ONE_BY_ONE), untouched) == []
    assert again.end() == 0


@pytest.mark.parametrize(
    ("overlap", "dies"),
    [(False, mine(HOST, "train", 2)), (True, mine(HOST, "train", 2)), (True, mine(CRITIC, "values", 2))],
    ids=["one by one", "beside the policy", "ahead"],
)
def test_a_second_signal_ends_a_run_that_waits_for_a_service(trial: Trial, overlap: bool, dies: dict[str, Any]) -> None:
    service = trial.serve(die=dies)
    process = trial.train("run", ready(service), critic={"overlap": overlap})
    assert service.wait() == -signal.SIGKILL
    wait_until(lambda: "trying again for up to 300 s" in process.stderr.read_text())
    process.send(signal.SIGINT)
    wait_until(lambda: "once more to stop at once" in process.stderr.read_text())
    process.send(signal.SIGINT)
    assert seconds_until_end(process, 130) < 60


# ---------------------------------------------------------------------------------------------------------- connections

CUTS = [
    Fault("up", 10),  # within the request's first line
    Fault("down", 1),
    Fault("up", 700),  # within a body with tokens
    Fault("down", 300),
    Fault("up", 4000),  # a few requests later, within training
    Fault("down", 1500),
    Fault("down", 200, pause_s=0.05),  # an answer that drips beyond the limit of a try
    Fault("up", 900, pause_s=0.05),
]


def test_connections_that_are_cut_or_drip_change_nothing(trial: Trial, untouched: Outcome) -> None:
    service = trial.serve()
    with CuttingProxy(ready(service), CUTS) as proxy:
        limits = {"timeout_s": 2.0, "patience_s": 60.0}
        found = trial.finish("cut", proxy.url, **merged(ONE_BY_ONE, {"critic": limits}))
        assert set(proxy.done) == set(CUTS)
    assert differences(found, untouched) == []
    assert service.end() == 0


def test_a_service_that_only_drips_ends_the_run_within_its_patience(trial: Trial) -> None:
    service = trial.serve()
    with CuttingProxy(ready(service), [Fault("down", 0, pause_s=0.2)], for_good=True) as proxy:
        process = trial.train("slow", proxy.url, critic=SHORT)
        assert seconds_until_end(process) < 90
        text = paragraph(process)
    print(text)
    assert "did not answer ready in time; got: " in text and "no answer within" in text
    assert not trial.run_folder("slow").exists()
    assert service.end() == 0


# ----------------------------------------------------------------------------------------------------------------- disk


def test_a_full_disk_is_waited_for(trial: Trial, untouched: Outcome) -> None:
    service = trial.serve(limit=1500)
    process = trial.train("full", ready(service), **ONE_BY_ONE)
    wait_until(lambda: "it answers 507" in process.stderr.read_text())
    assert "step 1 could not be written to the journal, and was not trained" in process.stderr.read_text()
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert process.wait(300) == 0, process.stderr.read_text()[-3000:]
    assert differences(trial.outcome("full"), untouched) == []
    assert service.end() == 0


def test_a_disk_that_stays_full_ends_the_run_and_harms_nothing(trial: Trial, untouched: Outcome) -> None:
    service = trial.serve(limit=20_000)
    process = trial.train("full", ready(service), **merged(ONE_BY_ONE, {"critic": SHORT}))
    assert process.wait(300) == 3
    text = paragraph(process)
    print(text)
    assert "the checkpoint of step 2 could not be written" in text and "507" in text
    assert "make room on the service's disk" in text
    service.kill()
    again = trial.serve()
    assert differences(trial.finish("full", again.address(), **ONE_BY_ONE), untouched) == []
    assert again.end() == 0


# --------------------------------------------------------------------------------------------------- who and what it is


def refused(trial: Trial, name: str, url: str, **changes: Any) -> str:
    """What a run says that cannot begin or go on; it says so within seconds."""
    process = trial.train(name, url, **merged({"critic": SHORT}, changes))
    assert seconds_until_end(process) < 60
    text = " ".join(paragraph(process).split())
    print(text)
    return text


def test_a_wrong_token_ends_the_run_at_once(trial: Trial) -> None:
    service = trial.serve(serve={"token_env": "SERVICE_TOKEN"})
    url = ready(service)
    for variable in ("WRONG_TOKEN", None):
        text = refused(trial, "refused", url, critic={"token_env": variable, "patience_s": 60.0})
        assert "the token is missing or another" in text and "hint: set token_env" in text
        assert TOKEN not in text and TOKEN[::-1] not in text
    assert not trial.run_folder("refused").exists()
    trial.finish("welcome", url, critic={"token_env": "SERVICE_TOKEN"}, run={"steps": 1})
    assert service.end() == 0


def test_values_that_are_no_numbers_end_the_run_with_the_reason(trial: Trial) -> None:
    init = broken_model(trial.folder / "broken", model=trial.toy / "toy")
    trial = replace(trial, sections={"critic": {"init": init}})
    service = trial.serve()
    text = refused(trial, "run", ready(service))
    assert "values are not finite" in text and "hint: " in text
    assert service.end() == 0


def test_another_critic_than_before_ends_the_run_at_once(trial: Trial) -> None:
    others: dict[str, dict[str, Any]] = {
        "is not as it was when the run began; got: optim.critic_lr: 0.5, not 0.003": {"optim": {"critic_lr": 0.5}},
        "the critic does not belong to the run": {"serve": {"dir": str(trial.folder / "elsewhere")}},
    }
    for number, (says, changes) in enumerate(others.items()):
        service = trial.serve(die=mine(HOST, "checkpoint", 1, after=True))
        url = ready(service)
        process = trial.train(f"run-{number}", url, **ONE_BY_ONE)
        assert service.wait() == -signal.SIGKILL
        again = trial.serve(**merged(changes, {"serve": {"port": int(url.rpartition(":")[2])}}))
        assert process.wait(300) == 3
        assert says in paragraph(process), paragraph(process)
        assert again.end() == 0


def another_row(path: str, body: bytes) -> bytes:
    """Fewer rows than were asked for; of one row, another one."""
    if path != "/v1/infer":
        return body
    full = Inferred.unpack(body)
    assert full.values is not None and full.after is not None
    if len(full.ids) == 1:
        return replace(full, ids=(full.ids[0] + 1,)).pack()
    return Inferred(full.ids[1:], full.lengths[1:], full.trained_step, full.values[1:], full.after[1:]).pack()


def narrower(path: str, body: bytes) -> bytes:
    if path != "/v1/infer":
        return body
    full = Inferred.unpack(body)
    assert full.values is not None
    return Inferred(full.ids, full.lengths, full.trained_step, np.pad(full.values, ((0, 0), (0, 1))), full.after).pack()


def no_numbers(path: str, body: bytes) -> bytes:
    if path != "/v1/infer":
        return body
    names = ("values", "after", "scores", "failed")
    header, tensors = open_frame(body, Limits(), names=names, what="the answer")
    values = np.array(tensors["values"])
    values[0, 0] = np.nan
    return pack_frame(json.loads(header), {**tensors, "values": values})


def other_step(path: str, body: bytes) -> bytes:
    return body.replace(b'"step":1', b'"step":7', 1) if path == "/v1/train" else body


def half(path: str, body: bytes) -> bytes:
    return body[: len(body) // 2] if path == "/v1/train" else body


def fewer_updates(path: str, body: bytes) -> bytes:
    if path != "/v1/train":
        return body
    result = json.loads(body)
    return json.dumps({**result, "updates": result["updates"][:-1]}).encode()


def newer(path: str, body: bytes) -> bytes:
    return body.replace(b'"protocol":1', b'"protocol":2', 1) if path == "/v1/handshake" else body


ANSWERS = {
    another_row: "the answer is for other rows",
    narrower: "values of another shape than the tokens",
    no_numbers: "not finite",
    other_step: "the answer is to another question",
    half: "cannot be read",
    fewer_updates: "did not train on every minibatch; got: 3 updates; allowed: 4",
    newer: "protocol",
}


def test_answers_that_are_not_sound_end_the_run_at_once(trial: Trial) -> None:
    service = trial.serve()
    url = ready(service)
    for tamper, says in ANSWERS.items():
        with TamperingProxy(url, tamper) as proxy:
            text = refused(trial, tamper.__name__, proxy.url, critic={"patience_s": 60.0, "timeout_s": 30.0})
            assert f"the service at {proxy.url}" in text
            assert says in text, text
    assert service.end() == 0


# ------------------------------------------------------------------------------------------------------ something else


def html(exchange: Exchange) -> None:
    reply(200, b"<html>It works!</html>")(exchange)


ELSE = {
    "a web page": (html, "the service at {url}"),
    "no such path": (reply(404, b"not here"), "404 Not Found: not here hint: is that a surefoot service?"),
    "another place": (reply(301, b"", location="http://elsewhere/"), "301 to http://elsewhere/"),
    "no HTTP": (script_raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "does not speak HTTP"),
}


def test_a_server_of_something_else_ends_the_run_at_once(trial: Trial) -> None:
    for name, (step, says) in ELSE.items():
        with ScriptedServer.of(step) as server:
            text = refused(trial, name.replace(" ", "-"), server.url, critic={"patience_s": 60.0})
            assert says.format(url=server.url) in text


def test_a_wrong_port_is_told_at_once_and_given_up_in_time(trial: Trial) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    process = trial.train("nobody", url, critic=SHORT)
    wait_until(lambda: "nothing listens there; trying again for up to 3 s" in process.stderr.read_text())
    assert process.wait(300) == 3
    assert time.monotonic() - begun < 90
    assert f"the service at {url} did not answer ready in time" in paragraph(process)
