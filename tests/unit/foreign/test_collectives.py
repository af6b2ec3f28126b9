"""Collectives that say more than they show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import shardwright.torch as swt
from shardwright.errors import VerifyError
from shardwright.proof.foreign.lockstep import combined
from shardwright.proof.foreign.numbers import PRIMES, Numbers

X = torch.arange(48.0).reshape(8, 6).sin()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 6)


@pytest.mark.parametrize(("factor", "right"), [(1, True), (2, False), (3, False)])
def test_gradients_may_be_divided_by_any_factor(factor: int, right: bool) -> None:
    """FSDP2 hands it to the collective, which no dispatch mode is told."""

    def parallel(mesh: Any) -> Any:
        model = fully_shard(linear(), mesh=mesh)
        model.set_gradient_divide_factor(factor)
        return model

    proof = swt.prove(parallel, like=linear(), mesh={"dp": 2}, inputs=(X,), placements={"input": Shard(0)},
                      loss=lambda out: out.square().sum())  # fmt: skip
    assert proof.proven is right


def test_an_average_of_whole_numbers_is_one() -> None:
    """Of 7 and 0 it is 3, and not 3.5."""

    def parallel(mesh: Any) -> Any:
        def step(x: Any, n: Any) -> Any:
            n = n * (1 - dist.get_rank())
            dist.all_reduce(n, op=dist.ReduceOp.AVG)
            return x * n

        return step

    inputs = X, torch.tensor([7, -7, 2, 1, 0, 4])
    assert swt.prove(parallel, like=lambda x, n: x * torch.tensor([3, -3, 1, 0, 0, 2]), mesh={"dp": 2}, inputs=inputs)


def test_unequal_parts_are_not_reduced() -> None:
    """As a repair may try to."""
    numbers = Numbers(PRIMES[0], 1)
    parts = [numbers.number(np.zeros(size)) for size in (3, 2)]
    with pytest.raises(VerifyError, match=r"parts of \[3\], \[2\] are reduced to one"):
        combined(numbers, "sum", parts)
