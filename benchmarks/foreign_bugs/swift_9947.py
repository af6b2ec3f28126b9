"""The score of the next word is found by an all-reduce that passes no gradient on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .mappings import Copy, Reduce, part, summed
from .models import numbers

SOURCE = "modelscope/ms-swift#9947"
MESH = {"tp": 2}
OUTPUTS = ("gradient of body.weight", "gradient of body.bias", "gradient of head.weight")


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 8, bias=False)

    def log_probs(self, x: Any, words: Any) -> Any:
        return self.head(torch.tanh(self.body(x))).log_softmax(-1).gather(1, words[:, None]).squeeze(1)

    def forward(self, x: Any, words: Any, advantage: Any) -> Any:
        return -(self.log_probs(x, words) * advantage).mean()


class ParallelPolicy(Policy):
    def __init__(self, mesh: Any, reduce: Any) -> None:
        super().__init__()
        self.group, self.reduce = mesh.get_group(), reduce
        self.head.weight = nn.Parameter(part(self.head.weight.detach(), self.group, 0))

    def log_probs(self, x: Any, words: Any) -> Any:
        scores = self.head(Copy.apply(torch.tanh(self.body(x)), self.group))
        highest = scores.detach().max(-1).values
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self.group)
        scores = scores - highest[:, None]
        total = Reduce.apply(scores.exp().sum(-1), self.group)
        here = scores.shape[-1]
        mine = words - self.group.rank() * here
        outside = (mine < 0) | (mine >= here)
        mine = mine.masked_fill(outside, 0)
        target = scores.gather(1, mine[:, None]).squeeze(1).masked_fill(outside, 0.0)
        return self.reduce(target, self.group) - total.log()


def plain(target: Any, group: Any) -> Any:
    return summed(target.detach(), group)  # wrong: whoever owns the word gets no gradient of it


def single() -> Any:
    return Policy()


def wrong(mesh: Any) -> Any:
    return ParallelPolicy(mesh, plain)


def right(mesh: Any) -> Any:
    return ParallelPolicy(mesh, Reduce.apply)


def inputs() -> tuple[Any, ...]:
    return numbers(4, 6), torch.tensor([0, 7, 3, 4]), numbers(4, seed=2)
