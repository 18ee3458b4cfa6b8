"""The native engine: what it samples is the policy's, what it records is what was sampled."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.envs import SingleTurn
from surefoot.errors import ConfigError, RolloutError
from surefoot.models.policy import CausalPolicy, Lora, load_policy
from surefoot.models.scoring import BatchPlan
from surefoot.protocols import Turn
from surefoot.records import Prompt, Rollout, StopReason
from surefoot.rollout import NativeEngine, Sampling, engine_native
from tests.models.oracle_models import NAMES, altered, folder, oracle, reading
from tests.rollout.made_engines import PROMPTS, Alphabet, Script

SEED = (3, 1)


def sample(
    policy: CausalPolicy,
    sampling: Sampling,
    *,
    prompts: list[Prompt] = PROMPTS,
    seed: tuple[int, int] = SEED,
    **more: Any,
) -> Rollout:
    return NativeEngine(policy, sampling, **more).rollout(prompts, SingleTurn(), seed=seed)


def responses(rollout: Rollout) -> list[tuple[int, ...]]:
    return [tuple(t for t, m in zip(r.tokens, r.mask, strict=True) if m) for r in rollout.trajectories]


def plain(name: str = "llama", **options: Any) -> CausalPolicy:
    return reading(name, BatchPlan(), **options)


# -------------------------------------------------------------------------------------------- what the ratio stands on


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", NAMES)
def test_behaviour_log_probabilities_are_the_trainers(name: str, temperature: float) -> None:
    """Under the same temperature, window and soft caps; responses are longer than Gemma 2's window of 6."""
    for plan in (BatchPlan(packing="on"), BatchPlan(packing="off")):
        policy = reading(name, plan, temperature=temperature)
        rollout = sample(policy, Sampling(20, stop_ids=frozenset({1, 2, 3})), samples_per_prompt=3)
        assert max(map(len, responses(rollout))) == 20 and rollout.logp is not None
        np.testing.assert_allclose(rollout.logp, policy.evaluate(rollout).logp, atol=1e-4)
        assert (rollout.logp[rollout.mask] < 0).all() and not rollout.logp[~rollout.mask].any()
        assert rollout.info["temperature"] == temperature


@pytest.mark.parametrize("lora", [None, Lora(4)], ids=["full", "lora"])
def test_weights_are_the_policys_own_as_they_are_now(lora: Lora | None) -> None:
    """CKP-12: nothing stale is sampled from after an update."""
    policy = load_policy(folder("llama"), lora=lora)
    engine = NativeEngine(policy, Sampling(8))
    before = engine.rollout(PROMPTS, SingleTurn(), seed=SEED)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    engine.publish(policy, version=7)
    after = engine.rollout(PROMPTS, SingleTurn(), seed=SEED)
    assert responses(before) != responses(after) and after.logp is not None
    np.testing.assert_allclose(after.logp, policy.evaluate(after).logp, atol=1e-4)
    assert (before.info["version"], after.info["version"]) == (0, 7)
    with pytest.raises(RolloutError):
        engine.publish(load_policy(folder("llama")), version=8)


def test_banned_ids_are_banned_in_sampling_and_scoring_alike() -> None:
    """TOK-08"""
    policy = load_policy(folder("llama"), banned=tuple(range(100)))
    rollout = sample(policy, Sampling(12), samples_per_prompt=4)
    assert all(token >= 100 for response in responses(rollout) for token in response)
    assert rollout.logp is not None
    np.testing.assert_allclose(rollout.logp, policy.evaluate(rollout).logp, atol=1e-4)
    free = plain().evaluate(rollout).logp
    assert (rollout.logp - free)[rollout.mask].min() > 0


def test_generation_settings_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    """ALG-15: neutral values, stored with the rollout."""
    path = altered("llama", tmp_path / "m")
    settings = {"do_sample": True, "temperature": 0.1, "top_p": 0.1, "top_k": 1, "repetition_penalty": 5.0}
    (path / "generation_config.json").write_text(json.dumps(settings | {"max_new_tokens": 2, "min_new_tokens": 2}))
    rollout = sample(load_policy(path), Sampling(10))
    assert responses(rollout) == responses(sample(plain(), Sampling(10)))
    facts = {"engine": "native", "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 10}
    assert facts.items() <= rollout.info.items()


@pytest.mark.parametrize("name", NAMES)
def test_greedy_responses_are_those_of_the_formulas(name: str) -> None:
    case = oracle(f"model_{name}")["batches"]["plain"]
    rows = zip(case["inputs"]["prompt_ids"], case["inputs"]["prompt_mask"], strict=True)
    prompts = [Prompt(str(i), tuple(t for t, m in zip(*row, strict=True) if m)) for i, row in enumerate(rows)]
    rollout = sample(plain(name), Sampling(8, greedy=True), prompts=prompts)
    compared = 0
    for found, expected, margin in zip(responses(rollout), case["greedy_tokens"], case["greedy_margin"], strict=True):
        if margin >= 1e-3:
            assert list(found) == expected
            compared += 1
    assert compared >= 3
    assert rollout.info["temperature"] == 0.0


# --------------------------------------------------------------------------------------------------------------- seeds


def test_seed_and_step_decide_every_token() -> None:
    """DAT-06"""
    policy = plain()
    first = responses(sample(policy, Sampling(10), samples_per_prompt=3))
    assert responses(sample(policy, Sampling(10), samples_per_prompt=3)) == first
    others = [
        responses(sample(policy, Sampling(10), samples_per_prompt=3, seed=(4, 1))),
        responses(sample(policy, Sampling(10), samples_per_prompt=3, seed=(3, 2))),
        responses(sample(policy, Sampling(10), samples_per_prompt=3, purpose="evaluate")),
    ]
    for other in others:
        assert all(a != b for a, b in zip(first, other, strict=True))
    assert len(set(first)) == len(first)


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = responses(sample(plain(), Sampling(6)))
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    torch.manual_seed(2)
    torch.set_rng_state(state)
    assert responses(sample(plain(), Sampling(6))) == first
    assert torch.equal(torch.get_rng_state(), state) and (np.random.get_state()[1] == numpy_state).all()


def test_samples_of_a_prompt_stand_together_and_share_a_group() -> None:
    """DAT-04"""
    rollout = sample(plain(), Sampling(4), samples_per_prompt=3)
    assert [t.group for t in rollout.trajectories] == [g for g in range(4) for _ in range(3)]
    assert [t.prompt.id for t in rollout.trajectories if t.prompt] == [p.id for p in PROMPTS for _ in range(3)]


def test_a_rows_tokens_do_not_depend_on_the_others_or_on_rows_at_once() -> None:
    policy = plain(dtype="float64")
    whole = responses(sample(policy, Sampling(12, stop_ids=frozenset(range(12))), samples_per_prompt=2))
    for rows in (1, 3):
        sampling = Sampling(12, stop_ids=frozenset(range(12)), max_rows=rows)
        assert responses(sample(policy, sampling, samples_per_prompt=2)) == whole
    other = [PROMPTS[0], Prompt("x", (44,) * 9), PROMPTS[2], Prompt("y", (8,))]
    mixed = responses(sample(policy, Sampling(12, stop_ids=frozenset(range(12))), prompts=other, samples_per_prompt=2))
    assert [mixed[i] for i in (0, 1, 4, 5)] == [whole[i] for i in (0, 1, 4, 5)]


# ------------------------------------------------------------------------------------------------- how responses end


def test_reasons_and_texts_of_the_ends() -> None:
    text = Alphabet()
    free = responses(sample(plain(), Sampling(10)))
    stop_id, stop_string = free[1][4], text.decode(free[2])[2:4]
    sampling = Sampling(10, stop_ids=frozenset({stop_id}), stop_strings=(stop_string,))
    rollout = sample(plain(), sampling, text=text)
    for trajectory, tokens, whole in zip(rollout.trajectories, responses(rollout), free, strict=True):
        assert whole[: len(tokens)] == tokens
        if trajectory.stop_reason is StopReason.EOS:
            assert tokens[-1] == stop_id and trajectory.response == text.decode(tokens[:-1])
        else:
            assert trajectory.response == text.decode(tokens)
        if trajectory.stop_reason is StopReason.STOP:
            assert stop_string in trajectory.response
        if trajectory.stop_reason is StopReason.LENGTH:
            assert len(tokens) == 10
    assert {StopReason.EOS, StopReason.STOP} <= set(rollout.stop_reasons)
    np.testing.assert_array_equal(rollout.cut_off, [r is StopReason.LENGTH for r in rollout.stop_reasons])


@pytest.mark.parametrize("limit", [1, 2])
def test_the_shortest_limits(limit: int) -> None:
    rollout = sample(plain(), Sampling(limit), prompts=PROMPTS[:1])
    assert rollout.tokens.shape == (1, 1 + limit) and rollout.mask.tolist() == [[False] + [True] * limit]
    np.testing.assert_allclose(rollout.logp, plain().evaluate(rollout).logp, atol=1e-4)


def test_responses_end_where_the_context_does_and_full_prompts_are_refused() -> None:
    policy = plain("gpt2")
    prompts = [Prompt("long", (5,) * 45), Prompt("short", (6,))]
    rollout = sample(policy, Sampling(100), prompts=prompts)
    assert rollout.lengths.tolist() == [48, 48]
    assert rollout.stop_reasons == (StopReason.LENGTH,) * 2
    np.testing.assert_allclose(rollout.logp, policy.evaluate(rollout).logp, atol=1e-4)
    with pytest.raises(RolloutError, match=r"prompt full .*48.*data\.max_prompt_tokens"):
        sample(policy, Sampling(4), prompts=[*prompts, Prompt("full", (5,) * 48)])


def test_what_cannot_work_is_refused_when_the_engine_is_made() -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        NativeEngine(plain(), Sampling(4, stop_strings=("x",)))
    with pytest.raises(ConfigError, match="samples_per_prompt"):
        NativeEngine(plain(), Sampling(4), samples_per_prompt=0)


# ---------------------------------------------------------------------------------------------------------- many turns


class TwoTurns:
    """Gives three tokens after the first response and ends after the second."""

    given = (120, 121, 122)

    def respond(self, prompt: Prompt, tokens: Sequence[int], mask: Sequence[bool]) -> Turn:
        """By the number of responses so far."""
        first = sum(b and not a for a, b in itertools.pairwise(mask)) == 1
        return Turn(self.given, done=False, reward=0.5) if first else Turn(done=True, reward=-1.0)


@pytest.mark.parametrize("name", NAMES)
def test_given_tokens_are_not_trained_and_every_array_stays_aligned(name: str) -> None:
    """AGT-01, AGT-04, AGT-06: ids go from turn to turn as they are; what the loop adds is given."""
    policy, stop = plain(name), frozenset(range(1, 15))
    engine = NativeEngine(policy, Sampling(7, stop_ids=stop), Alphabet(), samples_per_prompt=2)
    rollout = engine.rollout(PROMPTS, TwoTurns(), seed=SEED)
    assert rollout.logp is not None and rollout.step_rewards is not None
    np.testing.assert_allclose(rollout.logp, policy.evaluate(rollout).logp, atol=1e-4)
    lengths = set()
    for row, trajectory in enumerate(rollout.trajectories):
        assert trajectory.prompt is not None
        tokens, mask, start = list(trajectory.tokens), list(trajectory.mask), len(trajectory.prompt.tokens)
        segments = [(acted, len(list(run))) for acted, run in itertools.groupby(mask)]
        assert [acted for acted, _ in segments] == [False, True, False, True]
        assert segments[0][1] == start and segments[2][1] == 3
        first, second = start + segments[1][1], len(tokens)
        assert tuple(tokens[first : first + 3]) == TwoTurns.given
        for begin, end in ((start, first), (first + 3, second)):
            assert tokens[end - 1] in stop or end - begin == 7
            assert not stop & set(tokens[begin : end - 1])
            lengths.add(end - begin)
        expected = np.zeros(rollout.tokens.shape[1])
        expected[[first - 1, second - 1]] = 0.5, -1.0
        np.testing.assert_array_equal(rollout.step_rewards[row], expected)
    assert len(lengths) > 2


def play(turns: list[Turn], prompt: Prompt = PROMPTS[3], limit: int = 5, name: str = "llama", **more: Any) -> Rollout:
    """One episode against a script."""
    engine = NativeEngine(plain(name), Sampling(limit, **more), Alphabet())
    return engine.rollout([prompt], Script(turns), seed=SEED)


def test_an_episode_of_three_turns_token_by_token() -> None:
    given = ((120, 121, 122), (7,))
    script = Script([Turn(given[0], False, 0.5), Turn(given[1], False), Turn((2,), True, 2.0, StopReason.ENVIRONMENT)])
    policy = plain()
    rollout = NativeEngine(policy, Sampling(4), Alphabet()).rollout(PROMPTS[3:], script, seed=SEED)
    trajectory = rollout.trajectories[0]
    expected_mask = [0] * 3 + [1] * 4 + [0] * 3 + [1] * 4 + [0] + [1] * 4 + [0]
    assert [int(m) for m in trajectory.mask] == expected_mask
    tokens = list(trajectory.tokens)
    assert tokens[:3] == [25, 87, 87] and tokens[7:10] == [120, 121, 122] and tokens[14] == 7 and tokens[19] == 2
    for turn, (_, seen, mask) in enumerate(script.asked):
        end = (7, 14, 19)[turn]
        assert seen == tokens[:end] and [int(m) for m in mask] == expected_mask[:end]
    assert rollout.step_rewards is not None and rollout.logp is not None
    rewards = {int(i): float(rollout.step_rewards[0, i]) for i in np.nonzero(rollout.step_rewards[0])[0]}
    assert rewards == {6: 0.5, 18: 2.0}
    assert trajectory.stop_reason is StopReason.ENVIRONMENT
    np.testing.assert_allclose(rollout.logp, policy.evaluate(rollout).logp, atol=1e-4)
    assert trajectory.response == Alphabet().decode([t for t, m in zip(tokens, expected_mask, strict=True) if m])


def test_turns_draw_other_numbers() -> None:
    """The same state must not be answered in the same way in every turn by the seed alone."""
    rollout = play([Turn((9,), False)] * 3 + [Turn()], prompt=Prompt("p", (9,)), limit=1)
    engine = NativeEngine(plain(), Sampling(1))
    draws = [engine._uniform(SEED, 0, turn).tolist() for turn in range(3)]
    assert len({tuple(d) for d in draws}) == 3
    assert rollout.mask.sum() == 4


def test_rows_that_are_over_leave_the_others_alone() -> None:
    """Episodes of one, two and three turns in one rollout."""

    class Longer:
        def respond(self, prompt: Prompt, tokens: Any, mask: Any) -> Turn:
            turns = sum(b and not a for a, b in itertools.pairwise(mask))
            return Turn() if turns > int(prompt.id) else Turn((5, 6), False)

    policy = plain()
    rollout = NativeEngine(policy, Sampling(3)).rollout(PROMPTS[:3], Longer(), seed=SEED)
    assert rollout.mask.sum(axis=1).tolist() == [3, 6, 9]
    assert rollout.logp is not None
    np.testing.assert_allclose(rollout.logp, policy.evaluate(rollout).logp, atol=1e-4)


def test_the_policys_own_end_stands_unless_the_environment_gives_a_reason() -> None:
    assert play([Turn()]).stop_reasons == (StopReason.LENGTH,)
    every = frozenset(range(128))
    assert play([Turn()], stop_ids=every).stop_reasons == (StopReason.EOS,)
    assert play([Turn(stop_reason=StopReason.ENVIRONMENT)], stop_ids=every).stop_reasons == (StopReason.ENVIRONMENT,)


def test_an_episode_whose_turns_run_out_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the policy's last token was."""
    monkeypatch.setattr(engine_native, "MAX_TURNS", 3)
    rollout = play([Turn((5,), False)] * 3, limit=1, stop_ids=frozenset(range(128)))
    assert rollout.mask.sum() == 3
    assert rollout.stop_reasons == (StopReason.LENGTH,)


@pytest.mark.parametrize("count", [42, 43, 44, 60])
def test_given_tokens_that_fill_the_context_cut_the_episode_off(count: int) -> None:
    """The environment is not asked about a response that there was no room for."""
    script = Script([Turn((5,) * count, False), Turn(stop_reason=StopReason.ENVIRONMENT)])
    engine = NativeEngine(plain("gpt2"), Sampling(4))
    rollout = engine.rollout([Prompt("p", (9,))], script, seed=SEED)
    left = max(0, 48 - 5 - count)
    assert rollout.mask.sum() == 4 + left
    assert len(script.asked) == 1 + (left > 0)
    assert rollout.stop_reasons == (StopReason.ENVIRONMENT if left else StopReason.LENGTH,)


def test_an_environment_that_breaks_its_contract_is_named() -> None:
    with pytest.raises(RolloutError, match="prompt 3"):
        play([Turn((), done=False)])


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(RolloutError, match="finite"):
        play([Turn(reward=reward)])
