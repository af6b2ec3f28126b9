"""The exact estimate of a completed plan: what lowering will write, priced without writing it.

The same bookkeeping as lowering: each copy of a value is made once, from the copy from which fewest bytes are sent.
So the cost equals that of the lowered Program, and the peak what running it reports (a local form, or an op in its
parts, counts as one op here; lowered it also has a few values of its own).  `price` does the same for costs alone, with
hubs and what hides, which the simple solver does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...cost.comm import sent_cost
from ...cost.memory import Moment, local_bytes, peak_live
from ...ir.graph import TensorType
from ...propagation.complete import Complete, Decision
from ...propagation.parts import in_parts
from ...spec.resharding.cheapest import nearest
from ...spec.sharding import ShardingSpec
from ..price import parts_cost
from .problem import Problem


@dataclass
class Sketch:
    """A Program in outline."""

    problem: Problem
    compute: int = 0
    communication: int = 0
    collectives: int = 0
    sizes: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    copies: dict[int, dict[ShardingSpec, int]] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def cost(self) -> int:
        return self.compute + self.communication

    @property
    def peak(self) -> int:
        return peak_live(self.sizes, self.inputs, self.moments, self.outputs)

    def decide(self, decision: Decision) -> None:
        graph = self.problem.graph
        node = graph.nodes[decision.node]
        reads = tuple(self.copy(value, spec) for value, spec in zip(node.inputs, decision.operands))
        made = tuple(self.new(spec, graph.type(value)) for value, spec in zip(node.results, decision.results))
        self.moments.append(Moment(reads, made, node.views))
        if decision.rule is not None and in_parts(decision.rule, decision.axes):
            inside = parts_cost(graph, node, decision, self.problem.hardware)
            self.compute += inside.compute
            self.communication += inside.communication
        else:
            self.compute += self.problem.time(decision.node, decision.axes, (*decision.operands, *decision.results))
        for value, spec, home, local in zip(node.results, decision.results, decision.homes, made):
            self.copies[value] = {spec.closed(): local}
            if not home.same_layout(spec):
                self.copy(value, home)
                del self.copies[value][spec.closed()]

    def new(self, spec: ShardingSpec, type: TensorType) -> int:
        self.sizes.append(local_bytes(spec, type))
        return len(self.sizes) - 1

    def copy(self, value: int, spec: ShardingSpec) -> int:
        spec = spec.closed()
        held = self.copies[value]
        if spec in held:
            return held[spec]
        type = self.problem.graph.type(value)
        best, steps = nearest(list(held), spec, type.shape, type.item_bytes)
        local = list(held.values())[best]
        for step in steps:
            made = self.new(step.after, type)
            self.moments.append(Moment((local,), (made,)))
            self.communication += sent_cost(step.kind, step.axes, step.bytes, self.problem.hardware)
            self.collectives += not step.is_local
            local = made
        held[spec] = local
        return local


def sketch(problem: Problem, complete: Complete) -> Sketch:
    """What lowering will make of it."""
    found = Sketch(problem)
    graph = problem.graph
    for value, spec in zip(graph.inputs, complete.inputs):
        found.copies[value] = {spec.closed(): found.new(spec, graph.type(value))}
    found.inputs = tuple(range(len(found.sizes)))
    for decision in complete.decisions:
        found.decide(decision)
    found.outputs = tuple(found.copy(value, spec) for value, spec in zip(graph.outputs, complete.outputs))
    return found
