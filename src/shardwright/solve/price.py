"""What complete shardings will cost when they are lowered: the copies that lowering makes, in the order it makes them.

Lowering is a layer above; a test holds this against the Program itself, to the picosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..cost.comm import sent_cost, shown_cost
from ..cost.compute import cost_class, local_sizes, op_time, operations
from ..cost.machine import Hardware
from ..cost.memory import local_bytes, row_bytes
from ..cost.program import ProgramCost
from ..ir.graph import Graph, Node, TensorType
from ..propagation.complete import Complete, Decision, complete_parts
from ..propagation.copies import Copies
from ..propagation.parts import in_parts, parts_of
from ..rules.registry import find
from ..spec.axes import Axes
from ..spec.resharding.steps import Step
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec

ONCE = "once"
"""The form whose operands outside the sum become copies that count once; other readers may use those."""
Spent = tuple[int, int, int]
"""Compute, communication, and what of that shows."""
OWN_OP = (ONCE, "random", "rows", "parts")
"""Forms that run ops of the book; the others are unknown to it, and to whoever costs them inside of parts."""


def node_time(
    op: str,
    attrs: Sequence[tuple[str, object]],
    rule: OpShardingRule | None,
    axes: Sequence[Axes],
    specs: Sequence[ShardingSpec],
    types: Sequence[TensorType],
    count: int,
    hardware: Hardware,
    part: bool = False,
) -> int:
    """Picoseconds of an op on shards; ``specs`` and ``types`` are of its ``count`` operands, then of its results."""
    unknown = part and rule is not None and _form(rule, axes) not in (None, *OWN_OP)
    kind = cost_class(None if unknown else find(op))
    sizes = [local_bytes(spec, type) for spec, type in zip(specs, types)]
    work = operations(rule, kind, local_sizes(rule, axes), dict(attrs)) if rule is not None else 0
    dtype = types[0].dtype if types else "f32"
    row = row_bytes(specs[count], types[count]) if count < len(types) else 0
    return op_time(kind, work, sizes[:count], sizes[count:], dtype, hardware, row)


def steps_shown(steps: Sequence[Step], role: str | None, hardware: Hardware) -> int:
    """What of a reshard does not hide: each step counts by itself, as its collective does in the Program."""
    return sum(shown_cost(step.kind, step.axes, step.bytes, role, hardware) for step in steps)


@dataclass
class _Spending:
    """What was paid so far, for nodes and for copies of values."""

    complete: Complete
    hardware: Hardware
    roles: Sequence[str | None] | None
    part: bool = False
    compute: int = 0
    spent: int = 0
    shown: int = 0

    def __post_init__(self) -> None:
        self.copies = Copies[bool](self.complete.graph, self.copied, self.complete)
        self.times: dict[object, int] = {}
        self.graph: Graph = self.complete.graph

    def run(self) -> Iterator[Spent]:
        """What was paid so far, after each node and then after each output."""
        for value, spec in zip(self.graph.inputs, self.complete.inputs):
            self.copies.start(value, spec, True)
        for decision in self.complete.decisions:
            self.node(decision)
            yield self.compute, self.spent, self.shown
        for value, spec in zip(self.graph.outputs, self.complete.outputs):
            self.copies.bring(value, spec)
            yield self.compute, self.spent, self.shown

    def total(self) -> ProgramCost:
        for _ in self.run():
            pass
        return ProgramCost(self.compute, self.spent, (), self.spent - self.shown)

    def node(self, decision: Decision) -> None:
        node = self.graph.nodes[decision.node]
        for value, spec in zip(node.inputs, decision.operands):
            self.copies.bring(value, spec)
        form = _form(decision.rule, decision.axes) if decision.rule is not None else None
        if decision.rule is not None and in_parts(decision.rule, decision.axes):
            self.parts(node, decision)
        else:
            self.compute += self.time(node, decision)
        if form == ONCE:
            self.pend(node, decision)
        for value, made, home in zip(node.results, decision.results, decision.homes):
            self.copies.settle(value, made, home, True)
        self.copies.let_go(node.inputs)

    def time(self, node: Node, decision: Decision) -> int:
        """Equal layers' decisions are often the same objects, which the decisions keep."""
        types = tuple(self.graph.types((*node.inputs, *node.results)))
        rule, axes, operands, results = decision.rule, decision.axes, decision.operands, decision.results
        key = (node.op, node.attrs, types, *map(id, (rule, axes, operands, results)))
        found = self.times.get(key)
        if found is None:
            specs, count = (*operands, *results), len(node.inputs)
            found = node_time(node.op, node.attrs, rule, axes, specs, types, count, self.hardware, self.part)
            self.times[key] = found
        return found

    def pend(self, node: Node, decision: Decision) -> None:
        """Copies that count once cost nothing, but others may be made from them."""
        rule = decision.rule
        assert rule is not None
        split = {f for f, factor in enumerate(rule.factors) if factor.form == ONCE and decision.axes[f]}
        axes = next(given for factor, given in zip(rule.factors, decision.axes) if factor.form is not None and given)
        for value, mapped, spec in zip(node.inputs, rule.operands, decision.operands):
            if not any(f in dim for f in split for dim in mapped):
                self.copies.pend(value, spec, axes)

    def parts(self, node: Node, decision: Decision) -> None:
        found = parts_cost(self.graph, node, decision, self.hardware)
        self.compute += found.compute
        self.spent += found.communication
        self.shown += found.communication

    def copied(self, value: int, copy: bool, step: Step, cause: str) -> bool:
        """Pay for a step of a reshard."""
        self.spent += sent_cost(step.kind, step.axes, step.bytes, self.hardware)
        self.shown += steps_shown([step], self.roles[value] if self.roles is not None else None, self.hardware)
        return copy


def _form(rule: OpShardingRule, axes: Sequence[Axes]) -> str | None:
    """The local form that lowering will take: of the first factor that has one and is split."""
    return next((factor.form for factor, given in zip(rule.factors, axes) if factor.form is not None and given), None)


def price(complete: Complete, hardware: Hardware, roles: Sequence[str | None] | None = None) -> ProgramCost:
    """Compute, communication and what of that hides, as the lowered Program will have them.

    ``roles`` are those of the graph's values (`cost.overlap.graph_roles`); without them nothing hides.
    """
    return _Spending(complete, hardware.on(complete.mesh), roles).total()


def spending(complete: Complete, hardware: Hardware, roles: Sequence[str | None] | None = None) -> list[Spent]:
    """The same one after the other: what was paid after each node, with the copies made for it, then each output."""
    return list(_Spending(complete, hardware.on(complete.mesh), roles).run())


def parts_cost(graph: Graph, node: Node, decision: Decision, hardware: Hardware) -> ProgramCost:
    """What a node costs that is carried out in its parts."""
    inner = parts_of(graph, node)
    assert inner is not None  # or `complete` would have said so
    made = complete_parts(inner, decision.results[0].mesh, decision.operands, decision.results)
    assert isinstance(made, Complete)
    return price_parts(made, hardware)


def price_parts(made: Complete, hardware: Hardware) -> ProgramCost:
    """The same for an op in its parts: nothing hides inside of an op."""
    return _Spending(made, hardware.on(made.mesh), None, part=True).total()
