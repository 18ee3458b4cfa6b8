"""A config that says something wrong is refused: each fault once, in words, with what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.config import apply_override, build_config, load_config
from surefoot.errors import ConfigError


def refusal(text: str, tmp_path: Path, *overrides: str) -> ConfigError:
    file = tmp_path / "c.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    return caught.value


def test_ux_01_a_mistyped_and_a_misplaced_key_are_two_errors(tmp_path: Path) -> None:
    error = str(refusal("ppo:\n  clip_rang: 0.1\nlearning_rate: 1e-6\n", tmp_path))
    assert "has 2 faults" in error
    assert "unknown key 'ppo.clip_rang', it is called ppo.clip_low and ppo.clip_high here" in error
    assert "unknown key 'learning_rate', it is called optim.policy_lr here" in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: {setps: 3}", "unknown key 'run.setps', did you mean run.steps?"),
        ("ppo: {kl: {coeff: 0.1}}", "unknown key 'ppo.kl.coeff', did you mean ppo.kl.coef?"),
        ("policy: model", "unknown key 'policy', it belongs to model.policy"),
        ("rollout: {clip_low: 0.1}", "unknown key 'rollout.clip_low', it belongs to ppo.clip_low"),
        ("rollout: {seed: 4}", "it belongs to evaluate.seed or run.seed"),
        ("optim: {lr: 0.1}", "unknown key 'optim.lr', it is called optim.policy_lr here"),
        ("trainer: {steps: 4}", "unknown key 'trainer', known here: "),
        ("ppo.kl.coef: 0.1", "write it as sections: ppo: {kl: {coef: ...}}"),
        ("reward: {terms: [{name: a, target: b, wieght: 2}]}", "unknown key 'reward.terms.0.wieght', did you mean"),
        ("run: {steps: ten}", "run.steps: must be a valid integer"),
        ("run: {steps: 0}", "run.steps: must be greater than or equal to 1 (got 0)"),
        ("run: {steps: 1.5}", "run.steps: must be a valid integer"),
        ("optim: {policy_lr: .nan}", "optim.policy_lr: must be a finite number"),
        ("optim: {betas: [0.9, 2]}", "optim.betas.1: must be less than 1 (got 2)"),
        ("critic: {kind: own}", "critic.kind: must be 'separate' or 'shared' (got 'own')"),
        ("ppo: 5", "ppo: must be a section with keys of its own (got 5)"),
        ("ppo: {kl: null}", "ppo.kl: must be a section with keys of its own"),
        ("reward: {terms: [{name: a}]}", "reward.terms.0.target: is missing"),
        ("reward: {terms: [{name: mean, target: b}]}", "'mean' is a metric's name"),
        ("run: {name: ../up}", "run.name: "),
        ("rollout: {temperature: 0}", "rollout.temperature: must be greater than 0"),
        ("critic: {url: 'localhost:8600'}", "'localhost:8600' is no http or https address"),
        ("critic: {url: 'http://me:secret@x'}", "an address must hold no user and no password"),
        ("critic: {url: 'http://x:port'}", "is no address: Port could not be cast"),
        ("critic: {token_env: 'my token'}", "critic.token_env: "),
        ("reward: {terms: [{name: a, target: [b, c]}]}", "a list of addresses is for kind: remote"),
        ("reward: {terms: [{name: a, kind: remote, target: reward.py:f}]}", "is no http or https address"),
        ("reward: {terms: [{name: a, kind: remote, target: []}]}", "at least one address, and each once"),
        ("reward: {terms: [{name: a, kind: remote, target: ['http://x', 'http://x/']}]}", "and each once"),
        ("reward: {terms: [{name: a, kind: remote, target: 'http://x', rows: 0}]}", "reward.terms.0.rows: "),
        ("serve: {roles: [policy]}", "serve.roles.0: must be 'critic' or 'reward' (got 'policy')"),
        ("serve: {roles: []}", "serve.roles: [] must name critic, reward or both"),
        ("serve: {roles: [critic, critic]}", "must name critic, reward or both, each once"),
        ("serve: {port: 70000}", "serve.port: must be less than or equal to 65535 (got 70000)"),
        ("serve: {host: 'http://x'}", "serve.host: "),
    ],
)
def test_a_wrong_key_or_value_is_named(text: str, words: str, tmp_path: Path) -> None:
    error = refusal(text, tmp_path)
    assert "has 1 fault" in str(error)
    assert words in str(error)
    assert error.hint


def test_a_value_that_fits_no_alternative_is_one_fault(tmp_path: Path) -> None:
    """The library reports each alternative that it tried as a fault of its own, under a name that is no key."""
    error = str(refusal("reward: {normalise: maybe, terms: [{name: a, target: b, clip: x}]}", tmp_path))
    assert "has 2 faults" in error
    assert "reward.normalise: must be" in error
    assert "reward.terms.0.clip: must be" in error
    assert "literal" not in error
    assert "tuple[" not in error


def test_k3_as_a_reward_is_refused_with_the_reason(tmp_path: Path) -> None:
    error = refusal("ppo: {kl: {estimator: k3}}", tmp_path)
    assert "biased" in str(error)
    assert error.hint is not None
    assert "place: loss" in error.hint
    assert "hint:" not in error.what


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """YAML takes the last of two and says nothing."""
    error = str(refusal("ppo:\n  epochs: 1\n  lam: 0.9\n  epochs: 4\n", tmp_path))
    assert "'epochs' stands twice" in error
    assert "line 4" in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: {name: x", "is not valid YAML"),
        ("run:\n\tname: x", "is not valid YAML"),
        ("- run", "must hold sections"),
        ("just words", "must hold sections"),
        ("run: {name: a\x07}", "is not valid YAML"),
    ],
)
def test_what_is_no_config_is_refused(text: str, words: str, tmp_path: Path) -> None:
    error = refusal(text, tmp_path)
    assert words in str(error)
    assert error.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"run: {name: \xff\xfe}\n")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config(file)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("ppo.clip_lwo=0.1", "unknown key 'ppo.clip_lwo', did you mean ppo.clip_low?"),
        ("ppo.kl.coef", "must look like section.key=value"),
        ("=3", "must look like section.key=value"),
        ("run.steps.more=3", "'steps' in the override is not a section"),
        ("reward.terms.1.weight=3", "not the index of an entry"),
        ("reward.terms.first.weight=3", "not the index of an entry"),
        ("run.name=[", "not valid YAML"),
        ("run.steps=many", "run.steps: must be a valid integer"),
    ],
)
def test_a_wrong_override_is_named(override: str, words: str, tmp_path: Path) -> None:
    text = "run: {steps: 3}\nreward: {terms: [{name: a, target: b.py:c}]}\n"
    error = refusal(text, tmp_path, override)
    assert words in str(error)
    assert error.hint


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match="has 3 faults") as caught:
        build_config({"run": {"steps": 0, "sed": 1}, "ppo": {"lam": 2}})
    assert all(word in str(caught.value) for word in ("run.steps", "run.sed", "ppo.lam"))


def test_an_override_makes_the_sections_it_needs() -> None:
    tree: dict[str, object] = {"model": {"lora": None}}
    apply_override(tree, "model.lora.rank=4")
    apply_override(tree, "ppo.kl.coef=1e-2")
    assert build_config(tree).model.lora is not None
    assert build_config(tree).ppo.kl.coef == 0.01
