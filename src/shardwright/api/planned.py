"""`Planned`: a plan together with its program: look at it, ask it why, or call it."""

from __future__ import annotations

from typing import Any

from ..cost import Hardware
from ..errors import GraphError
from ..frontends.numpy import Traced, prepare
from ..frontends.numpy.trees import unflatten
from ..ir.program import Collective, Program
from ..plans import Plan, duration, gibibytes
from ..propagation.complete import Complete
from ..run import VirtualEngine, assemble, scatter
from ..spec.axes import axes_text
from .problem import Candidate, Problem


class Planned:
    """A plan together with its program: look at it, or call it."""

    def __init__(self, plan: Plan, problem: Problem, complete: Complete, program: Program) -> None:
        self.plan = plan
        self.problem = problem
        """The program, the mesh, and what the user asked for."""
        self.complete = complete
        self.program = program

    @property
    def source(self) -> Any:
        """What was captured or traced."""
        return self.problem.source

    @property
    def hardware(self) -> Hardware:
        return self.problem.hardware

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know, such as ops without a rule."""
        return self.plan.notes

    cost = property(lambda self: self.plan.cost)
    memory = property(lambda self: self.plan.memory)
    lower_bound = property(lambda self: self.plan.lower_bound)
    gap = property(lambda self: self.plan.gap)
    specs = property(lambda self: self.plan.inputs)

    @property
    def collectives(self) -> list[Collective]:
        return self.program.collectives

    def to_json(self) -> str:
        return self.plan.to_json()

    def diff(self, other: Planned | Plan) -> list[str]:
        """What another plan does otherwise, a line each."""
        other = other.plan if isinstance(other, Planned) else other
        if not isinstance(other, Plan):
            raise GraphError(f"a plan cannot be compared with a {type(other).__name__}", help="give another plan")
        return self.plan.diff(other)

    def __str__(self) -> str:
        plan = self.plan
        gap = f"within {100 * plan.gap:.2f}% of the best" if plan.gap else "no plan is better"
        ours = plan.cost.objective
        spent, sent = (duration(time, beside=ours) for time in (plan.cost.compute, plan.cost.communication))
        return (
            f"{plan.name} on ({plan.mesh}), {plan.hardware}: {duration(ours)} a step "
            f"({spent} compute, {sent} communication), {gibibytes(plan.memory)}; {gap} ({plan.solver})"
        )

    def explain(self, name: str) -> str:
        """How a value lies, what every other way to lie would cost, and what makes the next best one dearer.

        ``name`` is that of an input or of an intermediate value.  All else is chosen anew around each sharding.
        """
        from .explain import explained

        made = Candidate("plan", self.complete, self.program, self.plan.cost, self.plan.memory)
        return explained(self.problem, made, name)

    def trace(self) -> str:
        """The program's own lines with what each costs: collectives, shardings, time."""
        from ..cost.comm import sent_cost
        from ..cost.program import instr_cost

        hardware = self.hardware.on(self.program.mesh)
        lines: dict[str, list[str]] = {}
        for instr in self.program.instrs:
            where = str(instr.source) if instr.source is not None else "(elsewhere)"
            if instr.is_collective:
                time = sent_cost(instr.op, instr.axes, instr.bytes, hardware)
            else:
                time = instr_cost(self.program, instr, hardware, self.complete.graph)
            made = ", ".join(str(self.program.values[value]) for value in instr.results)
            over = f" over {axes_text(instr.axes)}, {instr.bytes} B" if instr.is_collective else ""
            lines.setdefault(where, []).append(f"    {duration(time):>11}  {instr.op}{over}  {made}")
        return "\n".join(line for where, parts in lines.items() for line in (where, *parts))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the virtual mesh, or on the processes that torchrun started: whole tensors in, whole tensors out."""
        if isinstance(self.source, Traced):
            arrays = self.source.flatten(*args, **kwargs)
            shards = [scatter(x, spec) for x, spec in zip(arrays, self.complete.inputs, strict=True)]
            outputs, _ = VirtualEngine(self.program.mesh, prepare).compile(self.program).run(shards)
            whole = []
            for value, parts in zip(self.program.outputs, outputs):
                local = self.program.values[value]
                whole.append(assemble(parts, local.spec, local.type.shape)[()])
            return unflatten(self.source.out_tree, whole)
        from .torch_programs import engine_for
        from .torch_programs import whole as whole_outputs

        engine = engine_for(self.program.mesh)
        inputs = self.source.inputs(*args, **kwargs)
        given = [engine.scatter(x.detach(), spec) for x, spec in zip(inputs, self.complete.inputs)]
        outputs, _ = engine.compile(self.program).run(given)
        return self.source.deliver(inputs, list(whole_outputs(self.program, outputs, engine)))
