"""Op priorities: which ops may propagate at each level, and in which direction.

Ops that merely pass shardings on go first, so that a decision reaches everything it can reach for free before
a contraction or a broadcast takes one of its own.  Level by level, each adding to the ones before:

0. pointwise ops, reshapes and transposes whose operands have no other reader; dynamic slices, forward
1. the same, also where an operand has other readers
2. every op along factors that merely pass through; broadcasts only backward
3. every op along every factor; broadcasts still only backward
4. everything
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ..spec.op_record import Flow
from ..spec.rule import OpShardingRule
from .factors import Direction

LEVELS = 5


def directions(rule: OpShardingRule, flow: Flow, single_use: bool, level: int) -> tuple[Direction, ...]:
    """For each factor of an op, the direction in which it may propagate at this level."""
    return _directions(rule.flows, flow, single_use, level)


@cache
def _directions(
    flows: tuple[tuple[bool, bool], ...], flow: Flow, single_use: bool, level: int
) -> tuple[Direction, ...]:
    return tuple(
        Direction.NONE if blocked else _direction(flow, single_use, level, passes) for passes, blocked in flows
    )


@cache
def _direction(flow: Flow, single_use: bool, level: int, passes_through: bool) -> Direction:
    allowed = Direction.NONE
    if level >= 1 or single_use:
        if flow in (Flow.POINTWISE, Flow.VIEW):
            allowed |= Direction.BOTH
        elif flow is Flow.FORWARD:
            allowed |= Direction.FORWARD
    wide = Direction.BACKWARD if flow is Flow.BROADCAST else Direction.BOTH
    if level >= 3 or (level == 2 and passes_through):
        allowed |= wide
    return Direction.BOTH if level >= 4 else allowed


def every_way(rule: OpShardingRule, allowed: Direction = Direction.BOTH) -> Sequence[Direction]:
    """The same direction for every factor that is not blocked."""
    return tuple(Direction.NONE if factor.blocked else allowed for factor in rule.factors)
