"""The trainer's side of a served critic, where no service is needed to try it."""

from __future__ import annotations

import pytest

from surefoot.serving.client import ServiceClient
from surefoot.serving.remote_critic import RemoteCritic
from surefoot.serving.wire import CriticCard, Handshake, Limits


@pytest.mark.parametrize(
    ("rows", "tokens", "parts"),
    [
        (100, 1000, [(0, 6)]),
        (100, 60, [(0, 2), (2, 4), (4, 6)]),
        (100, 30, [(0, 2), (2, 3), (3, 6)]),
        (2, 1000, [(0, 2), (2, 4), (4, 6)]),
        (1, 1, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]),
    ],
)
def test_a_rollout_is_asked_about_in_as_few_parts_as_the_service_takes(
    rows: int, tokens: int, parts: list[tuple[int, int]]
) -> None:
    card = CriticCard("0" * 64, None, 10, None, "float32", 1)
    met = Handshake("test", ["critic"], card, None, None, 0, Limits(1 << 20, rows, tokens))
    critic = RemoteCritic(ServiceClient("http://127.0.0.1:1"), met, overlap=False)
    found = list(critic._within_limits([10, 10, 30, 5, 5, 10]))
    assert [(part.start, part.stop) for part in found] == parts
    assert list(critic._within_limits([])) == []
