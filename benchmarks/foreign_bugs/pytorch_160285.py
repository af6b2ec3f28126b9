"""Experts see the tokens of all ranks of expert parallel, and their gradients are averaged as if of one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from .mappings import AllToAll
from .models import numbers

SOURCE = "pytorch/pytorch#160285"
MESH = {"dp": 2, "ep": 2}
PLACEMENTS = {"x": (Shard(0), Shard(0))}
OUTPUTS = ("gradient of experts.w1", "gradient of experts.w2")
EXPERTS, WIDTH, HIDDEN = 4, 6, 8


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH))

    def forward(self, x: Any) -> Any:
        """Rows in equal lots, one for each expert."""
        return torch.bmm(torch.relu(torch.bmm(x, self.w1)), self.w2)


class Model(nn.Module):
    """Token i goes to expert i modulo their number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.experts = Experts()

    def forward(self, x: Any) -> Any:
        x = self.dense(x)
        lots = x.view(-1, EXPERTS, WIDTH).transpose(0, 1)
        return self.experts(lots).transpose(0, 1).reshape(x.shape)


class ParallelExperts(nn.Module):
    def __init__(self, mesh: Any, whole: Experts) -> None:
        super().__init__()
        self.group = mesh["ep"].get_group()
        self.w1 = nn.Parameter(distribute_tensor(whole.w1.detach(), mesh["ep"], [Shard(0)]))
        self.w2 = nn.Parameter(distribute_tensor(whole.w2.detach(), mesh["ep"], [Shard(0)]))

    def forward(self, x: Any) -> Any:
        n, here, rows = self.group.size(), EXPERTS // self.group.size(), x.shape[1]
        x = AllToAll.apply(x, [here] * n, [here] * n, self.group)
        x = x.view(n, here, rows, WIDTH).transpose(0, 1).reshape(here, n * rows, WIDTH)
        x = torch.bmm(torch.relu(torch.bmm(x, self.w1.to_local())), self.w2.to_local())  # wrong: of ep ranks' tokens
        x = x.view(here, n, rows, WIDTH).transpose(0, 1).reshape(EXPERTS, rows, WIDTH)
        return AllToAll.apply(x, [here] * n, [here] * n, self.group)


def parallel(mesh: Any, divide_by: int) -> Any:
    model = Model()
    model.experts = ParallelExperts(mesh, model.experts)
    fully_shard(model.experts, mesh=mesh["dp"])
    model.experts.set_gradient_divide_factor(divide_by)
    fully_shard(model.dense, mesh=mesh._flatten("all"))
    return model


def wrong(mesh: Any) -> Any:
    return parallel(mesh, mesh["dp"].size())


def right(mesh: Any) -> Any:
    return parallel(mesh, mesh.size())


def LOSS(out: Any) -> Any:
    return out.square().mean()


def single() -> Any:
    return Model()


def inputs() -> tuple[Any, ...]:
    return (numbers(16, WIDTH),)
