"""Preferences: every shape of row to pairs, ties counted, bad rows named, judgements bound to what was judged."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from surefoot.config import RewardModelSection
from surefoot.data.judging import task_id
from surefoot.data.pair_tokens import EncodedPairs, encode_pairs
from surefoot.data.preferences import Pair, PairSet, read_preferences
from surefoot.data.transcripts import transcript
from surefoot.errors import DataError

USER = {"role": "user", "content": "hello"}
TALK = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: and?\n\nAssistant:"


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def read(path: Path, *rows: Any, chats: bool = True, **options: Any) -> PairSet:
    return read_preferences(written(path / "p.jsonl", *rows), RewardModelSection(**options), chats=chats)


def both(pair: Pair) -> tuple[Any, Any]:
    return pair.chosen, pair.rejected


# ------------------------------------------------------------------------------------------------------------- pairs


def test_every_shape_of_a_pair_is_read(tmp_path: Path) -> None:
    chat = ((USER, said("yes")), (USER, said("no")))
    found = read(
        tmp_path,
        {"prompt": [USER], "chosen": "yes", "rejected": "no"},
        {"prompt": [USER], "chosen": [said("yes")], "rejected": [said("no")]},
        {"prompt": "hello", "chosen": [USER, said("yes")], "rejected": [USER, said("no")]},
        {"chosen": [USER, said("yes")], "rejected": [USER, said("no")]},
        {"prompt": "hello ", "chosen": "yes", "rejected": "no", "margin": 2},
        {"chosen": "hello yes", "rejected": "hello no"},
    )
    assert [both(pair) for pair in found.pairs[:4]] == [chat] * 4
    assert [both(pair) for pair in found.pairs[4:]] == [("hello yes", "hello no")] * 2
    assert [pair.margin for pair in found.pairs] == [None, None, None, None, 2.0, None]
    keys = [pair.prompt_key for pair in found.pairs]
    assert keys[0] == keys[1] == keys[3] and keys[4] == keys[5] != keys[0]
    assert found.counts == {"rows": 6, "pairs": 6, "ties": 0, "skipped": 0, "spared": 0}


def test_transcripts_become_messages_where_the_model_reads_chats(tmp_path: Path) -> None:
    row = {"chosen": f"{TALK} yes\n", "rejected": f"{TALK} no"}
    (pair,) = read(tmp_path, row).pairs
    turns = ({"role": "user", "content": "hi"}, said("hello"), {"role": "user", "content": "and?"})
    assert both(pair) == ((*turns, said("yes")), (*turns, said("no")))
    for options in ({"chats": False}, {"transcripts": "text"}):
        (text,) = read(tmp_path, row, **options).pairs
        assert both(text) == (f"{TALK} yes\n", f"{TALK} no")
        # Split by prompt also where the prompt has no column of its own.
        other = read(tmp_path, {"chosen": f"{TALK} yellow", "rejected": f"{TALK} yes"}, **options).pairs[0]
        assert other.prompt_key == text.prompt_key
    plain = {"chosen": "yes", "rejected": "no"}
    assert both(read(tmp_path, plain).pairs[0]) == ("yes", "no")
    with pytest.raises(DataError, match="no transcript of the form"):
        read(tmp_path, row, plain, transcripts="chat")


def test_what_is_no_transcript_is_left_alone() -> None:
    for text in (
        "hello",
        "\n\nAssistant: hi",
        "\n\nHuman: hi",
        "\n\nHuman: hi\n\nAssistant: a\n\nHuman: b",
        "x\n\nHuman: hi",
    ):
        assert transcript(text) is None, text
    assert transcript("\n\nHuman: \n\nAssistant: a") is None, "an empty question"
    found = transcript("Human: hi\n\nAssistant:")
    assert found is not None and found[-1] == said("")


BAD: tuple[tuple[Any, str], ...] = (
    ('{"chosen"', "not JSON"),
    ({"good": "x", "bad": "y"}, "no comparison in it"),
    ({"chosen": "x"}, "no column 'rejected'"),
    ({"chosen": "x", "rejected": 7}, "rejected: messages must be a list, not int"),
    ({"chosen": "x", "rejected": [USER, said("y")]}, "one of chosen and rejected is a text"),
    ({"chosen": [USER], "rejected": [USER, said("y")]}, "chosen: the last message must be the assistant's"),
    ({"prompt": [said("x")], "chosen": "a", "rejected": "b"}, "prompt: no user turn"),
    ({"prompt": " ", "chosen": "a", "rejected": "b"}, "prompt: is empty"),
    ({"chosen": "a", "rejected": "b", "margin": "big"}, "margin: must be a number, not 'big'"),
    ({"chosen": "a", "rejected": "b", "margin": -1}, "margin: must be at least 0"),
    ({"chosen": "a\u0000", "rejected": "b"}, "chosen: holds a NUL"),
    ({"prompt": "x", "responses": ["a"], "ratings": [1]}, "responses: must be a list of at least two"),
    ({"prompt": "x", "responses": ["a", 7], "ratings": [1, 2]}, "response 2: must be a text, not int"),
    ({"responses": ["a", "b"], "ratings": [1, 2]}, "no column 'prompt'"),
    ({"prompt": "x", "responses": ["a", "b"]}, "neither choice nor ratings"),
    ({"prompt": "x", "responses": ["a", "b"], "ratings": [1]}, "ratings: must be a list of 2 numbers"),
    ({"prompt": "x", "responses": ["a", "b"], "ratings": [1, True]}, "ratings: must be numbers, not True"),
    ({"prompt": "x", "responses": ["a", "b"], "choice": 2}, "choice: must be 0 to 1 or 'tie', not 2"),
    ({"prompt": "x", "response": "a"}, "no rating"),
    ({"prompt": "x", "response": "a", "rating": "5"}, "rating: must be a number, not '5'"),
)


@pytest.mark.parametrize(("row", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_each_bad_row_is_named_with_its_reason(tmp_path: Path, row: Any, reason: str) -> None:
    rows = ({"chosen": "x", "rejected": "y"}, row, {"chosen": "v", "rejected": "w"})
    with pytest.raises(DataError) as caught:
        read(tmp_path, *rows)
    assert "1 of 3 rows" in str(caught.value) and f"p.jsonl line 2: {reason}" in str(caught.value)
    assert "reward_model.bad_rows: skip" in str(caught.value)
    found = read(tmp_path, *rows, bad_rows="skip")
    assert (found.counts["pairs"], found.counts["skipped"]) == (2, 1)


# ----------------------------------------------------------------------------------------------------------- ratings


def test_ratings_make_pairs_at_the_stated_gap(tmp_path: Path) -> None:
    row = {"prompt": "x ", "responses": ["a", "b", "c", "d"], "ratings": [1, 3.5, 3, None]}
    found = read(tmp_path, row)
    assert [(both(p), p.margin) for p in found.pairs] == [(("x b", "x a"), 2.5), (("x c", "x a"), 2.0)]
    assert found.ties == 1, "3.5 and 3 are nearer than 1"
    assert [p.id for p in found.pairs] == ["p.jsonl:1 2>1", "p.jsonl:1 3>1"]
    assert len(read(tmp_path, row, min_gap=0.5).pairs) == 3 and read(tmp_path, row, min_gap=0.5).ties == 0
    equal = {"prompt": "x", "responses": ["a", "b"], "ratings": [2, 2]}
    with pytest.raises(DataError, match=r"every comparison is a tie; got: .*1 ties in 1 rows"):
        read(tmp_path, equal, min_gap=0.0)


def test_single_ratings_meet_by_prompt_and_people_are_averaged(tmp_path: Path) -> None:
    rows = [("x", "a", 1), ("y", "a", 5), ("x", "b", 4), ("x", "a", 3), ("y", "b", 4.5)]
    found = read(tmp_path, *({"prompt": p, "response": r, "rating": g} for p, r, g in rows))
    assert [(both(p), p.margin) for p in found.pairs] == [(("xb", "xa"), 2.0)] and found.ties == 1


def test_a_choice_is_preferred_to_all_others(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {"prompt": [USER], "responses": ["a", "b", "c"], "choice": 1},
        {"prompt": [USER], "responses": ["a", "b"], "choice": "tie"},
        {"prompt": "x", "responses": ["same", "same"], "choice": 0},
    )
    assert [both(p) for p in found.pairs] == [((USER, said("b")), (USER, said(other))) for other in ("a", "c")]
    assert found.ties == 1 and {p.margin for p in found.pairs} == {None}


def test_pairs_of_a_prompt_can_be_limited(tmp_path: Path) -> None:
    row = {"prompt": "x", "responses": list("abcdef"), "ratings": [1, 3, 5, 7, 9, 11]}
    found = read(tmp_path, row, pairs_per_prompt=4)
    assert (found.counts["pairs"], found.counts["spared"]) == (4, 11)
    assert read(tmp_path, row, pairs_per_prompt=4) == found, "the draw is by seed"


def test_equal_answers_are_ties(tmp_path: Path) -> None:
    found = read(tmp_path, {"chosen": "a", "rejected": "a"}, {"chosen": "a", "rejected": "b"})
    assert (found.ties, found.counts["pairs"]) == (1, 1)


# -------------------------------------------------------------------------------------------------------- judgements


def task(prompt: Any, *responses: str) -> dict[str, Any]:
    return {"id": task_id(prompt, responses), "prompt": prompt, "responses": list(responses), "policy": "p"}


def judged(path: Path, tasks: list[dict[str, Any]], *rows: Any, **options: Any) -> PairSet:
    return read(path, *rows, tasks=written(path / "tasks.jsonl", *tasks), **options)


def test_judgements_of_several_people_become_pairs(tmp_path: Path) -> None:
    one, two, three = task([USER], "a", "b"), task("x", "a", "b", "c"), task("y", "a", "b")
    found = judged(
        tmp_path,
        [one, two, three],
        {"task": one["id"], "choice": 0, "who": "ann"},
        {"task": one["id"], "choice": 0},
        {"task": one["id"], "choice": 1},
        {"task": two["id"], "ratings": [1, 5, None]},
        {"task": two["id"], "ratings": [3, 4, None]},
        {"task": three["id"], "choice": 0},
        {"task": three["id"], "choice": 1},
    )
    assert [(both(p), p.margin) for p in found.pairs] == [
        (((USER, said("a")), (USER, said("b"))), pytest.approx(1 / 3)),
        (("xb", "xa"), 2.5),
    ]
    assert found.ties == 1 and found.counts["rows"] == 7


def test_a_judgement_counts_only_for_what_was_judged(tmp_path: Path) -> None:
    one = task("x", "a", "b")
    with pytest.raises(DataError, match=r"p\.jsonl line 2: task: 'gone' is none of the 1 tasks"):
        judged(tmp_path, [one], {"task": one["id"], "choice": 0}, {"task": "gone", "choice": 0})
    with pytest.raises(DataError, match=r"tasks\.jsonl line 1: its id is not the digest of prompt and responses"):
        judged(tmp_path, [{**one, "responses": ["a", "edited"]}], {"task": one["id"], "choice": 0})
    with pytest.raises(DataError, match="choice: must be 0 to 1"):
        judged(tmp_path, [one], {"task": one["id"], "choice": 2})


def test_a_tasks_name_is_the_digest_of_what_it_shows() -> None:
    shown = b'[[{"content":"\\u00e9","role":"user"}],["a","b"]]'
    name = task_id([{"role": "user", "content": "é"}], ["a", "b"])
    assert name == hashlib.sha256(shown).hexdigest()
    assert name == task_id([{"content": "é", "role": "user", "extra": None}], ["a", "b"])
    assert len({name, task_id("é", ["a", "b"]), task_id([{"role": "user", "content": "é"}], ["b", "a"])}) == 3


# --------------------------------------------------------------------------------------------------------- to tokens


def encoded(pairs: list[Pair], limit: int | None = None, **options: Any) -> EncodedPairs:
    def encode(text: Any) -> list[int]:
        if "!" in text:
            raise DataError("cannot be read")
        return [ord(c) for c in text]

    section = RewardModelSection(**options)
    return encode_pairs(pairs, encode, lambda ids, most: ids[-most:], section, limit=limit)


def pair(name: str, chosen: str, rejected: str) -> Pair:
    return Pair(name, chosen, rejected, 1.0, name)


PAIRS = [pair("p:1", "abc", "abd"), pair("p:2", "abcdefgh", "x"), pair("p:3", "y", "z")]


def test_pairs_with_a_long_text_are_dropped_cut_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "surefoot"):
        found = encoded(PAIRS, 5)
        cut = encoded(PAIRS, 5, overlong="cut")
    assert [p.id for p in found.pairs] == ["p:1", "p:3"] and found.dropped == ("p:2 (8)",)
    assert cut.cut == ("p:2",) and cut.pairs[1].chosen.tolist() == [ord(c) for c in "defgh"]
    assert "1 pairs with a text of more than 5 tokens dropped: p:2 (8)" in caplog.text
    assert "1 pairs had the beginning of a text cut off: p:2" in caplog.text
    with pytest.raises(DataError, match=r"1 of 3 pairs have a text longer than 5 tokens; got: p:2 \(8\)"):
        encoded(PAIRS, 5, overlong="error")
    assert found.counts["longest"] == 3 and found.counts["tokens"] == 8


def test_pairs_that_are_the_same_tokens_once_cut_say_nothing() -> None:
    found = encoded([*PAIRS, pair("p:4", "1same", "2same")], 4, overlong="cut")
    assert found.alike == ("p:4",) and len(found.pairs) == 3
    with pytest.raises(DataError, match="no pair is left"):
        encoded([pair("p:4", "1same", "2same")], 4, overlong="cut")


def test_pairs_that_cannot_be_encoded_are_named() -> None:
    with pytest.raises(
        DataError, match="2 of 5 pairs cannot be encoded: p:4: cannot be read, p:5: a text has no tokens"
    ):
        encoded([*PAIRS, pair("p:4", "a!", "b"), pair("p:5", "", "b")])
    assert len(encoded([*PAIRS, pair("p:4", "a!", "b")], bad_rows="skip").pairs) == 3
