"""Saved activations are cut over one tensor parallel group, and gathered over another where they are recomputed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from .mappings import Copy, Reduce, average_gradients, gathered, part
from .models import numbers

SOURCE = "NVIDIA/Megatron-LM#7452, finding 4"
MESH = {"dp": 2, "tp": 2}
PLACEMENTS = {"x": (Shard(0), Replicate())}
OUTPUTS = tuple(f"gradient of {name}" for name in ("inner.weight", "inner.bias", "up.weight", "down.weight"))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 4)
        self.up = nn.Linear(4, 8, bias=False)
        self.down = nn.Linear(8, 4, bias=False)

    def block(self, x: Any) -> Any:
        return self.down(torch.tanh(self.up(x)))

    def forward(self, x: Any) -> Any:
        return self.block(self.inner(x)).square().mean()


class Checkpoint(torch.autograd.Function):
    """Keep a part of what a block is given; put it together and run the block again for its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any, block: Any, cut_over: Any, gathered_over: Any) -> Any:
        ctx.block, ctx.group, ctx.shape = block, gathered_over, x.shape
        ctx.saved = part(x.detach().flatten(), cut_over, 0)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x = gathered(ctx.saved, ctx.group, 0)  # wrong: not the group that it was cut over
        x = x.view(ctx.shape).requires_grad_()
        with torch.enable_grad():
            out = ctx.block(x)
        torch.autograd.backward(out, grad)
        return x.grad, None, None, None


class Parallel(Model):
    def __init__(self, mesh: Any, gathered_over: str) -> None:
        super().__init__()
        self.tp, self.gathered_over = mesh["tp"].get_group(), mesh[gathered_over].get_group()
        self.up.weight = nn.Parameter(part(self.up.weight.detach(), self.tp, 0))
        self.down.weight = nn.Parameter(part(self.down.weight.detach(), self.tp, 1))

    def block(self, x: Any) -> Any:
        return Reduce.apply(super().block(Copy.apply(x, self.tp)), self.tp)

    def forward(self, x: Any) -> Any:
        out = Checkpoint.apply(self.inner(x), self.block, self.tp, self.gathered_over)
        return out.square().mean()


def single() -> Any:
    model = Model()

    def step(x: Any) -> Any:
        loss = model(x)
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, gathered_over: str) -> Any:
    model = Parallel(mesh, gathered_over)

    def step(x: Any) -> Any:
        loss = model(x)
        loss.backward()
        average_gradients(model, mesh["dp"].get_group())
        return loss

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, "dp")


def right(mesh: Any) -> Any:
    return parallel(mesh, "tp")


def inputs() -> tuple[Any, ...]:
    return (numbers(4, 4),)
