"""`program_hash`: a digest of what a program computes."""

from __future__ import annotations

import hashlib

from .graph import Graph
from .text import node_text


def program_hash(graph: Graph) -> str:
    """Neither its name, nor its source lines, nor any version or device bear on it.

    >>> text = "graph f(%x: f32[8]) { %y = exp(%x) : f32[8] return %y }"
    >>> program_hash(Graph.parse(text)) == program_hash(Graph.parse(text.replace("f(", "g(")))
    True
    """

    def name(value: int) -> str:
        return f"%{value}"

    def type_text(value: int) -> str:
        return str(graph.type(value))

    digest = hashlib.sha256()
    inputs = [f"{graph.values[value].name}: {graph.type(value)}" for value in graph.inputs]
    lines = [*inputs, *(node_text(node, name, type_text, sources=False) for node in graph.nodes)]
    for line in (*lines, str(graph.outputs), str(graph.updates)):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
