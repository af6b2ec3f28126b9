"""What a process has once, and every rank for itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

import shardwright.torch as swt
from shardwright.frontends.torch.foreign.private import dtensor_dispatcher
from shardwright.frontends.torch.foreign.world import World

X = torch.arange(48.0).reshape(8, 6).sin()
LABELS = torch.tensor([0, 5, 3, 2, 4, 1, 1, 0])


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 6)


def test_a_parallel_loss() -> None:
    """`loss_parallel` changes what all of a process does; every rank is within it, or not, on its own."""
    whole = linear()

    def single(x: Any, labels: Any) -> Any:
        loss = F.cross_entropy(whole(x), labels)
        loss.backward()
        return loss

    def parallel(mesh: Any) -> Any:
        plan = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        model = parallelize_module(linear(), mesh, plan)

        def step(x: Any, labels: Any) -> Any:
            with loss_parallel():
                loss = F.cross_entropy(model(x), labels)
                loss.backward()
            return loss

        return step

    assert swt.prove(parallel, like=single, mesh={"tp": 2}, inputs=(X, LABELS))


def test_handlers_of_a_rank_are_its_own() -> None:
    world = World(2)
    log_softmax = torch.ops.aten._log_softmax.default
    arrived: list[int] = []

    def body(rank: int) -> bool:
        with loss_parallel():
            arrived.append(rank)
            world.wait(rank, lambda: len(arrived) == 2, "the other")
            inside = log_softmax in dtensor_dispatcher._custom_op_handlers
        return inside and log_softmax not in dtensor_dispatcher._custom_op_handlers

    assert world.run(body) == [True, True]
    assert log_softmax not in DTensor._op_dispatcher._custom_op_handlers
