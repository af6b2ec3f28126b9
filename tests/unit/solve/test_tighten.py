"""Inputs that lie in less memory at the same price."""

from __future__ import annotations

from shardwright.cost import hardware_of, memory_profile, program_cost
from shardwright.ir.graph import Graph
from shardwright.lower import lower
from shardwright.solve.assign import Assigner
from shardwright.solve.tighten import tighten
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec

GRAPH = Graph.parse(
    "graph f(%x: f32[64, 4096], %w: f32[4096, 8192], %v: f32[8192, 4096]) {"
    " %h = matmul(%x, %w) : f32[64, 8192] %r = exp(%h) : f32[64, 8192]"
    " %y = matmul(%r, %v) : f32[64, 4096] return %y }"
)


def test_weights_are_cut_where_that_is_free_and_not_where_they_are_pinned():
    mesh, hardware = DeviceMesh("d=8"), hardware_of("h100")
    found = Assigner(GRAPH, mesh, hardware).solve().complete
    whole = tuple(ShardingSpec.replicate(mesh, 2) for _ in GRAPH.inputs)
    loose = type(found)(found.graph, mesh, whole, found.decisions, found.outputs, found.notes, 0, found.hubs)
    tight = tighten(loose, hardware, {})
    before, after = lower(loose), lower(tight)
    assert program_cost(after, hardware, GRAPH) == program_cost(before, hardware, GRAPH)
    assert memory_profile(after).peak < memory_profile(before).peak / 4
    kept = tighten(loose, hardware, {GRAPH.inputs[1]: whole[1]})
    assert kept.inputs[1] == whole[1]
