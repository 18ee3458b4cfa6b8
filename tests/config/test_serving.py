"""What a config may say of services: combinations that cannot work, tokens, and who can reach an address."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.config import build_config, dump_config, load_config, require, token_from
from surefoot.config.addresses import http_address, is_loopback
from surefoot.errors import ConfigError

TRAIN = {
    "run": {"steps": 3},
    "model": {"policy": "some/model"},
    "reward": {"terms": [{"name": "a", "target": "b.py:c"}]},
    "data": {"prompts": "some/data"},
}
MODEL = {"terms": [{"name": "quality", "kind": "model", "target": "some/reward"}]}
REMOTE = {"terms": [{"name": "far", "kind": "remote", "target": "http://x"}]}


def test_a_trainer_may_have_its_critic_and_its_reward_elsewhere() -> None:
    require(build_config(TRAIN | {"critic": {"url": "http://x"}, "reward": REMOTE, "serve": {}}), "train")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"critic": {"url": "http://x", "kind": "shared"}}, "has no address: it lives in the policy"),
        ({"critic": {"init": "far"}, "reward": REMOTE}, "critic.init names a remote reward"),
    ],
)
def test_what_a_trainer_cannot_have(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        require(build_config(TRAIN | tree), "train")
    assert caught.value.hint


@pytest.mark.parametrize(
    "serve",
    [
        {},
        {"roles": ["critic", "reward"], "memory": "turns"},
        {"host": "::1"},
        {"host": "0.0.0.0", "token_env": "X"},
        {"roles": ["reward"], "reward": "other/reward"},
    ],
)
def test_what_can_be_served(serve: dict[str, Any]) -> None:
    require(build_config({"model": {"policy": "m"}, "reward": MODEL, "serve": serve}), "serve")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"serve": None}, "needs a section serve"),
        ({"model": {}}, "needs model.policy"),
        ({"critic": {"kind": "shared"}}, "cannot be served: it lives in the policy"),
        ({"optim": {"schedule": "cosine"}}, "its length is not given"),
        ({"serve": {"roles": ["reward"]}}, "there is no reward model"),
        ({"serve": {"roles": ["reward"]}, "reward": REMOTE}, "there is no reward model"),
        ({"serve": {"memory": "turns"}}, "serve.memory: turns is for two models"),
        ({"serve": {"roles": ["reward"], "trunk": "one"}, "reward": MODEL}, "serve.trunk: one is for two models"),
        ({"serve": {"host": "0.0.0.0"}}, "that others can reach needs a token"),
        ({"serve": {"host": "my.host"}}, "that others can reach needs a token"),
        ({"serve": {"host": "::"}}, "that others can reach needs a token"),
    ],
)
def test_what_cannot_be_served(tree: dict[str, Any], words: str) -> None:
    base: dict[str, Any] = {"model": {"policy": "m"}, "serve": {}}
    with pytest.raises(ConfigError, match=words) as caught:
        require(build_config(base | tree), "serve")
    assert caught.value.hint


def test_no_service_and_one_with_the_defaults_are_two_things(tmp_path: Any) -> None:
    for text, there in (("run: {}", False), ("serve: null", False), ("serve: {}", True), ("serve: {port: 1}", True)):
        file = tmp_path / "c.yaml"
        file.write_text(text, encoding="utf-8")
        config = load_config(file)
        assert (config.serve is not None) is there, text
        file.write_text(dump_config(config), encoding="utf-8")
        assert load_config(file) == config


def test_addresses_are_not_taken_for_paths(tmp_path: Any) -> None:
    """``score.py`` at the end of an address is no file beside the config; the reward model's folder is one."""
    (tmp_path / "reward").mkdir()
    (tmp_path / "c.yaml").write_text(
        "reward: {terms: [{name: a, kind: remote, target: 'http://x:1/score.py'}]}\nserve: {reward: reward}\n",
        encoding="utf-8",
    )
    config = load_config(tmp_path / "c.yaml")
    assert config.reward.terms[0].target == "http://x:1/score.py"
    assert config.serve is not None
    assert config.serve.reward == str(tmp_path / "reward")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("128.0.0.1", False),
        ("", False),
    ],
)
def test_who_can_reach_an_address(host: str, own: bool) -> None:
    assert is_loopback(host) is own


@pytest.mark.parametrize("text", ["http://x", "https://x.y:1/a/b?c=d", "http://[::1]:8600", "HTTP://x"])
def test_an_address_stays_as_it_was(text: str) -> None:
    assert http_address(text) == text
    assert http_address(f"{text.partition('?')[0]}//") == text.partition("?")[0]


@pytest.mark.parametrize(
    "text", ["", "x", "x:1", "//x", "http:/x", "http://", "ftp://x", "http://x:0x1", "http://a b", "http://x/#y"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|fragment"):
        http_address(text)


def test_a_token_comes_from_the_environment_and_stands_in_no_message() -> None:
    good = "a-token-of-some-length"
    assert token_from(None, {}) is None
    assert token_from("T", {"T": f" {good}\n"}) == good
    for value in (
        None,
        "",
        "short",
        "with a space in it, and long",
        "né-né-né-né-né-né-né",
        "with\x00control-characters",
    ):
        with pytest.raises(ConfigError, match="T") as caught:
            token_from("T", {} if value is None else {"T": value})
        assert caught.value.hint
        assert not value or value not in str(caught.value)
