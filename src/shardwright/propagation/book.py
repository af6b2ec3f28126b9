"""Propagation by the rule book: what each node's record says about it."""

from __future__ import annotations

from ..errors import ShardwrightError
from ..ir.core import BARRIER
from ..ir.graph import Graph, Node
from ..rules.registry import find, node_rule
from ..spec.rule import OpShardingRule
from .engine import OpView
from .factors import Direction

_DIRECTIONS = {"none": Direction.NONE, "forward": Direction.FORWARD, "backward": Direction.BACKWARD}


def rule_of(graph: Graph, node: Node) -> OpView | None:
    """None for an op that has no rule: it takes part in nothing and runs replicated."""
    if node.op == BARRIER:
        shape = graph.values[node.inputs[0]].shape
        return OpView(OpShardingRule.identity(shape), only=_DIRECTIONS[node.attr("allow", "none")])
    record = find(node.op)
    if record is None or not node.results:
        return None
    try:
        return OpView(node_rule(graph, node), record.flow)
    except ShardwrightError:
        return None  # the record does not cover this call; GraphExtractor says so
