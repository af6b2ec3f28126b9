"""The usual collectives with gradients, right ones: what the cases are written with, as in many a code base."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def summed(x: Any, group: Any) -> Any:
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


def gathered(x: Any, group: Any, dim: int) -> Any:
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=dim)


def scattered_sum(x: Any, group: Any, dim: int) -> Any:
    parts = [part.contiguous() for part in x.chunk(group.size(), dim=dim)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=group)
    return mine


def part(x: Any, group: Any, dim: int) -> Any:
    """This rank's part."""
    return x.chunk(group.size(), dim=dim)[group.rank()].contiguous()


class Copy(torch.autograd.Function):
    """Into a region where ranks differ: gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return summed(grad, ctx.group), None


class Reduce(torch.autograd.Function):
    """Out of a region where ranks differ: a sum, whose gradient is that of each part."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class Gather(torch.autograd.Function):
    """Parts of a dim put together for something that every rank does alike: its gradient is cut."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any, dim: int) -> Any:
        ctx.group, ctx.dim = group, dim
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return part(grad, ctx.group, ctx.dim), None, None


class GatherForParts(torch.autograd.Function):
    """Parts of a dim put together for a region where ranks differ: its gradient is summed and cut."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any, dim: int) -> Any:
        ctx.group, ctx.dim = group, dim
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return scattered_sum(grad, ctx.group, ctx.dim), None, None


class ReduceScatter(torch.autograd.Function):
    """A sum of which each rank keeps a part."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any, dim: int) -> Any:
        ctx.group, ctx.dim = group, dim
        return scattered_sum(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return gathered(grad, ctx.group, ctx.dim), None, None


class AllToAll(torch.autograd.Function):
    """Rows sent to other ranks, so many to each; gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: Any, sent: list[int], received: list[int], group: Any) -> Any:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return AllToAll.apply(grad, ctx.received, ctx.sent, ctx.group), None, None, None


def average_gradients(module: Any, group: Any) -> None:
    """What data parallel wrappers do after the backward pass."""
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= group.size()
