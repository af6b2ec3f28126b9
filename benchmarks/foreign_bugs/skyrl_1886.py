"""A gradient that is not contiguous is summed in a copy, and the copy is dropped."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .mappings import Gather, part
from .models import numbers, tokens

SOURCE = "NovaSky-AI/SkyRL#1886 (Megatron-LM's copy to the tensor parallel region)"
MESH = {"tp": 2}
OUTPUTS = ("gradient of body.weight", "gradient of body.bias")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 12, bias=False)

    def hidden(self, x: Any) -> Any:
        return torch.tanh(self.body(x)).transpose(0, 1)

    def forward(self, x: Any, labels: Any) -> Any:
        return F.cross_entropy(self.head(self.hidden(x).transpose(0, 1)).flatten(0, 1), labels.flatten())


class CopyInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        dist.all_reduce(grad.contiguous(), group=ctx.group)  # wrong: of a copy, if it is not contiguous
        return grad, None


class Parallel(Model):
    def __init__(self, mesh: Any, transpose_first: bool) -> None:
        super().__init__()
        self.group, self.transpose_first = mesh.get_group(), transpose_first
        self.head.weight = nn.Parameter(part(self.head.weight.detach(), self.group, 0))

    def forward(self, x: Any, labels: Any) -> Any:
        x = self.hidden(x)
        if self.transpose_first:
            x = CopyInPlace.apply(x.transpose(0, 1).contiguous(), self.group)
        else:
            x = CopyInPlace.apply(x, self.group).transpose(0, 1).contiguous()
        scores = Gather.apply(self.head(x), self.group, -1)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def single() -> Any:
    return Model()


def wrong(mesh: Any) -> Any:
    return Parallel(mesh, False)


def right(mesh: Any) -> Any:
    return Parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return numbers(3, 4, 6), tokens(3, 4)
