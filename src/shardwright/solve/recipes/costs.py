"""What a recipe makes of a graph, and what that costs.

A recipe says the sharding of every value and the axes of every node: nothing is left to propagate.  Its cost is worked
out on a graph with few of its equal layers (`repeated.layers`).  A recipe goes through a graph node by node, and what
it decides in a layer follows from what it decided in the two next to it; so where two layers in the middle come out
equal, so do all that were left out between them, and each of those costs what these cost.  Where they do not, the whole
graph is priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...cost.machine import NO_OVERLAP, Hardware
from ...cost.overlap import graph_roles
from ...cost.program import ProgramCost
from ...ir.graph import Graph
from ...plans.requests import is_open
from ...propagation import rule_of, run_hierarchical_propagation_pass
from ...propagation.complete import Complete, complete
from ...spec.mesh import DeviceMesh
from ...spec.sharding import ShardingSpec
from ..price import price, spending
from ..repeated.layers import SIDES, Short, find_layers
from . import recipe_layout
from .parts import Known

Specs = Mapping[int, ShardingSpec]


def recipe_complete(
    name: str, graph: Graph, mesh: DeviceMesh, given: Specs, out_specs: Specs, known: Known | None = None
) -> Complete:
    """Complete shardings of a graph by a recipe; what is ``given``, by value, and ``out_specs``, by output, win.

    A `PlanInfeasible` where the recipe does not fit.
    """
    layout = recipe_layout(name, graph, mesh, known)
    said = {**layout.values, **given}
    pinned = {value: spec for value, spec in said.items() if not is_open(spec)}
    outs = {i: spec for i, spec in out_specs.items() if not is_open(spec)}
    specs = [said.get(value.id) for value in graph.values]
    if len(pinned) < len(said):  # what the user left open follows from what is around it
        specs = list(run_hierarchical_propagation_pass(graph, said, rule_of, out_specs=out_specs).specs)
    return complete(graph, mesh, specs, rule_of, pinned=pinned, out_specs=outs, forced=layout.forced)


def recipe_cost(
    name: str,
    graph: Graph,
    mesh: DeviceMesh,
    hardware: Hardware,
    given: Specs,
    out_specs: Specs,
    known: Known | None = None,
) -> tuple[ProgramCost, tuple[Short, Complete] | None]:
    """What the Program of `recipe_complete` costs, to the picosecond (but for the list of its collectives).

    With the short graph, and what the recipe makes of it, where that says all.
    """
    for short in _shorts(graph, given):
        mine = {short.values[value]: spec for value, spec in given.items() if value in short.values}
        outs = {short.outputs[i]: spec for i, spec in out_specs.items() if i in short.outputs}
        if len(outs) == len(out_specs):
            made = recipe_complete(name, short.graph, mesh, mine, outs, known)
            cost = _folded_cost(short, made, hardware)
            if cost is not None:
                return cost, (short, made)
    whole = recipe_complete(name, graph, mesh, given, out_specs, known)
    return price(whole, hardware, _roles(graph, hardware)), None


def _roles(graph: Graph, hardware: Hardware) -> tuple[str | None, ...] | None:
    return graph_roles(graph) if hardware.overlap != NO_OVERLAP else None


def _shorts(graph: Graph, given: Specs) -> Iterator[Short]:
    """Graphs with fewer and fewer layers left out."""
    layers = find_layers(graph, given)
    if layers is not None:
        yield from (layers.short(*sides) for sides in SIDES if sum(sides) < layers.count)


def _folded_cost(short: Short, made: Complete, hardware: Hardware) -> ProgramCost | None:
    """The cost of the long graph from complete shardings of the short one; None if its inner layers are not alike."""
    graph, layers, count = short.graph, short.layers, len(short.graph.nodes)
    spent = np.diff(np.array([(0, 0, 0), *spending(made, hardware, _roles(graph, hardware))], np.int64), axis=0)
    was = {here: value for value, here in short.values.items()}
    ends = [was[value] for value in (*graph.outputs, *graph.inputs)]
    layer = np.concatenate([layers.node_layer[list(short.kept)], layers.value_layers[ends]])
    place = np.concatenate([layers.node_place[list(short.kept)], layers.value_places[ends]])
    said = [decision[1:] for decision in made.decisions]
    facts = [*zip(said, spent[:count].tolist()), *zip(made.outputs, spent[count:].tolist()), *made.inputs]
    kinds = np.repeat(np.arange(3), [count, len(graph.outputs), len(graph.inputs)])
    # The layer that stands for those left out, and the one behind them.
    one, other = (
        {(kinds[i], place[i]): facts[i] for i in np.flatnonzero(layer == at).tolist()}
        for at in (short.low - 1, short.low + short.out)
    )
    if one != other:
        return None
    times = np.where(layer == short.low - 1, 1 + short.out, 1)[: len(spent)]
    compute, communication, shown = (times @ spent).tolist()
    return ProgramCost(compute, communication, (), communication - shown)
