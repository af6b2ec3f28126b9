"""One call on arrays in shards as a Program: what `arrays` and `tensors` share."""

from __future__ import annotations

from collections.abc import Sequence

from ...cost.hardware import hardware_of
from ...ir.core import CONSTRAINT
from ...ir.graph import Graph
from ...ir.program import Program
from ...lower import lower
from ...plans.asked import Asked
from ...plans.requests import Request
from ...solve.planner import Planner
from ...spec.mesh import DeviceMesh
from ...spec.sharding import ShardingSpec
from ..proven import proven_here


def program_by_specs(graph: Graph, mesh: DeviceMesh, specs: Sequence[ShardingSpec]) -> Program:
    """A program of one call, whose arguments are sharded so; proven, as all that runs.

    A result in a sharding that was asked for keeps it, pending ones too; all others are finished.
    """
    names = [graph.values[value].name for value in graph.inputs]
    requests = [Request("in_specs", (name, str(spec)), spec=spec) for name, spec in zip(names, specs)]
    for i, value in enumerate(graph.outputs):
        producer = graph.values[value].producer
        if producer is not None and graph.nodes[producer[0]].op == CONSTRAINT:
            requests.append(Request("out_specs", (f"output {i}", graph.nodes[producer[0]].attr("spec"))))
    complete = Planner(graph, mesh, hardware_of("virtual"), Asked.of(graph, mesh, requests)).said
    program = lower(complete)
    proven_here(complete.graph, program, graph)
    return program
