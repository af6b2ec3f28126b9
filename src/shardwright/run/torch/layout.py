"""How the dims of a value lie in memory, as far as a Program says so.

An op that only turns dims shows the bytes of its operand in another order.  What a collective brings would lie in the
order of its dims; an op behind it that shows its operand's bytes in the captured program would have to copy then.  So
a collective of what was turned sends it as it lies in memory, and turns what it brings.

The order is read off the Program, never off tensors, so that all ranks send alike; where it is wrong, a copy is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...cost.compute import cost_class
from ...ir.order import packing
from ...ir.program import Instr, Program
from ...rules.registry import find
from .exchange import Finish, Message
from .wire import Call

aten = torch.ops.aten
Order = tuple[int, ...]
"""The dims of a value from outer to inner."""
Made = Message | Finish


def _swapped(rank: int, one: int, other: int) -> list[int]:
    dims = list(range(rank))
    dims[one], dims[other] = dims[other], dims[one]
    return dims


_TURNING: Mapping[str, Callable[[int, Instr], list[int]]] = {
    "aten.transpose.int": lambda rank, instr: _swapped(rank, instr.attr("dim0"), instr.attr("dim1")),
    "aten.permute": lambda rank, instr: [dim % rank for dim in instr.attr("dims")],
    "aten.t": lambda rank, instr: list(range(rank))[::-1],
}
"""For each op the dim of its operand that each dim of its result is."""
_LIKE: Mapping[str, Sequence[tuple[int, int]]] = {
    **dict.fromkeys(("core.slice", "core.to_partial", "core.constraint", "shardwright.attention"), ((0, 0),)),
    "shardwright.attention_backward": ((0, 1), (1, 2), (2, 3)),
}
"""Pairs (result, operand) whose dims are in one order."""


def orders(program: Program) -> dict[int, Order]:
    """Of values whose dims lie in another order than they come in; of what a collective brings, that of its operand."""
    found: dict[int, Order] = {}
    for instr in program.instrs:
        if instr.op in _TURNING:
            (value,), (result,) = instr.inputs, instr.results
            rank = program.values[value].type.rank
            dims = _TURNING[instr.op](rank, instr)
            before = found.get(value, tuple(range(rank)))
            order = tuple(dims.index(d) for d in before)
            if order != tuple(range(rank)):
                found[result] = order
            continue
        for r, i in _alike(program, instr):
            operand = instr.operands[i]
            if isinstance(operand, int) and operand in found:
                found[instr.results[r]] = found[operand]
    return found


def _alike(program: Program, instr: Instr) -> Sequence[tuple[int, int]]:
    if instr.op in _LIKE:
        return _LIKE[instr.op]
    if instr.is_collective:
        return [(0, 0)]
    if not instr.operands or cost_class(find(instr.op)) != "pointwise":
        return []
    shape = program.values[instr.results[0]].type.shape
    like = (i for i, o in enumerate(instr.operands) if isinstance(o, int) and program.values[o].type.shape == shape)
    first = next(like, None)
    return [] if first is None else [(r, first) for r in range(len(instr.results))]


class Lying:
    """What a collective sends, in the order in which it lies in memory."""

    def __init__(
        self, program: Program, instr: Instr, order: Order | None, call: Call, x: Any, shape: Sequence[int]
    ) -> None:
        if order is not None and packing(program, instr, order) != packing(program, instr):
            order = None  # memory is counted as if it came in its order
        self.turned = order is not None
        self.order = order or tuple(range(len(shape)))
        self.x = call(aten.permute.default, x, list(self.order)) if self.turned else x
        self.shape = tuple(shape[d] for d in self.order)

    def dim(self, dim: int) -> int:
        return self.order.index(dim)

    def brought(self, call: Call, made: Made) -> Made:
        """The same collective, whose result has its dims as they come."""
        if not self.turned:
            return made
        back = [self.order.index(d) for d in range(len(self.order))]

        def turned(finish: Callable[..., Any], *received: Any) -> Any:
            return call(aten.permute.default, finish(*received), back)

        if isinstance(made, Message):
            return replace(made, finish=partial(turned, made.finish))
        return partial(turned, made)
