"""Ops in which each element needs all the others along one dim: cumulative ops, sorting, the place of an extreme."""

from __future__ import annotations

from ..spec.op_record import Call
from ..spec.rule import factor_name
from .dims import LINEAR, dim_of, same_dims, write
from .registry import rule

# A cumulative op goes along with pending reductions of its own kind: a running sum of sums is the sum of them.
rule("cumsum", lambda call: same_dims(call, {dim_of(call): "whole"}, LINEAR), meaning="cumulative sum")
rule(
    "cumprod", lambda call: same_dims(call, {dim_of(call): "whole"}, ["P(prod) -> P(prod)"]), meaning="cumulative prod"
)


@rule("sort", cost="sort", meaning="sort")
def sort(call: Call) -> str:
    """Attribute ``axis``; operands beyond the first are put into the same order.

    If there is nothing but the sorted dim, a split of it is not passed on: it could only be undone.
    """
    axis = dim_of(call)
    alone = all(size == 1 for d, size in enumerate(call.operands[0]) if d != axis)
    return same_dims(call, {axis: "whole blocked" if alone else "whole"})


rule("argsort", sort, cost="sort", meaning="argsort")


@rule("top_k", cost="sort")
def top_k(call: Call) -> str:
    """The largest along the last dim, and where they stood."""
    return same_dims(call, {len(call.operands[0]) - 1: "whole blocked"})


@rule("argmax", cost="reduce", meaning="argmax")
def argmax(call: Call) -> str:
    """Attributes ``axis`` (None: of the flattened operand) and ``keepdims``."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    gone = range(len(names)) if call.attr("axis") is None else [dim_of(call)]
    keep = call.attr("keepdims", False)
    result = ["1" if d in gone else name for d, name in enumerate(names) if keep or d not in gone]
    return write([names], [result], {names[d]: "whole" for d in gone})


rule("argmin", argmax, cost="reduce", meaning="argmin")
