"""Ops in their parts: which split calls for them, and the graph of what an op is made of."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import GraphError
from ..ir.graph import Graph, Node
from ..rules.registry import OperandTypes, parts
from ..spec.rule import OpShardingRule

PARTS = "parts"


def in_parts(rule: OpShardingRule, axes: Sequence[object]) -> bool:
    """Whether a factor is split that needs communication in the midst of the op (``form(parts)`` in its rule): the op
    is then written as the smaller ops that it is made of, its parts."""
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
    found = parts(node.op, node.attrs, types, tuple(graph.types(node.results)))
    if found is not None and [found.type(value) for value in found.outputs] != list(graph.types(node.results)):
        raise GraphError(
            "the parts of an op do not give what it gives",
            rows=[("op", node.op), ("gives", str(graph.types(node.results))), ("parts", str(found))],
        )
    return found
