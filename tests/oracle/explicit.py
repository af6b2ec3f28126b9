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
from shardwright.propagate.complete import complete
from shardwright.propagate.engine import OpView
from shardwright.propagate.project import project
from shardwright.rules.registry import sharding_rule
from shardwright.spec.collective import collective_bytes
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.reshard import reshard_bytes
from shardwright.spec.sharding import ShardingSpec

_AXIS = re.compile(r'"(\w+)"(:\(\d+\)\d+)?')


def left_to_later(given: Function, expected: Function) -> str:
    """Why the bytes of Shardy's program are not all in it: a split factor whose shards exchange data, or an op
    that it knows nothing about and leaves as it stands."""
    ours = [n for n, node in enumerate(given.graph.nodes) if node.op != CONSTRAINT]
    theirs = [node for node in expected.graph.nodes if not node.op.startswith("sdy.")]
    for n, node in zip(ours, theirs):
        rule = given.rules.get(n)
        if rule is None:
            if node.inputs and node.results:
                return "op without a rule"
            continue
        specs = [expected.specs.get(value) for value in (*node.inputs, *node.results)]
        for factors in (project(mapped, spec, rule.sizes).factors for mapped, spec in zip(rule.tensors, specs)):
            if any(rule.factors[f].permuted and factor.axes for f, factor in factors.items()):
                return "permuted factor left split"
            if any(rule.sizes[f] == 1 and factor.axes for f, factor in factors.items()):
                return "dim of size 1 left split"
    return ""


def our_bytes(given: Function, mesh: DeviceMesh) -> int:
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
    pinned = {
        value.id: (given.specs.get(value.id) or ShardingSpec.replicate(mesh, value.type.rank)).closed()
        for value in graph.values
    }
    specs = [pinned[value.id] for value in graph.values]
    outputs = {i: spec.closed() for i, spec in given.out_specs.items()}
    return lower(complete(graph, mesh, specs, rule_of, pinned=pinned, out_specs=outputs)).bytes


def shardy_total(expected: Function, mesh: DeviceMesh) -> int:
    """Reshards by our planner's bytes, all_reduces by definition."""
    total = 0
    graph = expected.graph

    def spec(value: int) -> ShardingSpec:
        return expected.specs.get(value) or ShardingSpec.replicate(mesh, graph.values[value].type.rank)

    for n, node in enumerate(graph.nodes):
        if not node.op.startswith("sdy."):
            continue
        source, target = spec(node.inputs[0]), spec(node.results[0])
        type = graph.type(node.inputs[0])
        if node.op == "sdy.all_reduce":
            words = _AXIS.findall(expected.attrs[n]["reduction_axes"])
            ways = prod(mesh.axis(name + part).size for name, part in words)
            local = prod(source.padded_shape(type.shape)) * type.item_bytes
            total += collective_bytes("all_reduce", ways, local)
        else:
            total += reshard_bytes(source.closed(), target.closed(), type.shape, type.item_bytes, idle=False)
    return total
