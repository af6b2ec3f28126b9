"""A norm that all heads share is on every rank, its gradient of this rank's heads alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .mappings import Copy, Reduce, part
from .models import numbers

SOURCE = "NVIDIA/Megatron-LM#7452, finding 11"
MESH = {"tp": 2}
OUTPUTS = ("gradient of norm.weight",)
HEADS, SIZE, WIDTH = 4, 4, 6


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.value = nn.Parameter(torch.randn(HEADS, WIDTH, SIZE))
        self.gate = nn.Parameter(torch.randn(HEADS, WIDTH, SIZE))
        self.norm = nn.RMSNorm(SIZE, eps=1e-5)
        self.out = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH))

    def forward(self, x: Any) -> Any:
        value = torch.einsum("sd,hde->hse", x, self.value).cumsum(1)
        gate = torch.einsum("sd,hde->hse", x, self.gate)
        mixed = self.norm(value) * nn.functional.silu(gate)  # wrong: nothing sums its weight's gradient
        return torch.einsum("hse,hed->sd", mixed, self.out)


class ParallelMixer(Mixer):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.group = mesh.get_group()
        for name in ("value", "gate", "out"):
            setattr(self, name, nn.Parameter(part(getattr(self, name).detach(), self.group, 0)))

    def forward(self, x: Any) -> Any:
        return Reduce.apply(super().forward(Copy.apply(x, self.group)), self.group)


def single() -> Any:
    model = Mixer()

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, sequence_parallel: bool) -> Any:
    model = ParallelMixer(mesh)

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        if sequence_parallel:  # the only case in which anybody had thought of norms
            dist.all_reduce(model.norm.weight.grad, group=model.group)
        return loss

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, False)


def right(mesh: Any) -> Any:
    return parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return (numbers(5, WIDTH),)
