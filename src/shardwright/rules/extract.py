"""`GraphExtractor`: a program as JSON with the rule of every op, for solvers and other readers."""

from __future__ import annotations

import json
import logging
from typing import Any

from ..errors import ShardwrightError
from ..ir.graph import Graph
from ..ir.json import graph_to_json
from .registry import node_rule

_log = logging.getLogger(__name__)


class GraphExtractor:
    """Writes every op of a graph, with its bound rule as text.

    An op without a rule is written with ``"rule": null`` and a warning; nothing stops at it.

    >>> graph = Graph.parse("graph f(%x: f32[8, 4]) { %y = exp(%x) : f32[8, 4] return %y }")
    >>> GraphExtractor(graph).extract()["nodes"][0]["rule"]
    'b0 b1 -> b0 b1 ; P(max) -> P(max) ; P(min) -> P(min) | b0=8 b1=4'
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.warnings: list[str] = []

    def extract(self) -> dict[str, Any]:
        record = graph_to_json(self.graph)
        self.warnings = []
        for n, node in enumerate(self.graph.nodes):
            try:
                record["nodes"][n]["rule"] = str(node_rule(self.graph, node))
            except ShardwrightError as error:
                record["nodes"][n]["rule"] = None
                self._warn(n, node.op, error)
        return record

    def to_json(self) -> str:
        return json.dumps(self.extract(), allow_nan=False)

    def _warn(self, n: int, op: str, error: ShardwrightError) -> None:
        text = f"[GraphExtractor] WARNING: Failed to get sharding_rule for node {n}"
        self.warnings.append(text)
        _log.warning("%s (%s): %s", text, op, error.fact)
