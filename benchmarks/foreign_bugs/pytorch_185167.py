"""A mean that is weighted by classes, of a batch that is cut: each rank divides by its own weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module

from .models import numbers

SOURCE = "pytorch/pytorch#185167"
MESH = {"dp": 2}
PLACEMENTS = {"x": Shard(0), "labels": Shard(0)}
OUTPUTS = ("output",)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Any, labels: Any, weight: Any) -> Any:
        return F.nll_loss(self.layer(x).log_softmax(-1), labels, weight)


class Parallel(Classifier):
    def __init__(self, mesh: Any, by_hand: bool) -> None:
        super().__init__()
        self.mesh, self.by_hand = mesh, by_hand
        distribute_module(self.layer, mesh)

    def forward(self, x: Any, labels: Any, weight: Any) -> Any:
        x, labels = (DTensor.from_local(part, self.mesh, [Shard(0)]) for part in (x, labels))
        weight = DTensor.from_local(weight, self.mesh, [Replicate()])
        logs = self.layer(x).log_softmax(-1)
        if self.by_hand:
            total = F.nll_loss(logs, labels, weight, reduction="sum").redistribute(placements=[Replicate()])
            return total / F.embedding(labels, weight[:, None]).sum().redistribute(placements=[Replicate()])
        return F.nll_loss(logs, labels, weight)  # wrong: an average of the ranks' means


def single() -> Any:
    return Classifier()


def wrong(mesh: Any) -> Any:
    return Parallel(mesh, False)


def right(mesh: Any) -> Any:
    return Parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    weight = torch.tensor([0.5, 1.0, 2.0, 0.25, 4.0])
    return numbers(4, 6), torch.tensor([0, 1, 2, 4]), weight
