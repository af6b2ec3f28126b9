"""What our rule book calls Shardy's ops, and how shardings flow through them."""

from __future__ import annotations

from shardwright.propagate.engine import OpView
from shardwright.propagate.factors import Direction
from shardwright.spec.record import Flow
from shardwright.spec.rule import Factor, OpShardingRule, factor_name

POINTWISE = set(
    """abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide exponential
    exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or
    popcnt power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor""".split()
)
PASSING = {"reshape", "transpose", "optimization_barrier"}


def flow_of(op: str) -> Flow:
    dialect, _, name = op.partition(".")
    if dialect == "stablehlo" and name in POINTWISE:
        return Flow.POINTWISE
    if op == "sdy.sharding_constraint":
        return Flow.POINTWISE
    if dialect == "stablehlo" and name in PASSING:
        return Flow.VIEW
    if name in ("dynamic_slice", "dynamic_update_slice"):
        return Flow.FORWARD
    if name == "broadcast_in_dim":
        return Flow.BROADCAST
    return Flow.OTHER


def view_of(op: str, rule: OpShardingRule | None, shapes: list[tuple[int, ...]], attrs: dict) -> OpView | None:
    """``shapes`` are those of the operands."""
    if op == "sdy.propagation_barrier":
        allowed = Direction(int(attrs["allowed_direction"].split()[0]))
        return OpView(OpShardingRule.identity(shapes[0]), only=allowed)
    if op == "stablehlo.optimization_barrier":
        return OpView(side_by_side(shapes), Flow.VIEW)
    return None if rule is None else OpView(rule, flow_of(op))


def side_by_side(shapes: list[tuple[int, ...]]) -> OpShardingRule:
    """Each operand passes to the result in its place; they share no factor."""
    factors: list[Factor] = []
    tensors = []
    for shape in shapes:
        start = len(factors)
        factors += [Factor(factor_name(start + d), size) for d, size in enumerate(shape)]
        tensors.append(tuple((start + d,) for d in range(len(shape))))
    return OpShardingRule(tuple(factors), tuple(tensors), tuple(tensors))
