"""A cross entropy for scores that are cut is given scores that were gathered."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .mappings import Copy, Gather, Reduce, part
from .models import numbers

SOURCE = "NVIDIA/Megatron-LM#7452, finding 2"
MESH = {"tp": 2}
OUTPUTS = ("output", "gradient of body.weight", "gradient of body.bias", "gradient of head.weight")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 8, bias=False)

    def forward(self, x: Any, labels: Any) -> Any:
        return F.cross_entropy(self.head(torch.tanh(self.body(x))), labels)


def cross_entropy(scores: Any, labels: Any, group: Any) -> Any:
    """Each rank has the words from rank * n on."""
    highest = scores.detach().max(-1).values
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    scores = scores - highest[:, None]
    here = scores.shape[-1]
    mine = labels - group.rank() * here
    outside = (mine < 0) | (mine >= here)
    target = scores.gather(1, mine.masked_fill(outside, 0)[:, None]).squeeze(1).masked_fill(outside, 0.0)
    total = Reduce.apply(scores.exp().sum(-1), group)  # wrong: if they are not cut, as often as there are ranks
    return (total.log() - Reduce.apply(target, group)).mean()


class Parallel(Model):
    def __init__(self, mesh: Any, gather_output: bool) -> None:
        super().__init__()
        self.group, self.gather_output = mesh.get_group(), gather_output
        self.head.weight = nn.Parameter(part(self.head.weight.detach(), self.group, 0))

    def forward(self, x: Any, labels: Any) -> Any:
        scores = self.head(Copy.apply(torch.tanh(self.body(x)), self.group))
        if self.gather_output:
            scores = Gather.apply(scores, self.group, -1)  # wrong: the loss below takes them for a part
        return cross_entropy(scores, labels, self.group)


def single() -> Any:
    return Model()


def wrong(mesh: Any) -> Any:
    return Parallel(mesh, True)


def right(mesh: Any) -> Any:
    return Parallel(mesh, False)


def inputs() -> tuple[Any, ...]:
    return numbers(4, 6), torch.tensor([0, 7, 3, 4])
