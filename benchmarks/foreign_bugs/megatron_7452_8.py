"""Attention sinks, one for each head, count on the first rank alone where gradients are clipped by their norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .mappings import Copy, Reduce, part
from .models import numbers

SOURCE = "NVIDIA/Megatron-LM#7452, finding 8 (and #7530)"
MESH = {"tp": 2}
NAMES = ("qkv", "out", "sinks")
OUTPUTS = tuple(f"{kind} of {name}" for name in NAMES for kind in ("gradient", "parameter"))
HEADS, SIZE, WIDTH = 4, 2, 6


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Parameter(torch.randn(HEADS, WIDTH, 3 * SIZE))
        self.sinks = nn.Parameter(torch.randn(HEADS))
        self.out = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH))

    def forward(self, x: Any) -> Any:
        q, k, v = torch.einsum("sd,hde->hse", x, self.qkv).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2)
        sinks = self.sinks[:, None, None].expand(-1, scores.shape[1], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return torch.einsum("hse,hed->sd", weights @ v, self.out)


class ParallelAttention(Attention):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.group = mesh.get_group()
        for name in NAMES:
            cut = nn.Parameter(part(getattr(self, name).detach(), self.group, 0))
            cut.tensor_model_parallel = True
            setattr(self, name, cut)

    def forward(self, x: Any) -> Any:
        return Reduce.apply(super().forward(Copy.apply(x, self.group)), self.group)


def step_of(model: Any, square_of_norm: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        norm = square_of_norm(model).sqrt()
        for parameter in model.parameters():
            parameter.grad *= (1.0 / (norm + 1e-6)).clamp(max=1.0)
        optimizer.step()
        return loss

    return step


def single() -> Any:
    return step_of(Attention(), lambda model: sum(p.grad.square().sum() for p in model.parameters()))


def of_ranks(model: Any) -> Any:
    """What is not cut is the same on all ranks, and counts on the first."""
    squares = torch.zeros(())
    for parameter in model.parameters():
        if parameter.tensor_model_parallel or model.group.rank() == 0:
            squares = squares + parameter.grad.square().sum()  # wrong: without the sinks of other ranks
    dist.all_reduce(squares, group=model.group)
    return squares


def wrong(mesh: Any) -> Any:
    model = ParallelAttention(mesh)
    model.sinks.tensor_model_parallel = False
    return step_of(model, of_ranks)


def right(mesh: Any) -> Any:
    return step_of(ParallelAttention(mesh), of_ranks)


def inputs() -> tuple[Any, ...]:
    return (numbers(5, WIDTH),)
