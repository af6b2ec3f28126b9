"""The strategies of one op as the other solvers know them, and their names.

A factor of the left operand that the result keeps is *data* (rows, batch): splitting it is data parallel.  One that
only the right operand brings (columns), or that is summed, is *model*: splitting it is model parallel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...cost.memory import local_bytes
from ...errors import PlanInfeasible
from ...ir.core import CONSTRAINT
from ...spec.axes import Axes, axes_text
from ...spec.mesh import DeviceMesh
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from .problem import Problem

DATA, MODEL, NONE = "Data Parallel", "Model Parallel", "Replicated"


@dataclass(frozen=True, slots=True)
class Strategy:
    """Axes by factor, what that needs and leaves, and what it costs by itself."""

    axes: tuple[Axes, ...]
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]
    kinds: frozenset[str]
    text: str
    time: int = 0
    bytes: int = 0
    """Of operands and results on one device."""

    @property
    def is_data(self) -> bool:
        return self.kinds == {DATA}

    @property
    def is_model(self) -> bool:
        return MODEL in self.kinds

    @property
    def used(self) -> int:
        return sum(len(axes) for axes in self.axes)


def kind_of(rule: OpShardingRule, f: int) -> str:
    """Whether splitting a factor is data or model parallel."""
    if f in rule.reduced:
        return MODEL
    first = rule.operands[0] if rule.operands else rule.results[0]
    return DATA if any(f in dim for dim in first) else MODEL


def describe(rule: OpShardingRule, mesh: DeviceMesh, axes: Iterable[Axes]) -> tuple[frozenset[str], str]:
    """``Data Parallel (Split M over dp) + Model Parallel (Split N over tp)``; axes are named if not all are meant."""
    split = [(f, given) for f, given in enumerate(axes) if any(axis.size > 1 for axis in given)]
    if not split:
        return frozenset(), NONE
    every = tuple(axis for axis in mesh.axes if axis.size > 1)
    words = []
    for f, given in sorted(split, key=lambda item: (kind_of(rule, item[0]) != DATA, item[0])):
        over = "" if len(split) == 1 and set(given) == set(every) else f" over {axes_text(given)}"
        words.append(f"{kind_of(rule, f)} (Split {rule.factors[f].name.upper()}{over})")
    return frozenset(kind_of(rule, f) for f, _ in split), " + ".join(words)


def strategies(problem: Problem, n: int) -> tuple[Strategy, ...]:
    """Every strategy of a node that fits in memory; those that use fewer axes come first.

    They read nothing pending, unless a constraint says so.
    """
    rule, node = problem.rules[n], problem.graph.nodes[n]
    assert rule is not None
    values, limit = (*node.inputs, *node.results), problem.hardware.memory
    found: dict[tuple[Axes, ...], Strategy] = {}
    least: list[int] = []
    for way in problem.space.ways(n, problem.given.get(node.results[0])):
        if node.op != CONSTRAINT and any(spec.partial for spec in way.operands):
            continue
        specs = dict(zip(values, (*way.operands, *way.results)))
        held = sum(local_bytes(spec, problem.graph.type(value)) for value, spec in specs.items())
        least.append(held)
        if held <= limit:
            kinds, text = describe(rule, problem.mesh, way.axes)
            found[way.axes] = Strategy(way.axes, way.operands, way.results, kinds, text, way.time, held)
    if not found:
        raise PlanInfeasible(
            f"node {n} fits on no device, however it is split",
            rows=[
                ("op", f"{node.op}   at {node.source}" if node.source else node.op),
                ("needs", f"{min(least)} bytes on a device for its operands and results"),
                ("memory", f"{limit} bytes ({problem.hardware.name})"),
            ],
            help="use more devices, or a smaller program",
        )
    return tuple(sorted(found.values(), key=lambda strategy: strategy.used))
