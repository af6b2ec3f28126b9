"""What our rule book calls Shardy's ops, and how shardings flow through them."""

from __future__ import annotations

import re
from typing import Any

from shardwright.ir.core import CONSTRAINT
from shardwright.propagate.engine import OpView
from shardwright.propagate.factors import Direction
from shardwright.spec.record import Flow
from shardwright.spec.rule import Factor, OpShardingRule, factor_name

Shapes = list[tuple[int, ...]]

# Pointwise ops of StableHLO; where the book has another name for one, that name.
_POINTWISE = """
    abs add and=bitwise_and atan2=arctan2 cbrt ceil clamp=clip compare=equal complex convert=cast cosine=cos
    count_leading_zeros=clz divide exponential=exp exponential_minus_one=expm1 floor imag is_finite=isfinite log
    log_plus_one=log1p logistic=sigmoid maximum minimum multiply negate=negative not=invert or=bitwise_or
    popcnt=popcount power real reduce_precision=copy remainder round_nearest_afz=rint round_nearest_even=rint rsqrt
    select=where shift_left=left_shift shift_right_arithmetic=right_shift shift_right_logical=right_shift sign
    sine=sin sqrt subtract tan tanh xor=bitwise_xor
"""
POINTWISE = dict((word.split("=") * 2)[:2] for word in _POINTWISE.split())
PASSING = {"reshape", "transpose", "optimization_barrier"}
# Custom calls that compute each element from the elements in its place.
POINTWISE_CALLS = {
    "CompactWyHelper", "X64SplitHigh", "X64SplitLow", "MoveToDevice", "MoveToHost", "LayoutConstraint", "mhlo.erf",
    "xla.megascale.provide_metadata", "annotate_device_placement",
}  # fmt: skip


def ints(text: str | None) -> tuple[int, ...]:
    """Numbers of an MLIR attribute: ``array<i64: 0, 2>``, ``[0, 2]``, ``1 : i64``."""
    if text is None:
        return ()
    text = re.sub(r"i\d+\b|tensor<[^>]*>", "", text)
    return tuple(int(word) for word in re.findall(r"-?\d+", text))


def flow_of(op: str) -> Flow:
    dialect, _, name = op.partition(".")
    if op == CONSTRAINT or (dialect == "stablehlo" and name in POINTWISE):
        return Flow.POINTWISE
    if dialect == "stablehlo" and name in PASSING:
        return Flow.VIEW
    if name in ("dynamic_slice", "dynamic_update_slice"):
        return Flow.FORWARD
    return Flow.BROADCAST if name == "broadcast_in_dim" else Flow.OTHER


def view_of(op: str, rule: OpShardingRule | None, shapes: Shapes, attrs: dict[str, Any]) -> OpView | None:
    """``shapes`` are those of the operands."""
    if op == CONSTRAINT:
        return OpView(OpShardingRule.identity(shapes[0]), Flow.POINTWISE)
    if op == "sdy.propagation_barrier":
        allowed = Direction(int(attrs["allowed_direction"].split()[0]))
        return OpView(OpShardingRule.identity(shapes[0]), only=allowed)
    if op == "stablehlo.optimization_barrier":
        return OpView(side_by_side(shapes), Flow.VIEW)
    return None if rule is None else OpView(rule, flow_of(op))


def side_by_side(shapes: Shapes) -> OpShardingRule:
    """Each operand passes to the result in its place; they share no factor."""
    factors: list[Factor] = []
    tensors = []
    for shape in shapes:
        start = len(factors)
        factors += [Factor(factor_name(start + d), size) for d, size in enumerate(shape)]
        tensors.append(tuple((start + d,) for d in range(len(shape))))
    return OpShardingRule(tuple(factors), tuple(tensors), tuple(tensors))


def book_call(op: str, attrs: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The op and attributes by which our rule book knows a StableHLO op; None if it does not."""
    name = op.removeprefix("stablehlo.")
    if name in POINTWISE:
        return POINTWISE[name], {}
    if name == "custom_call":
        target = attrs.get("call_target_name", "").strip('"')
        return ("copy", {}) if target in POINTWISE_CALLS else None
    if name == "dot":
        return "dot", {}
    if name == "dot_general":
        numbers = attrs["dot_dimension_numbers"]
        found = {key: ints(value) for key, value in re.findall(r"(\w+)_dimensions = (\[[^\]]*\])", numbers)}
        short = {"lhs_batching": "lhs_batch", "rhs_batching": "rhs_batch"}
        return "dot_general", {short.get(key, key): value for key, value in found.items()}
    if name == "reduce":
        return "reduce_sum", {"axis": ints(attrs["dimensions"])}
    if name in ("reshape", "transpose"):
        return name, {"permutation": ints(attrs["permutation"])} if "permutation" in attrs else {}
    if name == "broadcast_in_dim":
        return name, {"broadcast_dimensions": ints(attrs["broadcast_dimensions"])}
    return None


def canonical(rule: OpShardingRule) -> tuple[object, ...]:
    """A rule without the names and the order of its factors."""
    order: list[int] = []
    for tensor in rule.tensors:
        for dim in tensor:
            order += [f for f in dim if f not in order]
    rename = {old: new for new, old in enumerate(order)}
    homes = [sum(any(f in dim for dim in tensor) for tensor in rule.tensors) for f in range(len(rule.factors))]
    factors = []
    for f in order:
        factor = rule.factors[f]
        # A factor of one tensor alone, not reduced, is never split: whether that is said makes no difference.
        alone = homes[f] == 1 and f not in rule.reduced
        factors.append((factor.size, factor.whole and not alone, factor.permuted, factor.blocked))
    tensors = tuple(tuple(tuple(rename[f] for f in dim) for dim in tensor) for tensor in rule.tensors)
    reduced = tuple(tuple(sorted((rename[f], kind) for f, kind in result)) for result in rule.reductions)
    return tuple(factors), tensors, reduced
