"""Where reshards and reductions go: our complete pass against Shardy's, by the bytes they move."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from shardy_ops import book_call, canonical, view_of
from vectors import Function

from shardwright.ir.core import CONSTRAINT
from shardwright.ir.graph import Graph, Node
from shardwright.lower import lower
from shardwright.propagation.complete import Complete, complete
from shardwright.propagation.engine import OpView
from shardwright.rules.registry import sharding_rule
from shardwright.spec.collective import collective_bytes
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.resharding.cheapest import reshard_bytes
from shardwright.spec.sharding import Shape, ShardingSpec

_AXIS = re.compile(r'"(\w+)"(:\(\d+\)\d+)?')


def completed(given: Function, mesh: DeviceMesh) -> Complete:
    """Every sharding in the record is pinned; values about which nothing is said are replicated."""

    def rule_of(graph: Graph, node: Node) -> OpView | None:
        n = node.attr("n")
        shapes = [graph.values[value].shape for value in node.inputs]
        rule = given.rules.get(n)
        known = book_call(node.op, given.attrs.get(n, {}))
        if rule is not None and known is not None:
            # Shardy's rules say nothing of pending reductions; the book's do.
            results = [graph.values[value].shape for value in node.results]
            ours = sharding_rule(known[0], shapes, results, known[1])
            rule = ours if canonical(ours) == canonical(rule) else rule
        return view_of(node.op, rule, shapes, given.attrs.get(n, {}))

    # A reshard that the user wrote is a constraint.
    nodes = [replace(node, op=CONSTRAINT) if node.op == "sdy.reshard" else node for node in given.graph.nodes]
    graph = replace(given.graph, nodes=tuple(nodes))
    specs = [spec_of(given, value.id, mesh).closed() for value in graph.values]
    outputs = {i: spec.closed() for i, spec in given.out_specs.items()}
    return complete(graph, mesh, specs, rule_of, pinned=dict(enumerate(specs)), out_specs=outputs)


def our_bytes(given: Function, mesh: DeviceMesh) -> int:
    return lower(completed(given, mesh)).bytes


def spec_of(function: Function, value: int, mesh: DeviceMesh) -> ShardingSpec:
    rank = function.graph.values[value].type.rank
    return function.specs.get(value) or ShardingSpec.replicate(mesh, rank)


def shardy_total(expected: Function, mesh: DeviceMesh) -> int:
    """Reshards by our planner's bytes, all_reduces by definition."""
    total = 0
    for n, node in enumerate(expected.graph.nodes):
        if not node.op.startswith("sdy."):
            continue
        source, target = (spec_of(expected, value, mesh) for value in (node.inputs[0], node.results[0]))
        type = expected.graph.type(node.inputs[0])
        if node.op == "sdy.all_reduce":
            words = _AXIS.findall(expected.attrs[n]["reduction_axes"])
            ways = prod(mesh.axis(name + part).size for name, part in words)
            local = prod(source.padded_shape(type.shape)) * type.item_bytes
            total += collective_bytes("all_reduce", ways, local)
        else:
            total += move_bytes(source, target, type.shape, type.item_bytes)
    return total


# -- devices in another order -----------------------------------------------------------------------------


def move_bytes(source: ShardingSpec, target: ShardingSpec, shape: Shape, item_bytes: int) -> int:
    """A reshard; to the same axes over other devices it also hands on all shards, before or after."""
    if not source.mesh.shape:  # without axes it says nothing
        source = ShardingSpec.replicate(target.mesh, len(shape))
    if source.mesh == target.mesh:
        return reshard_bytes(source.closed(), target.closed(), shape, item_bytes, idle=False)
    here, there = target.replace(mesh=source.mesh), source.replace(mesh=target.mesh)
    return min(
        crossing_bytes(source, there, shape, item_bytes) + move_bytes(there, target, shape, item_bytes),
        move_bytes(source, here, shape, item_bytes) + crossing_bytes(here, target, shape, item_bytes),
    )


def crossing_bytes(source: ShardingSpec, target: ShardingSpec, shape: Shape, item_bytes: int) -> int:
    """The same shards on other devices: a collective_permute, unless every device has its own already."""

    def held(spec: ShardingSpec) -> dict[int, object]:
        return {spec.mesh.device_ids[p]: spec.local_slices(shape, p) for p in spec.mesh}

    if source.mesh == target.mesh or not source.mesh.shape or held(source) == held(target):
        return 0
    return prod(source.padded_shape(shape)) * item_bytes


def our_bytes_at(given: Function, home: DeviceMesh) -> int:
    """The whole program over the devices in one order; what is wanted in another is handed on at the ends."""
    graph = given.graph
    total = 0
    for value in graph.values:
        spec = spec_of(given, value.id, home)
        total += crossing_bytes(spec, spec.replace(mesh=home), value.shape, value.type.item_bytes)
    for i, spec in given.out_specs.items():
        value = graph.values[graph.outputs[i]]
        if spec.mesh not in (home, spec_of(given, value.id, home).mesh):
            total += crossing_bytes(spec, spec.replace(mesh=home), value.shape, value.type.item_bytes)
    return total + our_bytes(moved_to(given, home), home)


def moved_to(function: Function, mesh: DeviceMesh) -> Function:
    """Every sharding by the same axes of another mesh."""
    specs = {value: spec.replace(mesh=mesh) for value, spec in function.specs.items()}
    return replace(function, specs=specs, out_specs={i: s.replace(mesh=mesh) for i, s in function.out_specs.items()})


def over_one_axis(function: Function) -> Function:
    """Meshes whose devices stand in order are parts of one axis: of 8, ``(x=4, y=2)`` has x = d:(1)4, y = d:(4)2."""

    def read(spec: ShardingSpec) -> ShardingSpec:
        one = DeviceMesh({"d": spec.mesh.size})
        before, steps = 1, {}
        for axis in spec.mesh.axes:
            steps[axis.name] = before
            before *= axis.size
        dims = [
            replace(dim, axes=tuple(one.sub_axis("d", steps[a.name] * a.pre, a.size) for a in dim.axes))
            for dim in spec.dims
        ]
        assert not spec.partial
        return ShardingSpec(one, dims)

    specs = {value: read(spec) for value, spec in function.specs.items()}
    return replace(function, specs=specs, out_specs={i: read(spec) for i, spec in function.out_specs.items()})
