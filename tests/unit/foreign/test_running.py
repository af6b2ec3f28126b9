"""What a program is given and leaves behind, wherever it holds it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import shardwright.torch as swt
from shardwright.errors import SpecError
from shardwright.frontends.torch.foreign.placed import placed_by
from shardwright.frontends.torch.foreign.roots import roots_of
from shardwright.frontends.torch.foreign.world import World

X = torch.arange(48.0).reshape(8, 6).sin()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 6)


def mean_square(out: Any) -> Any:
    return out.square().mean()


@pytest.mark.parametrize("step", [False, True])
def test_a_rank_may_hold_no_row(step: bool) -> None:
    """Six rows on four ranks are 2, 2, 2, 0."""

    def trained(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def run(x: Any) -> Any:
            loss = mean_square(model(x))
            loss.backward()
            optimizer.step()

        return run if step else model

    def parallel(mesh: Any) -> Any:
        return trained(fully_shard(linear(), mesh=mesh))

    placements = {"x" if step else "input": Shard(0)}
    proof = swt.prove(parallel, like=trained(linear()), mesh={"dp": 4}, inputs=(X,), placements=placements,
                      loss=None if step else mean_square)  # fmt: skip
    assert proof, proof
    assert ("parameter of weight" in proof.certificate.shown) is step


class Trainer:
    def __init__(self, model: Any) -> None:
        self.parts = [model]

    def __call__(self, x: Any) -> Any:
        return self.parts[0](x)


def test_modules_are_found_wherever_a_step_holds_them() -> None:
    model, criterion = linear(), nn.MSELoss()

    def forward(x: Any) -> Any:
        return criterion(model(x), x)

    def step(x: Any) -> Any:
        return forward(x)

    trainer = Trainer(model)
    for program in (step, functools.partial(step), trainer, trainer.__call__, lambda x: trainer(x)):
        assert [root for _, root in roots_of(program, (X,), {})] == [model], program


def test_dims_that_are_not_there() -> None:
    def one_rank(rank: int) -> None:
        mesh = dist.init_device_mesh("cpu", (1,))
        with pytest.raises(SpecError, match="for a tensor of 0 dims"):
            placed_by((), mesh, (Shard(1),))

    World(1).run(one_rank)
