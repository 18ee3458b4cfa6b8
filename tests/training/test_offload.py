"""Moments that live elsewhere: the same steps, a part at a time, and nothing left on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefoot.assembly.model_shape import shape_of
from surefoot.assembly.roles import POLICY, roles_of
from surefoot.config import OptimSection
from surefoot.config.ineffective import ineffective
from surefoot.models.load import load_model_config
from surefoot.training import offload as subject
from surefoot.training.offload import MOMENTS, step_in_parts
from surefoot.training.optimizer import Optimizer
from tests.builders import make_config, save_gpt2

SIZES = ((3, 5), (7,), (2, 2, 2), (40, 3), (1,))


def optimizer(*, offload: bool, dtype: torch.dtype = torch.float32) -> Optimizer:
    dice = torch.Generator().manual_seed(0)
    named = {f"p{i}": nn.Parameter(torch.randn(size, generator=dice).to(dtype)) for i, size in enumerate(SIZES)}
    names = list(named)
    groups = [(0.01, {n: named[n] for n in names[:3]}), (0.003, {n: named[n] for n in names[3:]})]
    section = OptimSection(offload=offload, weight_decay=0.1, schedule="cosine")
    return Optimizer(groups, section, total_steps=9, max_skipped=2)


def train(adam: Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        dice = torch.Generator().manual_seed(step)
        for number, p in enumerate(adam.named.values()):
            gradient = torch.randn(p.shape, generator=dice).to(p.dtype)
            p.grad = None if (step + number) % 4 == 0 else gradient  # some have nothing to learn from a step
        adam.step(1.0)


def everything(adam: Optimizer) -> dict[str, torch.Tensor]:
    return {**{name: p.detach() for name, p in adam.named.items()}, **adam.state()[0]}


@pytest.mark.parametrize("part_bytes", [1, 64, 10**9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_steps_are_the_same_bit_for_bit(
    part_bytes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def in_parts(adam: Any, *, home: torch.device) -> None:
        calls.append(1)
        step_in_parts(adam, home=home, part_bytes=part_bytes)

    monkeypatch.setattr("surefoot.training.optimizer.step_in_parts", in_parts)
    plain, ours = optimizer(offload=False, dtype=dtype), optimizer(offload=True, dtype=dtype)
    train(plain, 0, 6)
    train(ours, 0, 6)
    first, second = everything(plain), everything(ours)
    assert first.keys() == second.keys() and len(calls) == 6
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(p.grad is None for p in ours.named.values())


def test_no_more_than_a_part_is_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[int] = set()
    most: list[int] = []
    fetch, put_away = subject.fetch, subject.put_away

    def fetched(state: dict[str, Any], device: torch.device) -> None:
        fetch(state, device)
        there.add(id(state))
        most.append(len(there))

    def put(state: dict[str, Any], home: torch.device) -> None:
        put_away(state, home)
        there.discard(id(state))

    monkeypatch.setattr(subject, "fetch", fetched)
    monkeypatch.setattr(subject, "put_away", put)
    adam = optimizer(offload=True)
    train(adam, 1, 3)
    there.clear()
    most.clear()
    for p in adam.named.values():
        p.grad = torch.ones_like(p)
    step_in_parts(adam.adam, home=torch.device("cpu"), part_bytes=100)
    assert not there and max(most) == 2 and len(most) == len(SIZES)


def test_moments_and_only_they_go_over_the_bus() -> None:
    elsewhere = torch.device("meta")
    state = {name: torch.ones(3) for name in MOMENTS} | {"step": torch.ones(())}
    subject.fetch(state, elsewhere)
    assert {name: state[name].device.type for name in MOMENTS} == dict.fromkeys(MOMENTS, "meta")
    assert state["step"].device.type == "cpu"
    state = {name: torch.ones(3) for name in MOMENTS} | {"step": torch.ones(())}
    subject.put_away(state, elsewhere)
    assert {name: state[name].device.type for name in MOMENTS} == dict.fromkeys(MOMENTS, "meta")
    assert state["step"].device.type == "cpu"


def test_a_checkpoint_goes_on_either_way() -> None:
    straight = optimizer(offload=False)
    train(straight, 0, 6)
    for before, after in ((True, False), (False, True)):
        first = optimizer(offload=before)
        train(first, 0, 3)
        second = optimizer(offload=after)
        for name, p in second.named.items():
            p.data.copy_(first.named[name])
        second.load(*first.state())
        train(second, 3, 6)
        assert all(torch.equal(a, everything(straight)[name]) for name, a in everything(second).items())


def test_moments_stay_at_home_when_the_rest_moves() -> None:
    for offloaded in (True, False):
        adam = optimizer(offload=offloaded)
        train(adam, 1, 2)
        adam.move(torch.device("meta"))
        states = list(adam.adam.state.values())
        kinds = {state[name].device.type for state in states for name in MOMENTS if name in state}
        assert states and kinds == {"cpu" if offloaded else "meta"}
        assert {state["step"].device.type for state in states} == {"meta"}


def test_the_plan_leaves_the_moments_out_on_a_gpu_only(tmp_path: Path) -> None:
    folder = save_gpt2(tmp_path)
    config = make_config(folder, optim={"offload": True})
    shapes = {POLICY: shape_of(load_model_config(str(folder)))}
    cpu, gpu = (roles_of(config, shapes, torch.device(name))[POLICY] for name in ("cpu", "cuda"))
    assert cpu.optimizer == 2 * cpu.gradients > 0
    assert gpu.optimizer == 0 and gpu.gradients == cpu.gradients


def test_on_a_cpu_it_is_called_idle(tmp_path: Path) -> None:
    config = make_config(tmp_path, optim={"offload": True})
    assert any(sentence.startswith("optim.offload") for sentence in ineffective(config))
    other = config.model_copy(update={"run": config.run.model_copy(update={"device": "cuda"})})
    assert not any("offload" in sentence for sentence in ineffective(other))
