"""`Space`: for every node the ways to split it over all mesh axes together, and what each takes.

For each mesh axis a node leaves it alone, gives it to one of its factors, or lets a pending sum over it through; a way
is one such choice for every axis.  Ways are made once for equal calls, so depth costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ..cost.machine import Hardware
from ..ir.core import BARRIER, CONSTRAINT
from ..ir.graph import Graph, Node, TensorType
from ..propagate.book import rule_of
from ..propagate.choices import FORM_PENDING, legal_axes
from ..propagate.complete import Complete
from ..propagate.parts import complete_parts, in_parts, parts_of
from ..spec.axes import Axes, AxisRef, axes_size, merge_axes
from ..spec.factors import FactorSharding
from ..spec.mesh import DeviceMesh
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec, sort_partial
from .price import node_time, price_parts

SUM = "P(sum)"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to carry out a node: what it needs, what it leaves, picoseconds of local work and of exchanges inside."""

    axes: tuple[Axes, ...]
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]
    time: int


@dataclass
class Space:
    """All ways of all nodes of a graph on a mesh."""

    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    uneven: bool = False
    """Whether factors may be split that do not divide."""
    rules: dict[int, OpShardingRule | None] = field(default_factory=dict, repr=False)
    """Of the nodes that were asked about."""
    _known: dict[object, tuple[Way, ...]] = field(default_factory=dict, repr=False)

    def ways(self, n: int, pinned: ShardingSpec | None = None) -> tuple[Way, ...]:
        """Of one node; ``pinned`` is the sharding that a constraint asks for."""
        node = self.graph.nodes[n]
        if node.op == CONSTRAINT and pinned is not None:
            spec = pinned.closed()
            self.rules[n] = OpShardingRule.identity(self.graph.values[node.results[0]].shape)
            return (Way(tuple(dim.axes for dim in spec.dims), (spec,), (spec,), 0),)
        view = rule_of(self.graph, node)
        self.rules[n] = None if view is None else view.rule
        if view is None:
            return (self._replicated(node),)
        types = self._types(node)
        key = (id(view.rule), node.op, types, node.attrs)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(self._enumerate(node, view.rule, types))
        return found

    def _types(self, node: Node) -> tuple[TensorType, ...]:
        return tuple(self.graph.types((*node.inputs, *node.results)))

    def _replicated(self, node: Node) -> Way:
        types = self._types(node)
        specs = tuple(ShardingSpec.replicate(self.mesh, type.rank) for type in types)
        count = len(node.inputs)
        return Way((), specs[:count], specs[count:], self._time(node, None, (), specs, types))

    # -- one call -----------------------------------------------------------------------------------------

    def _enumerate(self, node: Node, rule: OpShardingRule, types: Sequence[TensorType]) -> list[Way]:
        best: dict[object, Way] = {}
        rows = [] if node.op == BARRIER else [row for row in rule.transfers if _of_sums(row.operands)]
        free = [f for f, factor in enumerate(rule.factors) if self._splittable(rule, f)]
        options: list[list[int]] = []
        for axis in self.mesh.axes:
            fits = [f for f in free if axis.size <= rule.sizes[f] and (self.uneven or rule.sizes[f] % axis.size == 0)]
            options.append([-1, *fits, *(len(rule.factors) + r for r in range(len(rows)))])
        for choice in product(*options):
            way = self._way(node, rule, types, choice, rows)
            if way is None:
                continue
            key = (way.operands, way.results)
            if key not in best or way.time < best[key].time:
                best[key] = way
        return list(best.values())

    def _splittable(self, rule: OpShardingRule, f: int) -> bool:
        factor = rule.factors[f]
        if factor.broadcast or factor.size < 2:
            return False
        return factor.form is not None or not (factor.whole or factor.permuted)

    def _way(
        self, node: Node, rule: OpShardingRule, types: Sequence[TensorType], choice: Sequence[int], rows: Sequence[Any]
    ) -> Way | None:
        count = len(rule.factors)
        given: list[list[AxisRef]] = [[] for _ in rule.factors]
        carried: list[tuple[AxisRef, Any]] = []
        for axis, pick in zip(self.mesh.axes, choice):
            if pick >= count:
                carried.append((axis, rows[pick - count]))
            elif pick >= 0:
                given[pick].append(axis)
        axes = tuple(merge_axes(split) for split in given)
        if not self.uneven and any(rule.sizes[f] % axes_size(split) for f, split in enumerate(axes) if split):
            return None
        if legal_axes(rule, axes) != axes:
            return None
        split = FactorSharding(rule, self.mesh, axes)
        formed = [
            (axis, FORM_PENDING[factor.form])
            for factor, over in zip(rule.factors, axes)
            if factor.form in FORM_PENDING
            for axis in over
        ]
        operands = tuple(
            self._pending(spec, [(axis, "sum") for axis, row in carried if row.operands[i] != "R"])
            for i, spec in enumerate(split.operand_specs)
        )
        results = tuple(
            self._pending(spec, [*formed, *((axis, "sum") for axis, row in carried if row.results[r] != "R")])
            for r, spec in enumerate(split.result_specs)
        )
        time = self._time(node, rule, axes, (*operands, *results), types)
        if in_parts(rule, axes):
            inside = self._inside(node, operands, results)
            if inside is None:
                return None
            time = inside
        return Way(axes, operands, results, time)

    def _pending(self, spec: ShardingSpec, extra: Sequence[tuple[AxisRef, str]]) -> ShardingSpec:
        if not extra:
            return spec
        return ShardingSpec.make(self.mesh, spec.dims, sort_partial([*spec.partial, *extra], self.mesh))

    def _time(
        self,
        node: Node,
        rule: OpShardingRule | None,
        axes: Sequence[Axes],
        specs: Sequence[ShardingSpec],
        types: Sequence[TensorType],
    ) -> int:
        return node_time(node.op, node.attrs, rule, axes, specs, types, len(node.inputs), self.hardware)

    def _inside(self, node: Node, operands: tuple[ShardingSpec, ...], results: tuple[ShardingSpec, ...]) -> int | None:
        """What the op costs in its parts; None if nobody knows them."""
        inner = parts_of(self.graph, node)
        if inner is None:
            return None
        made = complete_parts(inner, self.mesh, operands, results)
        assert isinstance(made, Complete)
        return price_parts(made, self.hardware).total


def _of_sums(states: Sequence[str]) -> bool:
    """Whether a row of a transfer table lets pending sums through: ``P(any)`` is also that."""
    return all(state in ("R", SUM, "P(any)") for state in states) and any(state != "R" for state in states)
