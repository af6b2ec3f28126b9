"""Inputs that lie in less memory at the same price."""

from __future__ import annotations

from shardwright.cost import hardware_of, memory_profile, program_cost
from shardwright.ir.graph import Graph
from shardwright.lower import lower
from shardwright.plans import Asked
from shardwright.solve.model import Assigner
from shardwright.solve.tighten import tighten
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec

GRAPH = Graph.parse(
    "graph f(%x: f32[64, 4096], %w: f32[4096, 8192], %v: f32[8192, 4096]) {"
    " %h = matmul(%x, %w) : f32[64, 8192] %r = exp(%h) : f32[64, 8192]"
    " %y = matmul(%r, %v) : f32[64, 4096] return %y }"
)


def test_weights_are_cut_where_that_is_free_and_not_where_they_are_pinned() -> None:
    mesh, hardware = DeviceMesh("d=8"), hardware_of("h100")
    whole = ShardingSpec.replicate(mesh, 2)
    for given in ({}, {GRAPH.inputs[1]: whole}):
        assigner = Assigner(GRAPH, mesh, hardware, Asked.fixing(GRAPH, given))
        best = list(assigner.optimum(True).choice)
        for value in GRAPH.inputs:
            best[assigner.place[value]] = assigner.inputs[value].index(whole)
        tight = assigner.decode(tighten(assigner, best))
        before, after = lower(assigner.decode(best)), lower(tight)
        assert program_cost(after, hardware, GRAPH) == program_cost(before, hardware, GRAPH)
        assert memory_profile(after).peak < memory_profile(before).peak / (1.5 if given else 4)
        assert (tight.inputs[1] == whole) == bool(given)
