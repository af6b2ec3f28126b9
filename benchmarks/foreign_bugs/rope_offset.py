"""Context parallel: every rank counts the positions of its part from 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .mappings import Gather, GatherForParts, average_gradients, part
from .models import numbers

SOURCE = "in the manner of NVIDIA/Megatron-LM#7452: positions under context parallel"
MESH = {"cp": 2}
OUTPUTS = ("output", "gradient of q.weight", "gradient of k.weight", "gradient of v.weight")
WIDTH = 4


def rotated(x: Any, positions: Any) -> Any:
    angles = positions[:, None] * torch.tensor([1.0, 0.25])
    cos, sin = angles.cos(), angles.sin()
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], dim=-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Any) -> Any:
        positions = torch.arange(x.shape[0], dtype=torch.float32)
        q, k = rotated(self.q(x), positions), rotated(self.k(x), positions)
        scores = (q @ k.T).masked_fill(positions[:, None] < positions, float("-inf"))
        return (scores.softmax(-1) @ self.v(x)).square().mean()


class Parallel(Attention):
    def __init__(self, mesh: Any, offset: bool) -> None:
        super().__init__()
        self.group, self.offset = mesh.get_group(), offset

    def forward(self, x: Any) -> Any:
        everywhere = torch.arange(x.shape[0], dtype=torch.float32)
        x = part(x, self.group, 0)
        here = part(everywhere, self.group, 0)
        positions = here if self.offset else torch.arange(x.shape[0], dtype=torch.float32)  # wrong: not from 0
        q, k = rotated(self.q(x), positions), rotated(self.k(x), positions)
        k, v = (GatherForParts.apply(y, self.group, 0) for y in (k, self.v(x)))
        scores = (q @ k.T).masked_fill(here[:, None] < everywhere, float("-inf"))
        return Gather.apply(scores.softmax(-1) @ v, self.group, 0).square().mean()


def step_of(model: Any, finish: Any) -> Any:
    def step(x: Any) -> Any:
        loss = model(x)
        loss.backward()
        finish(model)
        return loss

    return step


def summed_gradients(model: Any) -> None:
    average_gradients(model, model.group)
    for parameter in model.parameters():
        parameter.grad *= model.group.size()


def single() -> Any:
    return step_of(Attention(), lambda model: None)


def wrong(mesh: Any) -> Any:
    return step_of(Parallel(mesh, False), summed_gradients)


def right(mesh: Any) -> Any:
    return step_of(Parallel(mesh, True), summed_gradients)


def inputs() -> tuple[Any, ...]:
    return (numbers(6, WIDTH),)
