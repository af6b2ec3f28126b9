"""From a graph with complete shardings to the `Program`: mechanical, nothing is decided here.

For each node: bring the operands to the shardings it needs (each reshard once per copy, from the copy that a
solver named or the nearest one), run the op on local shards, and note what sharding that leaves.  The four steps go by
the names of the per-op pipeline: `infer_output_sharding`, `reshard_inputs`, `get_shard_args`, `create_sharded_output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..ir.graph import Attrs, Graph, Node, Operand, SourceLine, TensorType
from ..ir.program import Instr, Local, Program, check_program
from ..plans.complete import Complete, Decision
from ..propagation.copies import Copies
from ..spec.axes import Axes
from ..spec.resharding.steps import Step
from ..spec.sharding import ShardingSpec
from .forms import FORMS, FormContext
from .updates import together

LOCAL_STEPS = {"slice": "core.slice", "to_partial": "core.to_partial"}


def lower(complete: Complete) -> Program:
    """One SPMD program for all devices."""
    lowering = Lowering(complete.graph, complete)
    inputs = tuple(lowering.add_input(value, spec) for value, spec in zip(complete.graph.inputs, complete.inputs))
    for decision in complete.decisions:
        lowering.node(decision)
    outputs = tuple(
        lowering.copies.bring(value, spec, f"output {i}")
        for i, (value, spec) in enumerate(zip(complete.graph.outputs, complete.outputs))
    )
    graph = complete.graph
    program = Program(
        graph.name,
        complete.mesh,
        tuple(lowering.values),
        tuple(lowering.instrs),
        inputs,
        outputs,
        graph.updates,
        complete.notes,
    )
    return together(check_program(program))


def infer_output_sharding(decision: Decision) -> tuple[ShardingSpec, ...]:
    """What local computation leaves: pending where a split factor is reduced."""
    return decision.results


@dataclass
class Lowering:
    """The Program being written, and which copies of each value exist."""

    graph: Graph
    complete: Complete
    values: list[Local] = field(default_factory=list)
    instrs: list[Instr] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.copies = Copies[int](self.graph, self.step, self.complete)

    def node(self, decision: Decision) -> None:
        node = self.graph.nodes[decision.node]
        copies = self.reshard_inputs(node, decision)
        operands = self.get_shard_args(node, copies)
        made = self.run_locally(node, decision, operands)
        self.create_sharded_output(node, decision, made)
        self.copies.let_go(node.inputs, "kept")

    # -- the four steps ---------------------------------------------------------------------------------

    def reshard_inputs(self, node: Node, decision: Decision) -> list[int]:
        """A copy of each operand in the sharding that the node needs."""
        return [
            self.copies.bring(value, spec, f"operand {i} of node {decision.node} {node.op}")
            for i, (value, spec) in enumerate(zip(node.inputs, decision.operands))
        ]

    def get_shard_args(self, node: Node, copies: Sequence[int]) -> tuple[Operand, ...]:
        """The copies in the places of the operands, lists and absent ones included."""
        rest = iter(copies)
        return tuple(
            tuple(next(rest) for _ in operand)
            if isinstance(operand, tuple)
            else None
            if operand is None
            else next(rest)
            for operand in node.operands
        )

    def run_locally(self, node: Node, decision: Decision, operands: tuple[Operand, ...]) -> tuple[int, ...]:
        specs = infer_output_sharding(decision)
        forms = self.forms_of(decision)
        if forms:
            name, axes = forms[0]
            context = FormContext(self, node, decision, operands, specs, axes)
            return FORMS[name](context)
        return self.call(node, decision, operands)

    def call(self, node: Node, decision: Decision, operands: tuple[Operand, ...]) -> tuple[int, ...]:
        """The op itself, on local shards."""
        specs = infer_output_sharding(decision)
        results = tuple(self.new_value(value, spec) for value, spec in zip(node.results, specs))
        self.instrs.append(
            Instr(node.op, operands, results, node.attrs, node=decision.node, source=node.source, views=node.views)
        )
        return results

    def create_sharded_output(self, node: Node, decision: Decision, made: Sequence[int]) -> None:
        """Register what was made; where a sharding is pinned, go there at once."""
        for value, spec, home, local in zip(node.results, decision.results, decision.homes, made):
            self.copies.settle(value, spec, home, local, f"result of node {decision.node} {node.op}")

    # -- parts ------------------------------------------------------------------------------------------

    def forms_of(self, decision: Decision) -> list[tuple[str, Axes]]:
        """Local forms that are called for: factors that have one and are split."""
        if decision.rule is None:
            return []
        return [
            (factor.form, axes)
            for factor, axes in zip(decision.rule.factors, decision.axes)
            if factor.form is not None and axes
        ]

    def add_input(self, value: int, spec: ShardingSpec) -> int:
        local = self.new_value(value, spec)
        self.copies.start(value, spec, local)
        return local

    def new_value(self, origin: int, spec: ShardingSpec) -> int:
        value = self.graph.values[origin]
        return self.new_local(value.type, spec, value.name, origin)

    def new_local(self, type: TensorType, spec: ShardingSpec, name: str, origin: int | None = None) -> int:
        base, suffix = name, 1
        while name in self.names:
            name, suffix = f"{base}_{suffix}", suffix + 1
        self.names.add(name)
        self.values.append(Local(len(self.values), type, spec.closed(), name, origin))
        return len(self.values) - 1

    def emit(
        self,
        op: str,
        operands: tuple[Operand, ...],
        type: TensorType,
        spec: ShardingSpec,
        name: str,
        attrs: Attrs = (),
        axes: Axes = (),
        node: int | None = None,
        origin: int | None = None,
    ) -> int:
        """One local instruction of a form."""
        made = self.new_local(type, spec, name, origin)
        source = self.graph.nodes[node].source if node is not None else None
        self.instrs.append(Instr(op, operands, (made,), attrs, axes, node=node, source=source))
        return made

    def pend(self, value: int, spec: ShardingSpec, axes: Axes) -> int:
        """A copy that is pending over these axes: it counts once in a sum (`Copies.pend`)."""
        return self.copies.pend(value, spec, axes, "counts once")

    def inline(self, inner: Complete, node: Node, decision: Decision, operands: tuple[Operand, ...]) -> tuple[int, ...]:
        """The instructions of an op's parts in its place."""
        sub = Lowering(inner.graph, inner, self.values, self.instrs, names=self.names)
        flat = [v for o in operands if o is not None for v in (o if isinstance(o, tuple) else (o,))]
        for value, spec, local in zip(inner.graph.inputs, inner.inputs, flat, strict=True):
            sub.copies.start(value, spec, local)
        values, instrs = len(self.values), len(self.instrs)
        for part in inner.decisions:
            sub.node(part)
        made = tuple(
            sub.copies.bring(value, spec, f"result of node {decision.node} {node.op}")
            for value, spec in zip(inner.graph.outputs, inner.outputs)
        )
        origins = dict(zip(made, node.results))
        for i in range(values, len(self.values)):
            self.values[i] = replace(self.values[i], origin=origins.get(i))
        for n in range(instrs, len(self.instrs)):
            instr = self.instrs[n]
            whose = decision.node if any(value in origins for value in instr.results) else None
            self.instrs[n] = replace(instr, node=whose, source=node.source)
        return made

    def step(self, value: int, local: int, step: Step, cause: str) -> int:
        made = self.new_value(value, step.after)
        producer = self.graph.values[value].producer
        source = self.graph.nodes[producer[0]].source if producer is not None else None
        self.instrs.append(step_instr(step, local, made, cause, source))
        return made


def step_instr(step: Step, operand: int, result: int, cause: str, source: SourceLine | None = None) -> Instr:
    """A step of a reshard as an instruction."""
    said = {"dim": step.dim, "to_dim": step.to_dim, "reduction": step.reduction}
    attrs = tuple(sorted((name, value) for name, value in said.items() if value is not None))
    op = LOCAL_STEPS.get(step.kind, step.kind)
    return Instr(op, (operand,), (result,), attrs, step.axes, step.bytes, None, cause, source)
