"""Ops in their parts: for a split that needs communication inside an op, complete shardings of what it is made of."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import GraphError
from ..ir.graph import Graph, Node
from ..rules.registry import OperandTypes, parts
from ..spec.mesh import DeviceMesh
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec
from .book import rule_of
from .engine import run_hierarchical_propagation_pass

PARTS = "parts"
MOST = 20_000
"""So many completed parts are remembered."""
Specs = tuple[ShardingSpec, ...]


def in_parts(rule: OpShardingRule, axes: Sequence[object]) -> bool:
    """Whether a factor is split that calls for the op's parts."""
    return any(factor.form == PARTS and given for factor, given in zip(rule.factors, axes))


def parts_of(graph: Graph, node: Node) -> Graph | None:
    """The graph of what a node is made of."""
    types: OperandTypes = tuple(
        tuple(graph.type(value) for value in operand)
        if isinstance(operand, tuple)
        else None
        if operand is None
        else graph.type(operand)
        for operand in node.operands
    )
    found = parts(node.op, node.attrs, types)
    if found is not None and [found.type(value) for value in found.outputs] != list(graph.types(node.results)):
        raise GraphError(
            "the parts of an op do not give what it gives",
            rows=[("op", node.op), ("gives", str(graph.types(node.results))), ("parts", str(found))],
        )
    return found


_completed: dict[tuple[int, DeviceMesh, Specs, Specs], tuple[Graph, object]] = {}


def complete_parts(inner: Graph, mesh: DeviceMesh, operands: Specs, results: Specs) -> object:
    """The `Complete` of the parts, between these shardings of the op's operands and results."""
    from .complete import complete  # which asks for the price of parts

    key = (id(inner), mesh, operands, results)  # parts are remembered where they come from; comparing them is slow
    if key not in _completed:
        given = dict(zip(inner.inputs, operands))
        wanted = dict(enumerate(results))
        found = run_hierarchical_propagation_pass(inner, given, rule_of, out_specs=wanted)
        made = complete(inner, mesh, found.specs, rule_of, pinned=given, out_specs=wanted)
        if len(_completed) > MOST:
            _completed.clear()
        _completed[key] = (inner, made)
    return _completed[key][1]
