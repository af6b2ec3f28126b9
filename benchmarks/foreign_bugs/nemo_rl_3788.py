"""The norm of gradients counts those that every rank holds as often as there are ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .models import numbers

SOURCE = "NVIDIA-NeMo/RL#3788"
MESH = {"tp": 2}
NAMES = ("norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias")
OUTPUTS = ("output.1", *(f"{kind} of {name}" for name in NAMES for kind in ("gradient", "parameter")))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(self.norm(x)))).square().mean()


def step_of(model: Any, square_of_norm: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)

    def step(x: Any) -> Any:
        loss = model(x)
        loss.backward()
        norm = square_of_norm(model).sqrt()
        for parameter in model.parameters():
            parameter.grad *= 0.5 / (norm + 1e-6)
        optimizer.step()
        return loss, norm

    return step


def single() -> Any:
    return step_of(Model(), lambda model: sum(p.grad.square().sum() for p in model.parameters()))


def parallel(mesh: Any, once: bool) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(Model(), mesh, plan)
    for name, parameter in list(model.norm.named_parameters()):
        setattr(model.norm, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Replicate()])))
    model.norm.register_forward_pre_hook(lambda module, given: distribute_tensor(given[0], mesh, [Replicate()]))
    model.norm.register_forward_hook(lambda module, given, out: out.to_local())

    def square_of_norm(model: Any) -> Any:
        cut, copied = torch.zeros(()), torch.zeros(())
        for parameter in model.parameters():
            square = parameter.grad.to_local().square().sum()
            if once and parameter.placements[0].is_replicate():
                copied = copied + square
            else:
                cut = cut + square  # wrong: also of those that are not cut
        dist.all_reduce(cut, group=mesh.get_group())
        return cut + copied

    return step_of(model, square_of_norm)


def wrong(mesh: Any) -> Any:
    return parallel(mesh, False)


def right(mesh: Any) -> Any:
    return parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return (numbers(4, 6),)
