"""From a graph and what the user said of its shardings to a Program: the pipeline, bound together.

constraints -> (solver) -> propagation -> complete -> lower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cost import Hardware, hardware_of
from ..errors import ShardwrightError
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph
from ..ir.program import Program
from ..lower import lower
from ..propagation import Propagated, apply_constraints, rule_of, run_hierarchical_propagation_pass
from ..propagation.complete import Complete, complete
from ..spec.axes import Axes
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec

Say = Callable[[str], None]


@dataclass(frozen=True)
class Said:
    """What the user said: by value of the graph, and by output.  All of it stays as it is."""

    values: Mapping[int, ShardingSpec] = field(default_factory=dict)
    outputs: Mapping[int, ShardingSpec] = field(default_factory=dict)
    forced: Mapping[int, Sequence[Axes]] = field(default_factory=dict)
    """Node -> the axes that its factors get, where somebody, such as a recipe, decided that too."""


@dataclass(frozen=True)
class Auto:
    """Who decides where the user said nothing, and for which machine."""

    solver: str = "auto"
    hardware: Any = "virtual"
    time_limit: float | None = None

    @property
    def machine(self) -> Hardware:
        return hardware_of(self.hardware)


@dataclass(frozen=True)
class Learning:
    """Whether ops without a rule are studied, and the user's book of what was found."""

    learn: bool = False
    rule_book: str | Path | None = None

    def run(self, graph: Graph) -> tuple[str, ...]:
        """Look at the ops of a program; notes about what was found."""
        if not self.learn and self.rule_book is None:
            return ()
        from ..discover.on_demand.learn import learn_ops

        return learn_ops(graph, self.rule_book, self.learn)


@dataclass(frozen=True)
class Lowered:
    """Every stage of the pipeline, to look at."""

    graph: Graph
    propagated: Propagated
    complete: Complete
    program: Program


def read_constraints(graph: Graph, mesh: DeviceMesh) -> dict[int, ShardingSpec]:
    """The shardings that ``with_sharding_constraint`` left in a program."""
    found = {}
    for n, node in enumerate(graph.nodes):
        if node.op != CONSTRAINT:
            continue
        value = node.results[0]
        try:
            found[value] = ShardingSpec.of(node.attr("spec"), mesh, graph.values[value].type.rank)
        except ShardwrightError as error:
            where = f"constraint at {node.source}" if node.source else f"constraint, node {n}"
            raise error.add("in", where) from None
    return found


def compile_graph(
    graph: Graph, mesh: DeviceMesh, said: Said, *, auto: Auto | bool = False, debug: bool = False, say: Say = print
) -> Lowered:
    """Shardings for everything, then the Program.  ``auto`` asks a solver where the user said nothing."""
    specs = {**said.values, **read_constraints(graph, mesh)}
    graph, specs = apply_constraints(graph, specs)
    constrained = {node.results[0] for node in graph.nodes if node.op == CONSTRAINT}
    pinned = {
        value: spec
        for value, spec in specs.items()
        if (value in said.values or value in constrained) and not any(dim.open for dim in spec.dims)
    }
    if auto:
        asked = auto if isinstance(auto, Auto) else Auto()
        return _solved(graph, mesh, specs, pinned, said, asked, debug, say)
    return finish(graph, mesh, specs, pinned, said)


def propagate(
    graph: Graph, mesh: object, specs: Mapping[str, object], out_specs: Mapping[int, object] | None = None
) -> Propagated:
    """Spread shardings over a graph: ``specs`` by the names of values, ``out_specs`` by output.

    >>> graph = Graph.parse("graph f(%x: f32[8, 4]) { %y = exp(%x) : f32[8, 4] return %y }")
    >>> print(propagate(graph, "dp=2", {"x": "[dp, _]"})["y"])
    [dp+?, ?]
    """
    on = DeviceMesh.of(mesh)
    said = {
        graph.by_name[name]: ShardingSpec.of(spec, on, graph.values[graph.by_name[name]].type.rank)
        for name, spec in specs.items()
    }
    outs = {
        i: ShardingSpec.of(spec, on, graph.values[graph.outputs[i]].type.rank) for i, spec in (out_specs or {}).items()
    }
    return run_hierarchical_propagation_pass(graph, said, rule_of, out_specs=outs)


def finish(
    graph: Graph,
    mesh: DeviceMesh,
    specs: Mapping[int, ShardingSpec],
    pinned: Mapping[int, ShardingSpec],
    said: Said,
) -> Lowered:
    """Propagate, complete, lower."""
    found = run_hierarchical_propagation_pass(graph, specs, rule_of, out_specs=said.outputs)
    outputs = _closed(said.outputs)
    fixed = complete(graph, mesh, found.specs, rule_of, pinned=pinned, out_specs=outputs, forced=said.forced)
    return Lowered(graph, found, fixed, lower(fixed))


def _solved(
    graph: Graph,
    mesh: DeviceMesh,
    specs: Mapping[int, ShardingSpec],
    pinned: Mapping[int, ShardingSpec],
    said: Said,
    auto: Auto,
    debug: bool,
    say: Say,
) -> Lowered:
    """The solver's plan, completed exactly as the solver priced it; what the user said stays."""
    closed = _closed(said.outputs)
    if auto.solver == "simple":
        seeds, fixed = simple_complete(graph, mesh, specs, closed, auto.machine, pinned, debug, say)
    else:
        from .auto import planned_complete

        seeds, fixed = planned_complete(graph, mesh, specs, closed, auto, debug, say)
    found = run_hierarchical_propagation_pass(graph, seeds, rule_of, out_specs=said.outputs)
    return Lowered(graph, found, fixed, lower(fixed))


def simple_complete(
    graph: Graph,
    mesh: DeviceMesh,
    specs: Mapping[int, ShardingSpec],
    out_specs: Mapping[int, ShardingSpec],
    hardware: Hardware,
    pinned: Mapping[int, ShardingSpec] | None = None,
    debug: bool = False,
    say: Say = print,
) -> tuple[dict[int, ShardingSpec], Complete]:
    """What `SimpleSolver` chooses: shardings by value, and all of them completed."""
    from ..solve import SimpleSolver

    closed = _closed(out_specs)
    solution = SimpleSolver(mesh, hardware, debug=debug, log=say).solve(graph, given=dict(specs), out_specs=closed)
    for n in range(len(graph.nodes)):
        if n not in solution.nodes:
            say(f"[shard_map] WARNING: No solution for node {n}")
    chosen = [solution.specs.get(value.id) for value in graph.values]
    kept = {**solution.pinned, **(pinned or {})}
    fixed = complete(graph, mesh, chosen, rule_of, pinned=kept, out_specs=closed, forced=solution.forced)
    return solution.specs, fixed


def _closed(outputs: Mapping[int, ShardingSpec]) -> dict[int, ShardingSpec]:
    """Outputs of which all is said."""
    return {i: spec for i, spec in outputs.items() if not any(dim.open for dim in spec.dims)}


def bind_specs(
    specs: Sequence[object], shapes: Sequence[Sequence[int]], mesh: DeviceMesh, names: Sequence[str]
) -> dict[int, ShardingSpec]:
    """Read what was written for each tensor; None says nothing."""
    found = {}
    for i, (spec, shape, name) in enumerate(zip(specs, shapes, names)):
        if spec is None:
            continue
        try:
            found[i] = ShardingSpec.of(spec, mesh, len(shape))
        except ShardwrightError as error:
            raise error.add("for", f"{name}: {list(shape)}") from None
    return found
