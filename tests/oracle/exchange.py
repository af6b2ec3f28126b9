"""The least that the shards of an op exchange where a permuted factor is split.

Of every op with such factors, the rows of a result's dim come from rows of an operand's dim that a window tells.  What
a device needs for its part of the result and does not have, it must be sent; sent bytes are received bytes, so some
device sends no less than their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from shardy_ops import book_call, convolution, dense, ints, windows

from shardwright.ir.graph import TensorType
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

Rows = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Window:
    """Row r of the result is made of the operand's rows (r * stride - low + k * by) / base, k < length, that exist."""

    stride: int = 1
    low: int = 0
    length: int = 1
    base: int = 1
    by: int = 1

    def rows(self, result: Rows, size: int) -> Rows:
        found = np.unique(result[:, None] * self.stride - self.low + np.arange(self.length) * self.by)
        found = found[found % self.base == 0] // self.base
        return found[(found >= 0) & (found < size)]


def least_exchange(
    op: str, attrs: dict[str, Any], rule: OpShardingRule, types: Sequence[TensorType], specs: Sequence[ShardingSpec]
) -> int:
    """Bytes that a device sends on the mean, at the least; types and shardings of operands, then of results."""
    count = len(rule.operands)
    shapes = [type.shape for type in types]
    result = specs[count]
    missing = 0
    for i in range(count):
        for position in result.mesh:
            have = [_rows(part) for part in specs[i].local_slices(shapes[i], position)]
            made = [_rows(part) for part in result.local_slices(shapes[count], position)]
            need = []
            for d, rows in enumerate(have):
                r = _place(rule, i, d)
                need.append(rows if r is None else _needed(op, attrs, rule, i, d, shapes, made[r]))
            there = [np.intersect1d(wanted, rows) for wanted, rows in zip(need, have)]
            missing += (prod(map(len, need)) - prod(map(len, there))) * types[i].item_bytes
    return -(-missing // result.mesh.size)


def _rows(part: slice) -> Rows:
    return np.arange(part.start, part.stop)


def _place(rule: OpShardingRule, operand: int, dim: int) -> int | None:
    """The result's dim that an operand's dim turns into, if it is one for one or permuted."""
    factors = rule.operands[operand][dim]
    for r, made in enumerate(rule.results[0]):
        if made == factors or any(f in made and rule.factors[f].permuted for f in factors):
            return r
    return None


def _needed(
    op: str,
    attrs: dict[str, Any],
    rule: OpShardingRule,
    operand: int,
    dim: int,
    shapes: Sequence[Sequence[int]],
    result: Rows,
) -> Rows:
    """Rows of an operand's dim for these rows of the result's."""
    if not any(rule.factors[f].permuted for f in rule.operands[operand][dim]):
        return result
    size = shapes[operand][dim]
    if op == "stablehlo.reverse":
        return np.unique(size - 1 - result)
    return window_of(op, attrs, shapes, operand, dim).rows(result, size)


def window_of(op: str, attrs: dict[str, Any], shapes: Sequence[Sequence[int]], operand: int, dim: int) -> Window:
    """How an op with permuted factors looks at a dim of an operand."""
    if op == "stablehlo.convolution":
        image, kernel = convolution(attrs)["dims"].partition("->")[0].split(",")
        at = int(image[dim])
        length = shapes[1][kernel.index(str(at))]
        low = dense(attrs["padding"])[2 * at] if "padding" in attrs else 0
        return Window(_entry(attrs, "window_strides", at), low, length, _entry(attrs, "lhs_dilations", at),
                      _entry(attrs, "rhs_dilations", at))  # fmt: skip
    if op == "stablehlo.reduce_window":
        said = windows(attrs)
        low = said["padding"][dim][0] if "padding" in said else 0
        entries = [said.get(name, (1,) * (dim + 1))[dim] for name in _WINDOW]
        return Window(entries[0], low, entries[1], entries[2], entries[3])
    known = book_call(op, attrs)
    assert known is not None
    if op == "stablehlo.slice":
        return Window(known[1]["step"][dim], -known[1]["start"][dim])
    if op == "stablehlo.pad":
        return Window(1, known[1]["low"][dim], base=known[1]["interior"][dim] + 1)
    if op == "stablehlo.concatenate":
        return Window(1, sum(shape[dim] for shape in shapes[:operand]))
    raise ValueError(f"how does {op} permute a dim?")


_WINDOW = ("window_strides", "window_dimensions", "base_dilations", "window_dilations")


def _entry(attrs: dict[str, Any], name: str, at: int) -> int:
    return (dense if "dense" in attrs.get(name, "") else ints)(attrs[name])[at] if name in attrs else 1
