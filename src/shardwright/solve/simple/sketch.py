"""The exact estimate of a completed plan: what lowering will write, priced without writing it.

Which copies are made, lowering is told by the same `Copies`.  So the cost equals that of the lowered Program, and the
peak what running it reports (a local form, or an op in its parts, counts as one op here; lowered it also has a few
values of its own).  `price` does the same for costs alone, with what hides, which the simple solver does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...cost.comm import sent_cost
from ...cost.memory import local_bytes, peak_live
from ...ir.graph import TensorType
from ...ir.lifetimes import Use
from ...propagation.complete import Complete, Decision
from ...propagation.copies import Copies
from ...propagation.parts import in_parts
from ...spec.resharding.steps import Step
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
    uses: list[Use] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.copies = Copies[int](self.problem.graph, self.copied)

    @property
    def cost(self) -> int:
        return self.compute + self.communication

    @property
    def peak(self) -> int:
        return peak_live(self.sizes, self.inputs, self.uses, self.outputs)

    def decide(self, decision: Decision) -> None:
        graph = self.problem.graph
        node = graph.nodes[decision.node]
        reads = tuple(self.copies.bring(value, spec) for value, spec in zip(node.inputs, decision.operands))
        made = tuple(self.new(spec, graph.type(value)) for value, spec in zip(node.results, decision.results))
        self.uses.append(Use(reads, made, node.views))
        if decision.rule is not None and in_parts(decision.rule, decision.axes):
            inside = parts_cost(graph, node, decision, self.problem.hardware)
            self.compute += inside.compute
            self.communication += inside.communication
        else:
            self.compute += self.problem.time(decision.node, decision.axes, (*decision.operands, *decision.results))
        for value, spec, home, local in zip(node.results, decision.results, decision.homes, made):
            self.copies.settle(value, spec, home, local)

    def new(self, spec: ShardingSpec, type: TensorType) -> int:
        self.sizes.append(local_bytes(spec, type))
        return len(self.sizes) - 1

    def copied(self, value: int, copy: int, step: Step, cause: str) -> int:
        made = self.new(step.after, self.problem.graph.type(value))
        self.uses.append(Use((copy,), (made,)))
        self.communication += sent_cost(step.kind, step.axes, step.bytes, self.problem.hardware)
        self.collectives += not step.is_local
        return made


def sketch(problem: Problem, complete: Complete) -> Sketch:
    """What lowering will make of it."""
    found = Sketch(problem)
    graph = problem.graph
    for value, spec in zip(graph.inputs, complete.inputs):
        found.copies.start(value, spec, found.new(spec, graph.type(value)))
    found.inputs = tuple(range(len(found.sizes)))
    for decision in complete.decisions:
        found.decide(decision)
    found.outputs = tuple(found.copies.bring(value, spec) for value, spec in zip(graph.outputs, complete.outputs))
    return found
