"""`plan`: the plan with the least predicted step time, with its bound; `compare`: plans and recipes in one table.

A program is captured (or traced), the planner chooses, the choice is lowered, and what is reported is read off the
lowered Program.  Recipes are tried beside the planner, so that no plan is worse than any of them that fits and keeps
what the user asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cost.files import preset_names
from ..cost.hardware import hardware_of
from ..cost.machine import Hardware
from ..errors import GraphError, PlanInfeasible, ShardwrightError, SpecError
from ..ir.digest import program_hash
from ..ir.graph import Graph
from ..lower import lower
from ..plans import NodePlan, Plan, PlanCost, Wish, amount_text, duration, gibibytes, table
from ..propagation import rule_of
from ..propagation.complete import Complete, Decision
from ..solve.recipes import RECIPES
from ..spec.axes import Axes, axes_text
from ..spec.mesh import DeviceMesh
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec
from .arguments import check_call, check_name, check_path, check_time_limit
from .compile import Learning
from .planned import Planned
from .problem import Candidate, Problem, Solved, check_solver


def plan(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any,
    in_specs: Any = None,
    out_specs: Any = None,
    constraints: Any = None,
    memory: int | str | None = None,
    hardware: Any = "h100",
    solver: str = "auto",
    recipe: str | None = None,
    time_limit: float | None = None,
    optimizer: Any = None,
    loss: Any = None,
    learn: bool = False,
    rule_book: str | Path | None = None,
    uneven: bool = False,
    **kwargs: Any,
) -> Planned:
    """The plan with the least predicted step time that fits in memory.

    ``fn`` is a function of NumPy arrays or PyTorch tensors, or a PyTorch module; with ``optimizer`` or ``loss`` it is
    a training step.  ``constraints`` is a mapping of names or patterns to shardings, `pin`, `forbid` and `cap_gather`,
    or a list of these; ``memory`` limits bytes per device; ``solver`` is ``"auto"``, ``"elimination"``, ``"ilp"``,
    ``"search"``, ``"messages"`` or ``"simple"``; ``recipe`` forces a named baseline.  With ``learn`` ops that the rule
    book does not know are studied by execution, and what is found is used and kept in the file ``rule_book``, if one
    is named.  With ``uneven`` dims may be split that do not divide; shards then count as large as the largest.

    >>> import numpy as np
    >>> from shardwright import ShapeDtype
    >>> x, w = ShapeDtype((4096, 1024), np.float32), ShapeDtype((1024, 1024), np.float32)
    >>> made = plan(lambda x, w: x @ w, x, w, mesh="d=8")
    >>> made.specs["x"], made.gap, made.collectives
    ('[d, _]', 0.0, [])
    """
    check_solver(solver)
    check_time_limit(time_limit)
    check_path(rule_book, "rule_book")
    if recipe is not None:
        check_name(recipe, "recipe", RECIPES)
    check_call(fn, args, kwargs, plan)
    problem = Problem.of(
        fn, args, kwargs, mesh, in_specs, out_specs, constraints, memory, hardware, optimizer, loss
    )  # fmt: skip
    problem = replace(problem, notes=Learning(learn, rule_book).run(problem.source.graph))
    if uneven:
        problem = replace(problem, uneven=True, asked_for=(*problem.asked_for, Wish("uneven", "yes")))
    if recipe is not None:
        made = problem.by_recipe(recipe)
        if made.broken:
            raise _recipe_breaks(recipe, made)
        problem = replace(problem, asked_for=(*problem.asked_for, Wish("recipe", recipe)))
        return _planned(problem, Solved(made, 0, recipe, False))
    try:
        return _planned(problem, problem.solved(solver, time_limit))
    except PlanInfeasible as error:
        from .infeasible import diagnosed

        raise diagnosed(problem, error, solver, time_limit) from None


def _recipe_breaks(recipe: str, made: Candidate) -> PlanInfeasible:
    rows = [("user", str(word)) for word in made.broken]
    if all(word.memory is not None for word in made.broken):
        help = "allow more memory, take a larger mesh, or leave recipe out"
        return PlanInfeasible(f"the plan needs {amount_text(made.memory)} a device", rows=rows, help=help)
    return PlanInfeasible(
        f"the recipe {recipe!r} does not keep what was asked for", rows=rows, help="leave recipe or these out"
    )


def compare(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any,
    plans: Planned | Sequence[Planned] = (),
    memory: int | str | None = None,
    **about: Any,
) -> str:
    """The planner's plan, recipes and given plans in one table, best first."""
    plans = [plans] if isinstance(plans, Planned) else list(plans)
    for other in plans:
        if not isinstance(other, Planned):
            raise SpecError(
                f"plans= takes what sw.plan returned, not a {type(other).__name__}",
                help="read a file with sw.load_plan",
            )
    if "recipe" in about:
        raise SpecError("compare shows all recipes, so recipe= says nothing", help="leave it out")
    made = plan(fn, *args, mesh=mesh, memory=memory, **about)
    limit = made.problem.terms.memory
    rows: list[tuple[int, list[str]]] = []

    def add(name: str, cost: PlanCost, held: int, count: int) -> None:
        fits = "" if limit is None or held <= limit else "does not fit"
        times = (cost.objective, cost.compute, cost.communication)
        figures = [duration(time, beside=made.cost.objective) for time in times]
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


def load_plan(
    text: str,
    fn: Callable[..., Any],
    *args: Any,
    hardware: Any = None,
    rule_book: str | Path | None = None,
    **about: Any,
) -> Planned:
    """A plan from its JSON, for this program; one for another program or machine is refused.

    ``hardware`` is what it was planned for; a preset is found by the plan's word.  A plan that splits ops by rules that
    were learned needs their ``rule_book``.
    """
    if not isinstance(text, str):
        raise SpecError(f"load_plan takes a plan's JSON as text, not a {type(text).__name__}", help=_READ)
    try:
        read = Plan.from_json(text)
    except GraphError as error:
        if not text.lstrip().startswith(("{", "[")):
            error.help = _READ
        raise
    optimizer, loss = about.pop("optimizer", None), about.pop("loss", None)
    check_path(rule_book, "rule_book")
    check_call(fn, args, about, load_plan, "load_plan")
    problem = Problem.of(
        fn, args, about, DeviceMesh(read.mesh), hardware=_machine(read.hardware) if hardware is None else hardware,
        optimizer=optimizer, loss=loss,
    )  # fmt: skip
    Learning(rule_book=rule_book).run(problem.source.graph)
    if program_hash(problem.source.graph) != read.program:
        raise GraphError(
            "the plan is for another program",
            rows=[("plan", f"{read.name} {read.program[:12]}"), ("program", program_hash(problem.source.graph)[:12])],
            help="plan this program anew",
        )
    if problem.hardware.name != read.hardware:
        raise GraphError(
            "the plan was made for another machine",
            rows=[("plan", read.hardware), ("hardware", problem.hardware.name)],
            help="pass hardware= as it was planned for, or plan anew",
        )
    complete = _complete(read, problem.graph, problem.mesh)
    return Planned(read, problem, complete, lower(complete))


_READ = 'give what to_json() returned: load_plan(Path("plan.json").read_text(), fn, *args)'


def _machine(name: str) -> Hardware:
    """The preset of this name."""
    for preset in (*preset_names(), "virtual"):
        found = hardware_of(preset)
        if found.name == name:
            return found
    raise GraphError(f"the plan was made for {name!r}, which is no preset", help="pass hardware= as it was planned for")


def _planned(problem: Problem, found: Solved) -> Planned:
    best = found.best
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
        program_hash(problem.source.graph), graph.name, str(problem.mesh), problem.hardware.name, inputs, nodes,
        tuple(map(str, complete.outputs)), _sources_text(complete),
        {value: str(spec) for value, spec in complete.kept.items()}, best.cost, best.memory,
        min(found.bound, best.cost.objective), found.solver, found.timed_out, complete.notes,
        problem.asked_for,
    )  # fmt: skip
    return Planned(made, problem, complete, best.program)


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
    sources = {
        value: {spec(made, value): spec(source, value) for made, source in pairs}
        for value, pairs in read.copies.items()
    }
    kept = {value: spec(text, value) for value, text in read.kept.items()}
    return Complete(graph, mesh, inputs, tuple(decisions), outputs, read.notes, 0, sources, kept)


def _sources_text(complete: Complete) -> dict[int, tuple[tuple[str, str], ...]]:
    return {
        value: tuple((str(made), str(source)) for made, source in pairs.items())
        for value, pairs in complete.sources.items()
    }
