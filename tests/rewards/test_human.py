"""People's ratings: found by digest, averaged, picked up when they change, and asked for where they are missing."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from surefoot.config import RewardModelSection
from surefoot.data.preferences import read_preferences
from surefoot.errors import DataError, RewardError
from surefoot.records import Prompt, Rollout, Trajectory, digest_of
from surefoot.rewards import HumanReward, Ratings
from tests.rewards.conftest import rollout_of

CHAT = [{"role": "user", "content": "Name a river."}]


def write(file: Path, *rows: Any) -> Path:
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    return file


def rating(response: str, value: float, **more: Any) -> dict[str, Any]:
    return {"digest": digest_of("p:", response), "rating": value, **more}


def values(reward: HumanReward, *responses: str) -> list[float | None]:
    return [score.value for score in reward.score(rollout_of(list(responses)))]


def test_the_digest_is_of_what_people_read() -> None:
    # printf '["p:","yes"]' | sha256sum
    assert digest_of("p:", "yes") == "c31a72031ff5c27cf7ae5673e45a9b177e0e4747bb9aacd823915603c8be361d"
    # printf '[[{"content":"Name a river.","role":"user"}],"The Nile."]' | sha256sum
    chat = digest_of(CHAT, "The Nile.")
    assert chat == "c578a62d13cf80d73e38118f84a2853300785264de270bd3c62f02c810d2768d"
    assert chat == digest_of([{"content": "Name a river.", "role": "user", "name": None}], "The Nile.")
    others = {digest_of(CHAT, "The Nile. "), digest_of("Name a river.", "The Nile."), digest_of("p:y", "es")}
    assert chat not in others and digest_of("p:", "yes") not in others and len(others) == 3
    assert len(digest_of("\ud800", "\ud800")) == 64


def test_ratings_are_averaged_and_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", rating("a", 5, judge="ana"), rating("a", 2, judge="bo"), rating("b", 1))
    reward = HumanReward("people", Ratings(str(file)), waits=False)
    first, second, third = reward.score(rollout_of(["a", "b", "c"]))
    assert (first.value, first.terms) == (3.5, {"people": 3.5, "people_count": 2.0})
    assert (second.value, second.terms) == (1.0, {"people": 1.0, "people_count": 1.0})
    assert third.terms == {"people": None, "people_count": 0.0}
    assert (third.value, third.reason, third.missing) == (None, "nobody has rated it", True)


def test_a_judge_may_change_their_mind_and_lines_without_one_are_different_people(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", rating("a", 1, judge="ana"), rating("a", 5, judge="ana"))
    write(file, rating("b", 1), rating("b", 4))
    assert values(HumanReward("h", Ratings(str(file)), waits=False), "a", "b") == [5.0, 2.5]


def test_a_line_may_hold_prompt_and_response_themselves(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", {"prompt": CHAT, "response": "The Nile.", "rating": 4})
    write(file, {"prompt": "p:", "response": "a", "rating": 2})
    reward = HumanReward("h", Ratings(str(file)), waits=False)
    prompt = Prompt("f:1", (1, 2), "<user>Name a river.</user>", tuple(CHAT))
    row = Trajectory([1, 2, 3], [False, False, True], prompt=prompt, response="The Nile.")
    assert [score.value for score in reward.score(Rollout.of([row]))] == [4.0]
    assert values(reward, "a") == [2.0]


def test_a_folder_of_files_counts_as_one(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", rating("a", 1, judge="ana"), rating("b", 3, judge="ana"))
    write(tmp_path / "2.jsonl", rating("a", 5, judge="ana"), rating("b", 4, judge="bo"))
    write(tmp_path / "notes.txt", "not a rating")
    reward = HumanReward("h", Ratings(str(tmp_path)), waits=False)
    assert values(reward, "a", "b") == [5.0, 3.5]
    write(tmp_path / "3.jsonl", rating("c", 2))
    assert values(reward, "c") == [2.0]


def test_changes_are_picked_up_between_steps_and_a_bad_line_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "r.jsonl", rating("a", 1))
    reward = HumanReward("h", Ratings(str(file)), waits=False)
    assert values(reward, "a", "b") == [1.0, None]
    write(file, rating("b", 3), {"digest": "?", "rating": 2})
    with caplog.at_level(logging.WARNING, logger="surefoot.rewards"):
        assert values(reward, "a", "b") == [1.0, 3.0]
        assert values(reward, "a", "b") == [1.0, 3.0]
    assert len(caplog.records) == 1 and f"{file}:3: digest must be 64 hexadecimal digits" in caplog.text
    with file.open("a", encoding="utf-8") as stream:  # half of a line: somebody is writing
        stream.write(json.dumps(rating("c", 4))[:-3])
    assert values(reward, "c") == [None]
    file.write_text(json.dumps(rating("c", 4)), encoding="utf-8")  # whole, though without a line end
    assert values(reward, "a", "c") == [None, 4.0]
    file.unlink()
    with pytest.raises(RewardError, match="can no longer be read"):
        values(reward, "a")


def test_half_a_line_at_the_end_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "r.jsonl", rating("a", 1))
    with file.open("a", encoding="utf-8") as stream:  # somebody is writing
        stream.write(json.dumps(rating("b", 4))[:-3])
    reward = HumanReward("h", Ratings(str(file)), waits=False)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(rating("b", 4))[-3:-1])
    with caplog.at_level(logging.WARNING, logger="surefoot.rewards"):
        assert values(reward, "a", "b") == [1.0, None]
    assert not caplog.records


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "r.jsonl:2: Expecting"),
        ("3", "r.jsonl:2: a rating is an object, not int"),
        ({"digest": "a" * 64}, "r.jsonl:2: rating must be a number, not None"),
        ({"digest": "a" * 64, "rating": True}, "rating must be a number, not True"),
        ('{"digest": "' + "a" * 64 + '", "rating": NaN}', "rating must be a number, not nan"),
        ({"digest": "a" * 64, "rating": 1, "judge": 7}, "judge must be a text, not 7"),
        ({"rating": 1}, "digest must be 64 hexadecimal digits, or prompt and response"),
        ({"prompt": "p:", "rating": 1}, "or prompt and response"),
    ],
)
def test_a_line_that_is_no_rating_is_refused_at_the_start_with_its_place(
    tmp_path: Path, row: Any, message: str
) -> None:
    file = write(tmp_path / "r.jsonl", rating("a", 1), row)
    with pytest.raises(DataError, match=message):
        Ratings(str(file))


def test_no_ratings_at_all_are_an_empty_file_not_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no ratings"):
        Ratings(str(tmp_path / "gone.jsonl"))
    (tmp_path / "r.jsonl").touch()
    assert values(HumanReward("h", Ratings(str(tmp_path / "r.jsonl")), waits=False), "a") == [None]


def tasks(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_what_waits_is_written_once_as_a_task_that_can_be_rated(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", rating("a", 1))
    asked = tmp_path / "to_judge.jsonl"
    reward = HumanReward("h", Ratings(str(file)), waits=True)
    assert [s.reason for s in reward.score(rollout_of(["b"]))] == ["waits for a judgement"]  # nowhere to write to
    reward.ask_in(asked)
    reward.score(rollout_of(["a", "b", "b"]))
    reward.score(rollout_of(["b", "c"]))
    assert tasks(asked) == [
        {"digest": digest_of("p:", text), "term": "h", "prompt": "p:", "response": text} for text in ("b", "c")
    ]
    # A task with a rating added is a line of ratings, and of a reward model's preferences.
    write(file, {**tasks(asked)[0], "rating": 3})
    assert values(reward, "b", "c") == [3.0, None]
    rated = write(
        tmp_path / "rated.jsonl",
        *({**task, "rating": points} for task, points in zip(tasks(asked), (3, 5), strict=True)),
    )
    found = read_preferences(str(rated), RewardModelSection(), chats=False)
    assert [(pair.chosen, pair.rejected, pair.margin) for pair in found.pairs] == [("p:c", "p:b", 2.0)]


def test_a_resumed_run_asks_for_nothing_twice_and_mends_a_torn_line(tmp_path: Path) -> None:
    file, asked = write(tmp_path / "r.jsonl", rating("a", 1)), tmp_path / "to_judge.jsonl"
    for responses in (["b"], ["b", "c"]):
        reward = HumanReward("h", Ratings(str(file)), waits=True)
        reward.ask_in(asked)
        reward.score(rollout_of(responses))
        assert [task["response"] for task in tasks(asked)] == responses
        with asked.open("a") as stream:
            stream.write('{"digest": "torn')
    reward = HumanReward("h", Ratings(str(file)), waits=True)
    reward.ask_in(asked)
    assert [task["response"] for task in tasks(asked)] == ["b", "c"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_tasks_that_cannot_be_written_stop_the_run(tmp_path: Path) -> None:
    reward = HumanReward("h", Ratings(str(write(tmp_path / "r.jsonl"))), waits=True)
    (tmp_path / "locked").mkdir(mode=0o500)
    reward.ask_in(tmp_path / "locked" / "to_judge.jsonl")
    with pytest.raises(RewardError, match="judging tasks cannot be written"):
        reward.score(rollout_of(["b"]))


def test_those_who_do_not_wait_ask_for_nothing(tmp_path: Path) -> None:
    reward = HumanReward("h", Ratings(str(write(tmp_path / "r.jsonl"))), waits=False)
    reward.ask_in(tmp_path / "to_judge.jsonl")
    reward.score(rollout_of(["b"]))
    assert not (tmp_path / "to_judge.jsonl").exists()
