"""Rollout records: what is read back is what was written, and enough to recompute the advantages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.algo import gae, kl, moments, shape_rewards, whiten
from surefoot.errors import DataError, RunError, RunFolderError
from surefoot.records import FloatArray, Prompt, Rollout, Score, StopReason, Trajectory
from surefoot.training.samples import SampleSettings, read_samples, write_samples

COLUMNS = ("logp", "ref_logp", "values", "rewards", "advantages", "returns")


def tensor(array: FloatArray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array))


def make_rollout(rng: np.random.Generator, rows: int = 5) -> Rollout:
    """Rows of different lengths; the second has given tokens among its action tokens, the third was cut off."""
    trajectories = []
    for b in range(rows):
        given, chosen = int(rng.integers(1, 4)), int(rng.integers(2, 7))
        mask = [False] * given + [True] * chosen
        if b == 1:
            mask += [False, False, True]
        reason = StopReason.LENGTH if b == 2 else StopReason.EOS
        logp = [float(v) if m else 0.0 for v, m in zip(rng.normal(-2, 1, len(mask)), mask, strict=True)]
        prompt = Prompt(f"prompts.jsonl:{b}", tuple(range(given)), text=f"Say\u2028{b}")
        tokens = rng.integers(0, 90, len(mask)).tolist()
        trajectories.append(Trajectory(tokens, mask, reason, logp, prompt, response=f"naïve {b}", group=b // 2))
    return Rollout.of(trajectories)


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_advantages_are_recomputed_from_each_line_alone(tmp_path: Path, dtype: Any, whitened: bool) -> None:
    rng = np.random.default_rng(7)
    rollout = make_rollout(rng)
    shape, mask = rollout.tokens.shape, torch.from_numpy(rollout.mask)
    # Garbage off the mask, as a critic leaves it: it must not reach the record.
    logp, ref_logp, values = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    scores = [Score(float(v), terms={"length": float(v)}) for v in rng.normal(size=rollout.num_rows)]
    shaped = np.array([s.value for s in scores], dtype=dtype) - rollout.cut_off * dtype(0.5)
    bootstrap = np.where(rollout.cut_off, 0.3, 0.0).astype(dtype)
    penalty = kl(tensor(logp), tensor(ref_logp))
    rewards = shape_rewards(tensor(shaped), penalty, mask, kl_coef=0.05)
    raw, returns = gae(rewards, tensor(values), mask, gamma=0.99, lam=0.9, bootstrap=tensor(bootstrap))
    measured = moments(raw, mask)
    advantages = whiten(raw, mask, moments=measured) if whitened else raw
    arrays = (logp, ref_logp, values, rewards.numpy(), advantages.numpy(), returns.numpy())
    settings = SampleSettings(
        step=3,
        gamma=0.99,
        lam=0.9,
        kl_coef=0.05,
        whiten=measured if whitened else None,
        bootstrap=bootstrap,
        shaped_scores=shaped,
    )
    path = tmp_path / "samples" / "step-3.jsonl"
    write_samples(path, rollout, dict(zip(COLUMNS, arrays, strict=True)), scores, settings)
    records = read_samples(path)
    assert len(records) == rollout.num_rows
    for b, record in enumerate(records):
        column = {name: torch.tensor([record[name]], dtype=torch.float64) for name in COLUMNS}
        chosen = torch.tensor([record["mask"]])
        score = torch.tensor([record["score_shaped"]], dtype=torch.float64)
        again = shape_rewards(score, kl(column["logp"], column["ref_logp"]), chosen, kl_coef=record["kl_coef"])
        torch.testing.assert_close(again, column["rewards"], rtol=0, atol=1e-6)
        after = torch.tensor([record["bootstrap"]], dtype=torch.float64)
        found, back = gae(again, column["values"], chosen, gamma=record["gamma"], lam=record["lam"], bootstrap=after)
        if whitened:
            w = record["whiten"]
            found = whiten(found, chosen, moments=(w["count"], w["mean"], w["variance"]))
        length = len(record["tokens"])
        torch.testing.assert_close(found[0], advantages[b, :length].double(), rtol=0, atol=1e-6)
        torch.testing.assert_close(back[0], returns[b, :length].double(), rtol=0, atol=1e-6)


def settings(**more: Any) -> SampleSettings:
    return SampleSettings(step=1, gamma=1.0, lam=0.95, **more)


def test_numbers_come_back_exactly_and_off_the_mask_is_zero(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rollout = make_rollout(rng)
    values = rng.normal(size=rollout.tokens.shape).astype(np.float32)
    values[~rollout.mask] = np.nan
    write_samples(tmp_path / "s", rollout, {"values": values}, [Score(0.1)] * 5, settings())
    for b, record in enumerate(read_samples(tmp_path / "s")):
        length, row = int(rollout.lengths[b]), rollout.trajectories[b]
        assert record["tokens"] == list(row.tokens)
        assert record["mask"] == list(row.mask)
        assert (np.array(record["values"], np.float32) == np.where(row.mask, values[b, :length], 0)).all()
        assert record["engine_logp"] == list(row.logp or ())
        assert record["ref_logp"] is None
        assert record["score"] == 0.1


def test_a_line_says_where_it_comes_from_and_how_it_was_scored(tmp_path: Path) -> None:
    prompt = Prompt("data.jsonl:7", (5, 6), text="Hi\n")
    rows = [
        Trajectory([5, 6, 1, 2], [False, False, True, True], StopReason.LENGTH, prompt=prompt, response="yo", group=4),
        Trajectory([5, 1], [False, True], StopReason.STOP, step_rewards=[0.0, 0.5]),
    ]
    scores = [Score(0.5, terms={"a": 1.0, "b": None}), Score(None, reason="timed out", token_rewards=(0.0, 1.0))]
    mask = np.array([[False, False, True, True], [False] * 4])
    given = settings(mask=mask, shaped_scores=np.array([0.25, np.nan]), more={"temperature": 0.7})
    write_samples(tmp_path / "s", Rollout.of(rows), {"value_after": None}, scores, given)
    first, second = read_samples(tmp_path / "s")
    expected = {
        "step": 1,
        "prompt_id": "data.jsonl:7",
        "group": 4,
        "prompt": "Hi\n",
        "response": "yo",
        "stop_reason": "length",
        "score": 0.5,
        "score_failure": None,
        "score_note": None,
        "score_terms": {"a": 1.0, "b": None},
        "score_shaped": 0.25,
        "bootstrap": 0.0,
        "whiten": None,
        "kl_coef": None,
        "temperature": 0.7,
        "mask": [False, False, True, True],
    }
    assert {key: first[key] for key in expected} == expected
    assert (second["score"], second["score_shaped"], second["score_failure"]) == (None, None, "timed out")
    assert (second["prompt"], second["stop_reason"], second["token_rewards"]) == (None, "stop", [0.0, 1.0])
    # Its score failed: nothing of it was trained on, and the record says so.
    assert second["mask"] == [False, False]
    assert second["step_rewards"] == [0.0, 0.0]
    assert second["tokens"] == [5, 1]


def test_a_mean_over_a_record_counts_action_tokens_only(tmp_path: Path) -> None:
    """UX-02: log-probabilities -0.5, -1.5 and a fill value of 1.0 off the mask: 1.0 a token, 2.0 a response."""
    rollout = Rollout.of([Trajectory([9, 1, 2, 3], [False, True, True, False])])
    logp = np.array([[7.0, -0.5, -1.5, 1.0]])
    write_samples(tmp_path / "s", rollout, {"logp": logp}, [Score(0.0)], settings())
    (record,) = read_samples(tmp_path / "s")
    assert -sum(record["logp"]) == 2.0
    assert -sum(record["logp"]) / sum(record["mask"]) == 1.0


@pytest.mark.parametrize(
    ("columns", "scores", "more"),
    [
        ({"values": np.zeros((1, 3))}, 1, {}),
        ({"values": np.zeros(2)}, 1, {}),
        ({}, 2, {}),
        ({}, 1, {"bootstrap": np.zeros(2)}),
        ({}, 1, {"mask": np.zeros((1, 3), bool)}),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    tmp_path: Path, columns: dict[str, FloatArray], scores: int, more: dict[str, Any]
) -> None:
    rollout = Rollout.of([Trajectory([9, 1], [False, True])])
    with pytest.raises(DataError):
        write_samples(tmp_path / "samples" / "s", rollout, columns, [Score(0.0)] * scores, settings(**more))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_damaged_record_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such rollout record.*hint:"):
        read_samples(tmp_path / "s")
    (tmp_path / "s").write_text('{"a": NaN}\n')
    with pytest.raises(RunFolderError, match="line 1"):
        read_samples(tmp_path / "s")


def test_each_line_is_strict_json(tmp_path: Path) -> None:
    rollout = Rollout.of([Trajectory([9, 1], [False, True], response="\ud800 \u2028")])
    values = np.array([[0.0, np.inf]])
    write_samples(tmp_path / "s", rollout, {"values": values}, [Score(float("nan"))], settings())
    (line,) = (tmp_path / "s").read_text().splitlines()
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record["values"] == [0.0, None]
    assert record["score"] is None
    assert record["response"] == "\ud800 \u2028"


def test_a_record_that_cannot_be_written_ends_the_run_in_order(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rollout = Rollout.of([Trajectory([9, 1], [False, True])])
    with pytest.raises(RunError, match=r"could not be written: .*hint: put that right.*--resume"):
        write_samples(tmp_path / "file" / "s", rollout, {}, [Score(0.0)], settings())
