"""Python reward functions: what they are called with, and what becomes of what they return."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from surefoot.config.sections import RewardTerm
from surefoot.errors import ConfigError, RewardError
from surefoot.records import Prompt, Rollout, Trajectory
from surefoot.rewards import FunctionReward, load_function
from tests.rewards.conftest import Make, rollout_of

# ------------------------------------------------------------------------------------------------------ loading


def test_a_function_is_loaded_from_a_file_and_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 3.0")
    (tmp_path / "json.py").write_text("def f(prompts, completions):\n    from beside import VALUE\n    return [VALUE]")
    (tmp_path / "a_module_here.py").write_text("class K:\n    @staticmethod\n    def f(completions, **c): return [1.0]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_function(f"{tmp_path}/json.py:f")(["p"], ["c"]) == [3.0]
    assert load_function("a_module_here:K.f")(completions=["c"]) == [1.0]
    assert sys.modules["json"].__name__ == "json" and hasattr(sys.modules["json"], "dumps")


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        ("file.py", "", "must name a function"),
        (":f", "", "must name a function"),
        ("file.py:f", None, "cannot be read"),
        ("file.py:g", "def f(prompts, completions): ...", "has no 'g'.*functions there: f"),
        ("file.py:f", "f = 3", "is not a function"),
        ("file.py:f", "def f(:", "does not load.*SyntaxError"),
        ("file.py:f", "import no_such_thing", "does not load.*no_such_thing"),
        ("file.py:f", "raise SystemExit(3)", "does not load.*SystemExit"),
        ("file.py:f", "def f(): ...", "no place for the completions"),
        ("file.py:f", "def f(prompts): ...", "no place for the completions"),
        ("file.py:f", "def f(prompts, *, completion): ...", "no place for the completions"),
        ("no_such_package.module:f", "", "no module 'no_such_package.module'"),
        ("surefoot.no_such_module:f", "", "no module 'surefoot.no_such_module'"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused_at_once(
    tmp_path: Path, isolated: bool, target: str, source: str | None, message: str
) -> None:
    if source is not None:
        (tmp_path / "file.py").write_text(source)
    target = target.replace("file.py", f"{tmp_path}/file.py")
    with pytest.raises(ConfigError, match=message) as caught:
        FunctionReward(RewardTerm(name="q", target=target)) if isolated else load_function(target)
    assert caught.value.exit_code == 2 and "hint:" in str(caught.value)


def test_a_function_object_with_an_impossible_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match="no place for the completions"):
        FunctionReward(RewardTerm(name="q", target="-"), function=lambda prompts: [])


# -------------------------------------------------------------------------------------- what a function is given


@pytest.mark.parametrize(
    "signature",
    [
        "prompts, completions, **columns",
        "prompts, completions",
        "completions, **kwargs",
        "completions, prompts",  # by name, not by position
        "a, b",  # no known name: the first two places
        "a, b, /",
        "a, b, /, answer, **columns",
        "*texts",
        "*, completions, prompts",
        "prompts, completions, answer",
        "prompts, completions, answer=None, absent=None",
        "**kwargs",
    ],
)
def test_only_what_the_signature_accepts_is_passed(make: Make, signature: str) -> None:
    reward = make(
        f"""
        def f({signature}):
            found = dict(locals())
            for nested in ("kwargs", "columns"):
                found |= found.pop(nested, {{}})
            if "texts" in found or "a" in found:
                found["prompts"], found["completions"] = found.get("texts") or (found["a"], found["b"])
            assert found.get("prompts", ["p:", "p:"]) == ["p:", "p:"]
            assert found.get("answer") in (None, ["4", None])
            return [float(text) for text in found["completions"]]
        """
    )
    scores = reward.score(rollout_of(["7", "8"], [{"answer": "4"}, {}]))
    assert [(s.value, s.reason) for s in scores] == [(7.0, None), (8.0, None)]


def test_columns_ids_messages_and_stop_reasons_are_at_hand_and_the_data_cannot_replace_them(make: Make) -> None:
    reward = make(
        """
        def f(prompts, completions, **columns):
            assert columns == {
                "messages": [None, [{"role": "user", "content": "hi"}]],
                "completion_ids": [[104, 0], [6, 8]],
                "stop_reasons": ["eos", "length"],
                "level": [1, None],
            }, columns
            assert prompts == ["p:", "<user>hi"] and completions == ["h", "two"]
            return [1, 2]
        """
    )
    mine = rollout_of(["h"], [{"level": 1, "completions": "x", "completion_ids": "y"}]).trajectories[0]
    chat = Prompt("f:1", (4,), "<user>hi", ({"role": "user", "content": "hi"},))
    other = Trajectory([4, 6, 7, 8], [0, 1, 0, 1], "length", prompt=chat, response="two")
    assert [s.value for s in reward.score(Rollout.of([mine, other]))] == [1.0, 2.0]


def test_a_missing_column_is_named_before_the_function_is_called(make: Make) -> None:
    reward = make("def f(completions, answer, question, **kwargs): return [1.0]")
    assert reward.required_columns == ("answer", "question")
    with pytest.raises(RewardError, match=r"f needs what the prompts do not have: question; got: columns: .*answer"):
        reward.score(rollout_of(["a"], [{"answer": "x"}]))
    assert make("def f(completions, messages, completion_ids): ...", name="own").required_columns == ()


def test_a_coroutine_function_is_awaited(make: Make) -> None:
    reward = make("async def f(prompts, completions): return [float(len(c)) for c in completions]")
    assert [s.value for s in reward.score(rollout_of(["ab", "c"]))] == [2.0, 1.0]


# ------------------------------------------------------------------------------------- what becomes of the answer


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("returned", ["[1.0]", "[1.0, 2.0]", "[1.0, 2.0, 3.0]", "[1.0, 2.0, 3.0, 4.0]", "[]"])
def test_srv_04_only_one_value_per_completion_is_accepted(make: Make, isolated: bool, returned: str) -> None:
    values = eval(returned)
    if isolated:
        reward = make(f"def f(prompts, completions): return {returned}")
    else:
        reward = FunctionReward(RewardTerm(name="q", target="-"), function=lambda prompts, completions: values)
    if len(values) == 3:
        assert [s.value for s in reward.score(rollout_of(["a", "b", "c"]))] == values
        return
    with pytest.raises(RewardError, match=rf"reward function .* got: {len(values)} for 3 .* allowed: exactly 3"):
        reward.score(rollout_of(["a", "b", "c"]))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "must return a list.*None for 2.*is a return missing"),
        ("1.0", "must return a list.*a single number for 2"),
        ("{'a': 1.0}", "must return a list.*a single dict"),
        ("'ab'", "no reward; got: str 'ab'"),
        ("['good', 1.0]", "returned in place 0 something that is no reward; got: str 'good'"),
        ("[1.0, object()]", "in place 1 something that is no reward"),
        ("[1j, 1.0]", "no reward; got: complex"),
        ("[{'a': 'x'}, {'a': 1.0}]", "in place 0 under 'a' something that is no reward"),
        ("[{1: 1.0}, {'a': 1.0}]", "keys are not all texts"),
        ("[{'a b': 1.0}, {'a b': 1.0}]", "cannot be logged"),
        ("[1.0, [1.0, 2.0]]", "different kinds.*numbers, tokens"),
        ("[1.0, {'a': 1.0}]", "different kinds"),
        ("[1.0, []]", "different kinds.*numbers, spans"),
        ("[[[0, 1]], [[0, 1]]]", "cannot be read"),
        ("[[(0, 1, None)], []]", "cannot be read"),
        ("[{'a': [1.0]}, {'a': 1.0}]", "cannot be read"),
        ("[[1.0, 2.0, 3.0], [1.0, 2.0]]", "number of rewards for completion 0; got: 3; allowed: 2"),
        ("[[1.0, 2.0], []]", "number of rewards for completion 1; got: 0; allowed: 2"),
    ],
)
def test_an_answer_of_the_wrong_type_is_an_error_and_no_score(make: Make, returned: str, message: str) -> None:
    reward = make(f"def f(prompts, completions): return {returned}")
    with pytest.raises(RewardError, match=message):
        reward.score(rollout_of(["a", "b"]))


def test_none_and_numbers_that_are_not_finite_are_failures_with_a_reason(make: Make) -> None:
    reward = make("def f(prompts, completions): return [None, float('nan'), float('-inf'), 10**400, 0.0]")
    scores = reward.score(rollout_of(list("abcde")))
    assert [s.value for s in scores] == [None, None, None, None, 0.0]
    assert [s.reason for s in scores] == ["returned None", "returned nan", "returned -inf", "returned inf", None]
    assert [s.terms for s in scores] == [{"q": None}] * 4 + [{"q": 0.0}]


def test_an_exception_fails_every_row_of_the_call_with_its_text_and_no_row_of_the_next(make: Make) -> None:
    reward = make(
        """
        def f(prompts, completions):
            if "bad" in completions:
                raise ValueError("no such\\nunit")
            return [1.0] * len(completions)
        """
    )
    scores = reward.score(rollout_of(["a", "bad"]))
    assert [(s.value, s.reason) for s in scores] == [(None, "ValueError: no such unit (q.py:4)")] * 2
    assert [s.value for s in reward.score(rollout_of(["a", "b"]))] == [1.0, 1.0]


def test_sys_exit_inside_the_function_is_a_failure_and_not_the_end_of_the_run(make: Make) -> None:
    reward = make("import sys\ndef f(prompts, completions): sys.exit('done')")
    assert reward.score(rollout_of(["a"]))[0].reason == "SystemExit: done (q.py:2)"


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.5, 2.0], dtype=np.float32),
        torch.tensor([0.5, 2.0]),
        torch.tensor([0.5, 2.0], dtype=torch.bfloat16),
        [np.float64(0.5), torch.tensor(2)],
        (0.5, np.int64(2)),
    ],
    ids=["numpy", "torch", "bfloat16", "scalars", "tuple"],
)
def test_arrays_and_tensors_are_read_like_lists(values: object) -> None:
    reward = FunctionReward(RewardTerm(name="q", target="-"), function=lambda prompts, completions: values)
    assert [s.value for s in reward.score(rollout_of(["a", "b"]))] == [0.5, 2.0]


def test_booleans_count_as_0_and_1() -> None:
    answer = [True, np.bool_(False)]
    reward = FunctionReward(RewardTerm(name="q", target="-"), function=lambda prompts, completions: answer)
    assert [s.value for s in reward.score(rollout_of(["a", "b"]))] == [1.0, 0.0]


def test_named_terms_are_summed_and_logged_apart(make: Make) -> None:
    reward = make(
        """
        def f(prompts, completions):
            return [{"length": -1, "tone": 3.5}, {"tone": None, "length": 2}, {}, None, {"tone": float("nan")}]
        """
    )
    first, second, empty, missing, nan = reward.score(rollout_of(list("abcde")))
    assert (first.value, dict(first.terms)) == (2.5, {"q": 2.5, "q_length": -1.0, "q_tone": 3.5})
    assert (second.value, second.reason) == (None, "term 'tone' is None")
    assert second.terms == {"q": None, "q_tone": None, "q_length": 2.0}
    assert (empty.value, empty.reason) == (None, "returned no terms")
    assert (missing.value, missing.reason) == (None, "returned None")
    assert (nan.value, nan.reason) == (None, "term 'tone' is nan")


def test_one_reward_per_action_token_lands_on_the_action_tokens(make: Make) -> None:
    reward = make(
        """
        def f(prompts, completions, completion_ids):
            return [[0.25 * (n + 1) for n in range(len(ids))] for ids in completion_ids]
        """
    )
    prompt = Prompt("f:0", (5,), "p")
    holes = Trajectory([5, 6, 7, 8, 9], [0, 1, 1, 0, 1], prompt=prompt, response="x")
    score = reward.score(Rollout.of([holes, Trajectory([1, 2], [0, 1], prompt=prompt)]))[0]
    assert score.token_rewards == (0.0, 0.25, 0.5, 0.0, 0.75)
    assert (score.value, score.terms) == (0.0, {"q": 1.5})


@pytest.mark.parametrize("bad", ["float('nan')", "None"])
def test_a_token_reward_that_is_not_finite_fails_the_row(make: Make, bad: str) -> None:
    reward = make(f"def f(prompts, completions): return [[0.5, {bad}], [0.5, 0.5], None]")
    scores = reward.score(rollout_of(["a", "b", "c"]))
    assert [(s.value, s.reason) for s in scores] == [
        (None, "the reward of action token 1 is nan"),
        (0.0, None),
        (None, "returned None"),
    ]
    assert scores[1].token_rewards == (0.0, 0.0, 0.5, 0.5)


def test_spans_are_placed_by_the_tokens_that_make_the_text(make: Make) -> None:
    """Multi-byte text in tokens of single bytes: the sum placed is the sum returned."""

    def offsets(tokens: object) -> list[tuple[int, int]]:
        # "né" as n, two bytes of é, space, smile of four bytes, stop: the bytes of a character share its place.
        assert list(tokens) == [10, 11, 12, 13, 14, 15, 16, 17, 0]
        return [(0, 1), (1, 2), (1, 2), (2, 3), (3, 4), (3, 4), (3, 4), (3, 4), (4, 4)]

    reward = make(
        """
        def f(prompts, completions):
            text = completions[0]
            at = text.index("é")
            return [[(at, at + 1, 0.5), (0, len(text), -2.0), (0, 2, 0.25), (2, 3, 8)], [(0, 9, 1.0)], []]
        """,
        offsets=lambda tokens: offsets(tokens) if len(tokens) > 2 else [(0, 1), (1, 1)],
    )
    row = Trajectory([1, 10, 11, 12, 13, 14, 15, 16, 17, 0], [0] + [1] * 9, response="né \N{SLIGHTLY SMILING FACE}")
    others = rollout_of(["a", "b"]).trajectories
    placed, outside, none = reward.score(Rollout.of([row, *others]))
    assert placed.token_rewards == (0.0, 0.0, 0.0, 0.75, 8.0, 0.0, 0.0, 0.0, -2.0, 0.0)
    assert (placed.value, placed.terms) == (0.0, {"q": 6.75})
    assert (outside.value, outside.token_rewards) == (None, None)
    assert outside.reason == "the span (0, 9) is not a part of the text, which has 1 characters"
    assert (none.value, none.token_rewards, none.terms) == (0.0, (0.0,) * 4, {"q": 0.0})


def test_spans_without_a_tokenizer_are_an_error(make: Make) -> None:
    reward = make("def f(prompts, completions): return [[(0, 1, 1.0)]]")
    with pytest.raises(RewardError, match="no tokenizer is at hand"):
        reward.score(rollout_of(["a"]))


# -------------------------------------------------------------------------------------------------- repeatability

DRAWING = """
    import random
    def f(prompts, completions):
        return [random.random() + hash(c) % 1000 for c in completions]
"""


def test_a_random_reward_repeats_with_seed_and_rollout_in_another_process(make: Make) -> None:
    first, again, other = (make(DRAWING, name=n, seed=s) for n, s in (("q", 1), ("q", 1), ("q", 2)))
    a, b = rollout_of(["a", "b"]), rollout_of(["a", "c"])
    numbers = [s.value for s in first.score(a)]
    assert [s.value for s in first.score(b)] != numbers
    assert [s.value for s in first.score(a)] == numbers, "depends on what was scored before"
    assert [s.value for s in again.score(a)] == numbers
    assert [s.value for s in other.score(a)] != numbers


def test_two_terms_draw_different_numbers(make: Make) -> None:
    row = rollout_of(["a"])
    assert make(DRAWING, name="one").score(row)[0].value != make(DRAWING, name="two").score(row)[0].value


def test_numpy_is_seeded_too(make: Make) -> None:
    reward = make("import numpy\ndef f(prompts, completions): return [numpy.random.rand() for c in completions]")
    a = [s.value for s in reward.score(rollout_of(["a", "b"]))]
    assert a[0] != a[1] and a == [s.value for s in reward.score(rollout_of(["a", "b"]))]
