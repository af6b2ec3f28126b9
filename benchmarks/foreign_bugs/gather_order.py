"""A weight is cut for tensor parallel, then for data parallel, and gathered the other way round."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from .mappings import Gather, GatherForParts, part
from .models import numbers

SOURCE = "in the manner of NVIDIA/Megatron-LM#7452: a weight that is cut over two axes of a mesh"
MESH = {"dp": 2, "tp": 2}
PLACEMENTS = dict.fromkeys(("x", "y"), (Shard(0), Replicate()))
OUTPUTS = ("output.0", "output.1", "gradient of body.weight", "gradient of body.bias", "gradient of head")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 6)
        self.head = nn.Parameter(torch.randn(8, 6))

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.body(x)) @ self.head.T


class Parallel(Model):
    def __init__(self, mesh: Any, inner_first: bool) -> None:
        super().__init__()
        self.tp, self.dp = mesh["tp"].get_group(), mesh["dp"].get_group()
        self.inner_first = inner_first
        self.head = nn.Parameter(part(part(self.head.detach(), self.tp, 0), self.dp, 0))

    def forward(self, x: Any) -> Any:
        if self.inner_first:
            head = Gather.apply(GatherForParts.apply(self.head, self.dp, 0), self.tp, 0)
        else:
            head = Gather.apply(self.head, self.tp, 0)  # wrong: tp was cut first, and is to be gathered last
            head = GatherForParts.apply(head, self.dp, 0)  # wrong: dp was cut last, and is to be gathered first
        return torch.tanh(self.body(x)) @ head.T


def step_of(model: Any, parts: int, finish: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        out = model(x)
        loss = F.mse_loss(out, y)
        (loss / parts).backward()
        finish(model)
        return out, loss

    return step


def summed_body(model: Any) -> None:
    for parameter in model.body.parameters():
        torch.distributed.all_reduce(parameter.grad, group=model.dp)


def single() -> Any:
    return step_of(Model(), 1, lambda model: None)


def wrong(mesh: Any) -> Any:
    return step_of(Parallel(mesh, False), 2, summed_body)


def right(mesh: Any) -> Any:
    return step_of(Parallel(mesh, True), 2, summed_body)


def inputs() -> tuple[Any, ...]:
    return numbers(4, 6), numbers(4, 8, seed=2)
