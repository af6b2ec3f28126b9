"""Collectives with gradients, as people write them by hand: each is the identity where there is no axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

STYLES = ("lists", "tensors", "functional")
"""Which of PyTorch's calls are made: with lists of tensors, into one tensor, or functional ones."""


@dataclass(frozen=True)
class Axis:
    """An axis of the mesh, as one rank sees it."""

    group: Any
    size: int
    rank: int
    style: str = "tensors"

    @classmethod
    def of(cls, mesh: Any, name: str, style: str = "tensors") -> Axis:
        return cls(mesh.get_group(name), mesh[name].size(), mesh.get_local_rank(name), style)

    def sizes(self, count: int, unit: int = 1) -> list[int]:
        """Parts as equal as they can be, in units: 7 in 3 is 3, 2, 2."""
        whole, more = divmod(count // unit, self.size)
        return [(whole + (i < more)) * unit for i in range(self.size)]

    def mine(self, x: Any, dim: int, unit: int = 1) -> Any:
        return x.split(self.sizes(x.shape[dim], unit), dim)[self.rank]

    def global_rank(self, i: int) -> int:
        return dist.get_global_rank(self.group, i % self.size)


def all_reduce(x: Any, axis: Axis, op: str = "sum") -> Any:
    if axis.style == "functional":
        return functional.wait_tensor(functional.all_reduce(x, op, axis.group))
    x = x.clone()
    dist.all_reduce(x, getattr(dist.ReduceOp, op.upper()), group=axis.group)
    return x


def all_gather(x: Any, axis: Axis, dim: int, sizes: Sequence[int]) -> Any:
    """Parts of these sizes, side by side."""
    even = len(set(sizes)) == 1
    if even and axis.style == "functional":
        return functional.wait_tensor(functional.all_gather_tensor(x.contiguous(), dim, axis.group))
    if even and axis.style == "tensors":
        x = x.movedim(dim, 0).contiguous()
        out = x.new_empty(sum(sizes), *x.shape[1:])
        dist.all_gather_into_tensor(out, x, group=axis.group)
        return out.movedim(0, dim)
    parts = [x.new_empty(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
    dist.all_gather(parts, x.contiguous(), group=axis.group)
    return torch.cat(parts, dim)


def reduce_scatter(x: Any, axis: Axis, dim: int, sizes: Sequence[int]) -> Any:
    even = len(set(sizes)) == 1
    if even and axis.style == "functional":
        return functional.wait_tensor(functional.reduce_scatter_tensor(x, "sum", dim, axis.group))
    if even and axis.style == "tensors":
        x = x.movedim(dim, 0).contiguous()
        out = x.new_empty(sizes[0], *x.shape[1:])
        dist.reduce_scatter_tensor(out, x, group=axis.group)
        return out.movedim(0, dim)
    parts = [part.contiguous() for part in x.split(list(sizes), dim)]
    mine = torch.empty_like(parts[axis.rank])
    dist.reduce_scatter(mine, parts, group=axis.group)
    return mine


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, axis: Axis) -> Any:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return all_reduce(grad, ctx.axis), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, axis: Axis) -> Any:
        return all_reduce(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, axis: Axis, dim: int) -> Any:
        ctx.axis, ctx.dim, ctx.sizes = axis, dim, axis.sizes(x.shape[dim])
        return axis.mine(x, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return all_gather(grad, ctx.axis, ctx.dim, ctx.sizes), None, None


class _Gather(torch.autograd.Function):
    """``summed``: ranks go on with different things, so that their gradients are added."""

    @staticmethod
    def forward(ctx: Any, x: Any, axis: Axis, dim: int, count: int, summed: bool) -> Any:
        ctx.axis, ctx.dim, ctx.sizes, ctx.summed = axis, dim, axis.sizes(count), summed
        return all_gather(x, axis, dim, ctx.sizes)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if ctx.summed:
            return reduce_scatter(grad, ctx.axis, ctx.dim, ctx.sizes), None, None, None, None
        return ctx.axis.mine(grad, ctx.dim).contiguous(), None, None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, axis: Axis, dim: int) -> Any:
        ctx.axis, ctx.dim, ctx.sizes = axis, dim, axis.sizes(x.shape[dim])
        return reduce_scatter(x, axis, dim, ctx.sizes)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return all_gather(grad, ctx.axis, ctx.dim, ctx.sizes), None, None


class _Exchange(torch.autograd.Function):
    """Rows to every rank and from every rank."""

    @staticmethod
    def forward(ctx: Any, x: Any, axis: Axis, sent: list[int], received: list[int]) -> Any:
        ctx.axis, ctx.sent, ctx.received = axis, sent, received
        return _exchanged(x, axis, sent, received)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _exchanged(grad, ctx.axis, ctx.received, ctx.sent), None, None, None


def _exchanged(x: Any, axis: Axis, sent: list[int], received: list[int]) -> Any:
    if axis.style == "functional":
        return functional.wait_tensor(functional.all_to_all_single(x.contiguous(), received, sent, axis.group))
    out = x.new_empty(sum(received), *x.shape[1:])
    if axis.style == "tensors":
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=axis.group)
        return out
    dist.all_to_all(list(out.split(received)), list(x.contiguous().split(sent)), group=axis.group)
    return out


class _Shift(torch.autograd.Function):
    """To the next rank of a ring, from the one before; gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: Any, axis: Axis, counts: tuple[int, int]) -> Any:
        ctx.axis, ctx.counts = axis, counts
        return _shifted(x, axis, 1, counts[1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _shifted(grad, ctx.axis, -1, ctx.counts[0]), None, None


def _shifted(x: Any, axis: Axis, step: int, rows: int) -> Any:
    out = x.new_empty(*x.shape[:-2], rows, x.shape[-1])
    to, source = axis.global_rank(axis.rank + step), axis.global_rank(axis.rank - step)
    if axis.style == "functional":  # one call for both, as batched sends are
        calls = [
            dist.P2POp(dist.isend, x.contiguous(), to, axis.group),
            dist.P2POp(dist.irecv, out, source, axis.group),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return out
    works = [dist.isend(x.contiguous(), to, group=axis.group), dist.irecv(out, source, group=axis.group)]
    for work in works:
        work.wait()
    return out


def copy(x: Any, axis: Axis | None) -> Any:
    """The same on all ranks, which go on with different things: gradients are added."""
    return x if axis is None else _Copy.apply(x, axis)


def reduce(x: Any, axis: Axis | None) -> Any:
    """A sum over ranks, which go on with the same."""
    return x if axis is None else _Reduce.apply(x, axis)


def split(x: Any, axis: Axis | None, dim: int) -> Any:
    return x if axis is None else _Split.apply(x, axis, dim)


def gather(x: Any, axis: Axis | None, dim: int, count: int, summed: bool = False) -> Any:
    return x if axis is None else _Gather.apply(x, axis, dim, count, summed)


def scatter_sum(x: Any, axis: Axis | None, dim: int) -> Any:
    return x if axis is None else _ReduceScatter.apply(x, axis, dim)


def exchange(x: Any, axis: Axis, sent: list[int], received: list[int]) -> Any:
    if axis.style == "functional" and x.requires_grad:
        return functional.wait_tensor(functional.all_to_all_single_autograd(x.contiguous(), received, sent, axis.group))
    return _Exchange.apply(x, axis, sent, received)


def shift(x: Any, axis: Axis, counts: tuple[int, int]) -> Any:
    """Rows that this rank sends and that it gets, along the last dim but one."""
    return _Shift.apply(x, axis, counts)
