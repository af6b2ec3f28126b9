"""The bias of a row-parallel layer is added on every rank, before the sum."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .mappings import Copy, Reduce, part
from .models import numbers

SOURCE = "huggingface/text-generation-inference#1036 (and PaddlePaddle/Paddle#35186)"
MESH = {"tp": 2}
OUTPUTS = ("output", *(f"gradient of {layer}.{kind}" for layer in ("up", "down") for kind in ("weight", "bias")))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x))).square().mean()


class Column(nn.Linear):
    def __init__(self, whole: nn.Linear, group: Any) -> None:
        super().__init__(whole.in_features, whole.out_features // group.size())
        self.group = group
        self.weight = nn.Parameter(part(whole.weight.detach(), group, 0))
        self.bias = nn.Parameter(part(whole.bias.detach(), group, 0))

    def forward(self, x: Any) -> Any:
        return super().forward(Copy.apply(x, self.group))


class Row(nn.Linear):
    def __init__(self, whole: nn.Linear, group: Any, bias_after: bool) -> None:
        super().__init__(whole.in_features // group.size(), whole.out_features)
        self.group, self.bias_after = group, bias_after
        self.weight = nn.Parameter(part(whole.weight.detach(), group, 1))
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: Any) -> Any:
        if self.bias_after:
            return Reduce.apply(F.linear(x, self.weight), self.group) + self.bias
        x = F.linear(x, self.weight, self.bias)  # wrong: as often as there are ranks
        return Reduce.apply(x, self.group)


def parallel(mesh: Any, bias_after: bool) -> Any:
    model = Mlp()
    model.up = Column(model.up, mesh.get_group())
    model.down = Row(model.down, mesh.get_group(), bias_after)
    return model


def single() -> Any:
    return Mlp()


def wrong(mesh: Any) -> Any:
    return parallel(mesh, False)


def right(mesh: Any) -> Any:
    return parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return (numbers(4, 6),)
