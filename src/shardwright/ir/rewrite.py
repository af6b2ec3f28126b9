"""Make a new graph from an old one, with nodes put in and operands exchanged.

Passes are functions from graph to graph; this is the walk they share.  Old values keep their names, and
`Rewriter.new` says what became of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .graph import Graph, GraphBuilder, Node, Operand


@dataclass
class Rewriter:
    """Copies a graph node by node into a builder.

    ``new[old value]`` is its image; ``instead`` overrides it for the readers that follow.
    """

    graph: Graph
    builder: GraphBuilder = field(init=False)
    new: dict[int, int] = field(default_factory=dict)
    instead: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.builder = GraphBuilder(self.graph.name)
        for value in self.graph.inputs:
            old = self.graph.values[value]
            self.new[value] = self.builder.input(old.type, name=old.name)

    def read(self, value: int) -> int:
        """What a reader of an old value reads now."""
        return self.instead.get(value, self.new[value])

    def copy(self, node: Node, operands: tuple[Operand, ...] | None = None) -> tuple[int, ...]:
        """Put in a node as it was; ``operands`` (new values) override what it reads."""
        reads = tuple(map(self.operand, node.operands)) if operands is None else operands
        types = self.graph.types(node.results)
        names = [self.graph.values[value].name for value in node.results]
        made = self.builder.op(node.op, reads, types, names=names, views=node.views, source=node.source)
        results: tuple[int, ...] = made if isinstance(made, tuple) else (made,)
        self.builder.nodes[-1] = replace(self.builder.nodes[-1], attrs=node.attrs)
        self.new.update(zip(node.results, results))
        return results

    def insert(self, op: str, old: int, attrs: Mapping[str, Any] | None = None) -> int:
        """Put in a node that reads an old value and returns something of its type."""
        value = self.graph.values[old]
        made: int = self.builder.op(op, [self.read(old)], [value.type], names=[value.name], attrs=attrs)
        return made

    def operand(self, operand: Operand) -> Operand:
        if isinstance(operand, tuple):
            return tuple(map(self.read, operand))
        return None if operand is None else self.read(operand)

    def finish(self, outputs: tuple[int, ...] | None = None) -> Graph:
        returned = tuple(map(self.read, self.graph.outputs)) if outputs is None else outputs
        return self.builder.finish(returned, self.graph.updates)


def split_constants(graph: Graph, op: str) -> tuple[Graph, dict[int, int]]:
    """Give every use of a constant a copy of its own, so that each can be sharded as its reader likes.

    Constants are the nodes called ``op``.  Also returns the image of each old value (of a constant: of its
    last copy).
    """
    rewriter = Rewriter(graph)
    sources = {node.results[0]: node for node in graph.nodes if node.op == op}

    def fresh(value: int) -> int:
        if value not in sources:
            return rewriter.read(value)
        return rewriter.copy(sources[value])[0]

    def read(operand: Operand) -> Operand:
        if isinstance(operand, tuple):
            return tuple(map(fresh, operand))
        return None if operand is None else fresh(operand)

    for node in graph.nodes:
        if node.op != op:
            rewriter.copy(node, tuple(map(read, node.operands)))
    outputs = tuple(map(fresh, graph.outputs))
    for value, node in sources.items():
        if value not in rewriter.new:  # nobody reads it
            rewriter.copy(node)
    return rewriter.finish(outputs), rewriter.new
