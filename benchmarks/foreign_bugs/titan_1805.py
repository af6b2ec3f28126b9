"""Experts cut by tensor parallel take the local part of a replicated tensor; its gradient stays a part."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SOURCE = "pytorch/torchtitan#1805"
MESH = {"tp": 2}
OUTPUTS = ("gradient of up.weight", "gradient of up.bias", "gradient of down.weight", "gradient of down.bias")
EXPERTS, WIDTH, HIDDEN = 4, 8, 12


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH))

    def forward(self, x: Any, chosen: Any) -> Any:
        out = torch.zeros_like(x)
        for i in range(EXPERTS):
            rows = (chosen == i).nonzero().squeeze(1)
            out = out.index_add(0, rows, torch.relu(x[rows] @ self.w1[i]) @ self.w2[i])
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.experts = Experts()

    def forward(self, x: Any, chosen: Any) -> Any:
        x = self.down(torch.relu(self.up(x)))
        return self.experts(x, chosen).square().mean()


class CutExperts(Experts):
    """Every rank holds a part of every expert's hidden dim."""

    def __init__(self, mesh: Any, whole: Experts, grad_placements: Any) -> None:
        super().__init__()
        self.mesh, self.grad_placements = mesh, grad_placements
        self.w1 = nn.Parameter(distribute_tensor(whole.w1.detach(), mesh, [Shard(2)]))
        self.w2 = nn.Parameter(distribute_tensor(whole.w2.detach(), mesh, [Shard(1)]))

    def forward(self, x: Any, chosen: Any) -> Any:
        x = DTensor.from_local(x, self.mesh, [Replicate()])
        x = x.to_local(grad_placements=self.grad_placements)  # wrong: None means that gradients are whole
        out = torch.zeros_like(x)
        w1, w2 = self.w1.to_local(), self.w2.to_local()
        for i in range(EXPERTS):
            rows = (chosen == i).nonzero().squeeze(1)
            hidden = torch.relu(x[rows] @ w1[i])  # wrong: makes parts of x's gradient, and nobody adds them up
            out = out.index_add(0, rows, hidden @ w2[i])
        return DTensor.from_local(out, self.mesh, [Partial()]).redistribute(self.mesh, [Replicate()]).to_local()


def single() -> Any:
    return Model()


def parallel(mesh: Any, grad_placements: Any) -> Any:
    model = parallelize_module(Model(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model.experts = CutExperts(mesh, model.experts, grad_placements)
    return model


def wrong(mesh: Any) -> Any:
    return parallel(mesh, None)


def right(mesh: Any) -> Any:
    return parallel(mesh, (Partial(),))


def inputs() -> tuple[Any, ...]:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, 1, 0, 2, 3])
