"""Sequence parallel: the last norm sees a part of the tokens, and its gradient stays that of the part."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .mappings import Gather, GatherForParts, ReduceScatter, part
from .models import numbers

SOURCE = "NVIDIA/Megatron-LM#1446"
MESH = {"tp": 2}
OUTPUTS = ("gradient of final_norm.weight", "gradient of final_norm.bias")
WIDTH, HIDDEN = 6, 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.final_norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Any, y: Any) -> Any:
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return F.mse_loss(self.final_norm(x), y)


class Parallel(Model):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.group = mesh.get_group()
        self.up.weight = nn.Parameter(part(self.up.weight.detach(), self.group, 0))
        self.down.weight = nn.Parameter(part(self.down.weight.detach(), self.group, 1))
        for parameter in self.norm.parameters():
            parameter.sequence_parallel = True

    def forward(self, x: Any, y: Any) -> Any:
        x = part(x, self.group, 0)
        hidden = self.up(GatherForParts.apply(self.norm(x), self.group, 0))
        x = x + ReduceScatter.apply(self.down(F.gelu(hidden)), self.group, 0)
        x = self.final_norm(x)  # wrong: not marked as sequence parallel
        return F.mse_loss(Gather.apply(x, self.group, 0), y)


def finish_gradients(model: Any) -> None:
    """Sum the gradients of parameters that saw a part of the tokens."""
    for parameter in model.parameters():
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad, group=model.group)


def step_of(model: Any, finish: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = model(x, y)
        loss.backward()
        finish(model)
        return loss

    return step


def single() -> Any:
    return step_of(Model(), lambda model: None)


def wrong(mesh: Any) -> Any:
    return step_of(Parallel(mesh), finish_gradients)


def right(mesh: Any) -> Any:
    model = Parallel(mesh)
    for parameter in model.final_norm.parameters():
        parameter.sequence_parallel = True
    return step_of(model, finish_gradients)


def inputs() -> tuple[Any, ...]:
    return numbers(4, WIDTH), numbers(4, WIDTH, seed=2)
