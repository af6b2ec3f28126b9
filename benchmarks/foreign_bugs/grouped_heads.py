"""More ranks than key heads: two ranks hold the same one, and nobody sums its gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .mappings import Copy, Reduce, part
from .models import numbers

SOURCE = "in the manner of NVIDIA/Megatron-LM#7452: fewer key heads than ranks of tensor parallel"
MESH = {"tp": 4}
OUTPUTS = ("gradient of k", "gradient of v")
HEADS, KEY_HEADS, SIZE, WIDTH = 4, 2, 2, 6


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q = nn.Parameter(torch.randn(HEADS, WIDTH, SIZE))
        self.k = nn.Parameter(torch.randn(KEY_HEADS, WIDTH, SIZE))
        self.v = nn.Parameter(torch.randn(KEY_HEADS, WIDTH, SIZE))
        self.out = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH))

    def forward(self, x: Any) -> Any:
        q, k, v = (x @ weight for weight in (self.q, self.k, self.v))  # wrong: makes parts of two weights' gradients
        k, v = (y.repeat_interleave(len(q) // len(y), 0) for y in (k, v))  # wrong: of this rank's queries alone
        mixed = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return (mixed @ self.out).sum(0)


class Parallel(Attention):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.group = mesh.get_group()
        for name in ("q", "out"):
            setattr(self, name, nn.Parameter(part(getattr(self, name).detach(), self.group, 0)))
        copies = self.group.size() // KEY_HEADS
        pairs = [dist.new_group([copies * i + j for j in range(copies)]) for i in range(KEY_HEADS)]
        mine = self.group.rank() // copies
        self.sharing = pairs[mine]
        for name in ("k", "v"):
            setattr(self, name, nn.Parameter(getattr(self, name).detach()[mine : mine + 1].clone()))

    def forward(self, x: Any) -> Any:
        return Reduce.apply(super().forward(Copy.apply(x, self.group)), self.group)


def step_of(model: Any, finish: Any) -> Any:
    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        finish(model)
        return loss

    return step


def summed_keys(model: Any) -> None:
    for parameter in (model.k, model.v):
        dist.all_reduce(parameter.grad, group=model.sharing)


def single() -> Any:
    return step_of(Attention(), lambda model: None)


def wrong(mesh: Any) -> Any:
    return step_of(Parallel(mesh), lambda model: None)


def right(mesh: Any) -> Any:
    return step_of(Parallel(mesh), summed_keys)


def inputs() -> tuple[Any, ...]:
    return (numbers(5, WIDTH),)
