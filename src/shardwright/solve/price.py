"""What complete shardings will cost when they are lowered: the copies that lowering makes, in the order it makes them.

Lowering is a layer above; a test holds this against the Program itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cost.comm import steps_cost
from ..cost.compute import cost_class, local_sizes, op_time, operations
from ..cost.machine import Hardware
from ..cost.memory import local_bytes
from ..cost.program import ProgramCost
from ..ir.graph import Graph, Node
from ..propagate.complete import Complete, Decision
from ..propagate.parts import complete_parts, in_parts, parts_of
from ..rules.registry import find
from ..spec.reshard import reshard
from ..spec.sharding import ShardingSpec


@dataclass
class _Copies:
    """Which copies of each value there are, and what was paid for them."""

    complete: Complete
    hardware: Hardware
    roles: Sequence[str | None] | None
    compute: int = 0
    spent: int = 0
    shown: int = 0

    def __post_init__(self) -> None:
        self.held: dict[int, list[ShardingSpec]] = {}
        self.graph: Graph = self.complete.graph

    def run(self) -> ProgramCost:
        for value, spec in zip(self.graph.inputs, self.complete.inputs):
            self.held[value] = [spec.closed()]
        for decision in self.complete.decisions:
            self.node(decision)
        for value, spec in zip(self.graph.outputs, self.complete.outputs):
            self.copy(value, spec)
        return ProgramCost(self.compute, self.spent, (), self.spent - self.shown)

    def node(self, decision: Decision) -> None:
        node = self.graph.nodes[decision.node]
        for value, spec in zip(node.inputs, decision.operands):
            self.copy(value, spec)
        if decision.rule is not None and in_parts(decision.rule, decision.axes):
            self.parts(node, decision)
        else:
            self.compute += self.time(node, decision)
        for value, made, home in zip(node.results, decision.results, decision.homes):
            self.held[value] = [made.closed()]
            if not home.same_layout(made):
                self.copy(value, home)
                self.held[value] = [home.closed()]

    def parts(self, node: Node, decision: Decision) -> None:
        inner = parts_of(self.graph, node)
        assert inner is not None
        made = complete_parts(inner, self.complete.mesh, decision.operands, decision.results)
        assert isinstance(made, Complete)
        found = price(made, self.hardware)
        self.compute += found.compute
        self.spent += found.communication
        self.shown += found.communication

    def time(self, node: Node, decision: Decision) -> int:
        types = self.graph.types((*node.inputs, *node.results))
        kind = cost_class(find(node.op))
        specs = (*decision.operands, *decision.results)
        sizes = [local_bytes(spec, type) for spec, type in zip(specs, types)]
        count = len(node.inputs)
        rule = decision.rule
        work = 0
        if rule is not None:
            work = operations(rule, kind, local_sizes(rule, decision.axes), dict(node.attrs))
        dtype = types[0].dtype if types else "f32"
        return op_time(kind, work, sizes[:count], sizes[count:], dtype, self.hardware)

    def copy(self, value: int, spec: ShardingSpec) -> None:
        spec = spec.closed()
        held = self.held[value]
        if spec in held:
            return
        hub = self.complete.hubs.get(value)
        if hub is not None and hub not in held and hub != spec:
            self.copy(value, hub)
        type = self.graph.type(value)
        ways = [reshard(copy, spec, type.shape, type.item_bytes, idle=False) for copy in held]
        best = min(ways, key=lambda steps: sum(step.bytes for step in steps))
        time = steps_cost(best, self.hardware)
        self.spent += time
        role = self.roles[value] if self.roles is not None else None
        self.shown += self.hardware.overlap.shown(role, time)
        held.append(spec)


def price(complete: Complete, hardware: Hardware, roles: Sequence[str | None] | None = None) -> ProgramCost:
    """Compute, communication and what of that hides, as the lowered Program will have them.

    ``roles`` are those of the graph's values (`cost.overlap.graph_roles`); without them nothing hides.
    """
    return _Copies(complete, hardware.on(complete.mesh), roles).run()
