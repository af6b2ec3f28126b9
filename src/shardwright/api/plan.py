"""`plan`: the plan with the least predicted step time, with its bound; `compare`: plans and recipes in one table.

A program is captured (or traced), the planner chooses, the choice is lowered, and what is reported is read off the
lowered Program.  Recipes are tried beside the planner, so that no plan is worse than any of them that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cost import Hardware, hardware_of, memory_profile, program_cost, simulate
from ..errors import GraphError, PlanInfeasible, ShardwrightError, near_misses
from ..frontends.numpy import Traced, prepare, trace
from ..frontends.numpy.trees import flatten, unflatten
from ..ir.digest import program_hash
from ..ir.graph import Graph
from ..ir.program import Collective, Program
from ..lower import lower
from ..plan import NodePlan, Plan, PlanCost, gibibytes, milliseconds, table
from ..propagate import apply_constraints, rule_of
from ..propagate.complete import Complete, Decision
from ..run import VirtualEngine, assemble, scatter
from ..solve.assign import Assigner
from ..solve.tighten import tighten
from ..spec.axes import Axes, axes_text
from ..spec.mesh import DeviceMesh
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec
from .compile import Said, bind_specs, compile_graph, read_constraints
from .recipes import RECIPES, recipe_specs
from .shard_map import in_specs_by_position, spread, uses_torch

DEFAULT_SECONDS = 120.0
"""Time for the solver where the user gives none: hard problems take any time for a proof."""
TRIES = 4
"""How often the limit given to the solver is lowered, where its estimate of memory was too low."""


@dataclass(frozen=True)
class Candidate:
    """A way to run the program: lowered, priced and measured."""

    name: str
    complete: Complete
    program: Program
    cost: PlanCost
    memory: int

    def fits(self, limit: int | None) -> bool:
        return limit is None or self.memory <= limit


class Planned:
    """A plan together with its program: look at it, or call it."""

    def __init__(self, plan: Plan, source: Any, complete: Complete, program: Program, hardware: Hardware) -> None:
        self.plan = plan
        self.source = source
        """What was captured or traced."""
        self.complete = complete
        self.program = program
        self.hardware = hardware

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
        return self.plan.diff(other.plan if isinstance(other, Planned) else other)

    def __str__(self) -> str:
        plan = self.plan
        gap = f"within {100 * plan.gap:.2f}% of the best" if plan.gap else "no plan is better"
        return (
            f"{plan.name} on ({plan.mesh}), {plan.hardware}: {milliseconds(plan.cost.objective)} a step "
            f"({milliseconds(plan.cost.compute)} compute, {milliseconds(plan.cost.communication)} communication), "
            f"{gibibytes(plan.memory)}; {gap} ({plan.solver})"
        )

    def explain(self, name: str) -> str:
        """How a value lies, and what every other way to lie would cost, all else being chosen anew around it."""
        graph = self.complete.graph
        value = graph.by_name.get(name)
        if value is None or value not in graph.inputs:
            names = [graph.values[v].name for v in graph.inputs]
            raise GraphError(f"no input is called {name!r}", help=near_misses(name, names))
        chosen = dict(zip(graph.inputs, self.complete.inputs))[value]
        assigner = Assigner(graph, self.complete.mesh, self.hardware)
        rows = [["sharding", "objective", "against the plan"]]
        found = []
        for spec in assigner.inputs[value]:
            try:
                other = Assigner(graph, self.complete.mesh, self.hardware, {value: spec}).solve()
            except PlanInfeasible:
                continue
            found.append((other.cost.objective, str(spec), spec == chosen))
        for objective, text, is_chosen in sorted(found):
            more = objective - self.plan.cost.objective
            rows.append([text + (" (chosen)" if is_chosen else ""), milliseconds(objective), f"{more / 1e9:+.3f} ms"])
        return f"{name}: {graph.type(value)}\n{table(rows)}"

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
            lines.setdefault(where, []).append(f"    {time / 1e6:9.1f} us  {instr.op}{over}  {made}")
        return "\n".join(line for where, parts in lines.items() for line in (where, *parts))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the virtual mesh, or on the processes that torchrun started: whole tensors in, whole tensors out."""
        if isinstance(self.source, Traced):
            leaves = [np.asarray(leaf) for _, leaf in flatten((args, kwargs))[0]]
            shards = [scatter(x, spec) for x, spec in zip([*leaves, *self.source.consts], self.complete.inputs)]
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


def plan(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any,
    in_specs: Any = None,
    out_specs: Any = None,
    constraints: Mapping[str, Any] | None = None,
    memory: int | None = None,
    hardware: Any = "h100",
    solver: str = "auto",
    recipe: str | None = None,
    time_limit: float | None = None,
    optimizer: Any = None,
    loss: Any = None,
    **kwargs: Any,
) -> Planned:
    """The plan with the least predicted step time that fits in memory.

    ``fn`` is a function of NumPy arrays or PyTorch tensors, or a PyTorch module; with ``optimizer`` or ``loss`` it is
    a training step.  ``constraints`` pins inputs by name or pattern, ``memory`` limits bytes per device, ``recipe``
    forces a named baseline.

    >>> import numpy as np
    >>> from shardwright import ShapeDtype
    >>> x, w = ShapeDtype((4096, 1024), np.float32), ShapeDtype((1024, 1024), np.float32)
    >>> made = plan(lambda x, w: x @ w, x, w, mesh="d=8")
    >>> made.specs["x"], made.gap, made.collectives
    ('[d, _]', 0.0, [])
    """
    problem = _Problem.of(fn, args, kwargs, mesh, in_specs, out_specs, constraints, hardware, optimizer, loss)
    if recipe is not None:
        best, bound, used, cut = problem.by_recipe(recipe), 0, recipe, False
    else:
        best, bound, used, cut = problem.solved(memory, solver, time_limit)
        for name in RECIPES:
            try:
                other = problem.by_recipe(name)
            except ShardwrightError:
                continue  # it does not go with what the user pinned
            if other.fits(memory) and other.cost.objective < best.cost.objective:
                best, used = other, name
    if not best.fits(memory):
        assert memory is not None
        raise PlanInfeasible(
            f"the plan needs {gibibytes(best.memory)} a device",
            rows=[("memory", f"<= {gibibytes(memory)}")],
            help="allow more memory, take a larger mesh, or leave recipe out",
        )
    return problem.planned(best, min(bound, best.cost.objective), used, cut)


def compare(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any,
    plans: Sequence[Planned] = (),
    memory: int | None = None,
    **about: Any,
) -> str:
    """The planner's plan, recipes and given plans in one table, best first."""
    made = plan(fn, *args, mesh=mesh, memory=memory, **about)
    rows: list[tuple[int, list[str]]] = []

    def add(name: str, cost: PlanCost, held: int, count: int) -> None:
        fits = "" if memory is None or held <= memory else "does not fit"
        figures = [milliseconds(cost.objective), milliseconds(cost.compute), milliseconds(cost.communication)]
        rows.append((cost.objective, [name, *figures, gibibytes(held), str(count), fits]))

    add(f"plan ({made.plan.solver})", made.cost, made.memory, len(made.collectives))
    for i, other in enumerate(plans):
        add(f"given {i}: {other.plan.solver}", other.cost, other.memory, len(other.collectives))
    for name in RECIPES:
        try:
            other = plan(fn, *args, mesh=mesh, recipe=name, **{**about, "memory": None})
        except ShardwrightError:
            continue
        add(name, other.cost, other.memory, len(other.collectives))
    head = ["plan", "objective", "compute", "communication", "memory", "collectives", ""]
    return table([head, *(row for _, row in sorted(rows, key=lambda pair: pair[0]))])


def load_plan(text: str, fn: Callable[..., Any], *args: Any, hardware: Any = "h100", **about: Any) -> Planned:
    """A plan from its JSON, for this program; one for another program is refused."""
    read = Plan.from_json(text)
    problem = _Problem.of(
        fn, args, about, DeviceMesh(read.mesh), None, None, None, hardware, about.pop("optimizer", None),
        about.pop("loss", None),
    )  # fmt: skip
    if program_hash(problem.graph) != read.program:
        raise GraphError(
            "the plan is for another program",
            rows=[("plan", f"{read.name} {read.program[:12]}"), ("program", program_hash(problem.graph)[:12])],
            help="plan this program anew",
        )
    complete = _complete(read, problem.graph, problem.mesh)
    return Planned(read, problem.source, complete, lower(complete), problem.hardware)


# -- the pipeline ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    source: Any
    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    given: Mapping[int, ShardingSpec]
    out_specs: Mapping[int, ShardingSpec]

    @classmethod
    def of(
        cls, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any, in_specs: Any, out_specs: Any,
        constraints: Mapping[str, Any] | None, hardware: Any, optimizer: Any, loss: Any,
    ) -> _Problem:  # fmt: skip
        on = DeviceMesh.of(mesh)
        source: Any
        if uses_torch(fn, args, kwargs):
            from .torch_plans import captured_problem

            source, given, wanted = captured_problem(fn, args, kwargs, on, in_specs, out_specs, optimizer, loss)
        else:
            source = trace(fn, *args, **kwargs)
            tree = flatten((args, kwargs))[1]
            specs = spread(in_specs_by_position(in_specs, fn, args, kwargs), tree, "in_specs")
            inputs = [source.graph.values[value] for value in source.graph.inputs]
            specs += [None] * (len(inputs) - len(specs))
            read = bind_specs(specs, [v.shape for v in inputs], on, [v.name for v in inputs])
            given = {source.graph.inputs[i]: spec for i, spec in read.items()}
            outs = [source.graph.values[value] for value in source.graph.outputs]
            asked = spread(out_specs, source.out_tree, "out_specs")
            wanted = bind_specs(asked, [v.shape for v in outs], on, [f"output {i}" for i in range(len(outs))])
        given = {**given, **_pinned(constraints or {}, source.graph, on)}
        specs_of = {**given, **read_constraints(source.graph, on)}
        graph, known = apply_constraints(source.graph, specs_of)
        closed = {value: spec.closed() for value, spec in known.items() if not any(d.open for d in spec.dims)}
        return cls(source, graph, on, hardware_of(hardware).on(on), closed, dict(wanted))

    def candidate(self, name: str, complete: Complete) -> Candidate:
        program = lower(complete)
        priced = program_cost(program, self.hardware, self.graph)
        shown = simulate(program, self.hardware, self.graph).exposed
        cost = PlanCost(priced.compute, priced.communication, priced.hidden, shown)
        return Candidate(name, complete, program, cost, memory_profile(program).peak)

    def by_recipe(self, name: str) -> Candidate:
        specs = {**recipe_specs(name, self.graph, self.mesh), **self.given}
        lowered = compile_graph(self.graph, self.mesh, Said(specs, self.out_specs))
        return self.candidate(name, lowered.complete)

    def solved(self, memory: int | None, solver: str, time_limit: float | None) -> tuple[Candidate, int, str, bool]:
        """The planner's; where memory is short its limit is lowered until the Program itself fits."""
        limit = memory
        for _ in range(TRIES):
            assigner = Assigner(self.graph, self.mesh, self.hardware, self.given, self.out_specs, limit)
            found = assigner.solve(solver, DEFAULT_SECONDS if time_limit is None else time_limit)
            made = self.candidate("plan", tighten(found.complete, self.hardware, self.given))
            if made.fits(memory):
                break
            assert memory is not None
            assert limit is not None
            limit = max(1, limit - (made.memory - memory) * 9 // 8)
        return made, found.lower_bound, found.solver, found.timed_out

    def planned(self, best: Candidate, bound: int, solver: str, timed_out: bool) -> Planned:
        complete = best.complete
        graph = complete.graph
        nodes = tuple(
            NodePlan(
                tuple(axes_text(axes) if axes else "_" for axes in d.axes),
                tuple(map(str, d.operands)), tuple(map(str, d.results)), tuple(map(str, d.homes)),
            )
            for d in complete.decisions
        )  # fmt: skip
        inputs = {graph.values[v].name: str(spec) for v, spec in zip(graph.inputs, complete.inputs)}
        made = Plan(
            program_hash(self.source.graph), graph.name, str(self.mesh), self.hardware.name, inputs, nodes,
            tuple(map(str, complete.outputs)), {v: str(s) for v, s in complete.hubs.items()}, best.cost, best.memory,
            bound, solver, timed_out, complete.notes,
        )  # fmt: skip
        return Planned(made, self.source, complete, best.program, self.hardware)


def _pinned(constraints: Mapping[str, Any], graph: Graph, mesh: DeviceMesh) -> dict[int, ShardingSpec]:
    from .specs import by_pattern

    return by_pattern(constraints, graph, mesh)


def _complete(read: Plan, graph: Graph, mesh: DeviceMesh) -> Complete:
    """Complete shardings from a plan's text."""
    if len(read.nodes) != len(graph.nodes) or len(read.inputs) != len(graph.inputs):
        raise GraphError("the plan has another number of ops or inputs than the program")

    def spec(text: str, value: int) -> ShardingSpec:
        return ShardingSpec.of(text, mesh, graph.type(value).rank).closed()

    def axes(text: str) -> Axes:
        return () if text == "_" else tuple(mesh.axis(word) for word in text.split("+"))

    decisions = []
    for n, (node, said) in enumerate(zip(graph.nodes, read.nodes)):
        view = rule_of(graph, node)
        rule: OpShardingRule | None = view.rule if view is not None and said.axes else None
        parts = [
            tuple(spec(text, value) for text, value in zip(texts, values, strict=True))
            for texts, values in (
                (said.operands, node.inputs), (said.results, node.results), (said.homes, node.results),
            )
        ]  # fmt: skip
        if rule is not None and len(rule.factors) != len(said.axes):
            rule = OpShardingRule.identity(graph.values[node.results[0]].shape)
        decisions.append(Decision(n, rule, tuple(map(axes, said.axes)), *parts))
    inputs = tuple(spec(read.inputs[graph.values[value].name], value) for value in graph.inputs)
    outputs = tuple(spec(text, value) for text, value in zip(read.outputs, graph.outputs, strict=True))
    hubs = {value: spec(text, value) for value, text in read.hubs.items()}
    return Complete(graph, mesh, inputs, tuple(decisions), outputs, read.notes, 0, hubs)
