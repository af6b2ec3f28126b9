"""`Graph`: the captured program, before any sharding.

Values and nodes are frozen and numbered; an op is a name plus attributes.  A node may have several results,
optional operands (None) and list operands (a tuple of values).  Nothing is ever changed in place: state is
*updates*, pairs (input i := output j).  A view owns no bytes; it names the operand whose bytes it shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .graph_data import GraphData
from .json import graph_to_json, read_json
from .nodes import Attr, Attrs, Node, Operand, Source, TensorType, Value, freeze_attr
from .text import graph_text, read_graph
from .verify import verify

# What a graph is made of is imported from here, too: who speaks of graphs speaks of these.
__all__ = ["Attr", "Attrs", "Graph", "GraphBuilder", "Node", "Operand", "Source", "TensorType", "Value"]


class Graph(GraphData):
    """A program.  Build one with `GraphBuilder`, or read its text or JSON.

    >>> graph = Graph.parse("graph f(%x: f32[8]) { %y = exp(%x) : f32[8] return %y }")
    >>> graph == Graph.parse(str(graph)) == Graph.from_json(graph.to_json())
    True
    """

    def __str__(self) -> str:
        return graph_text(self)

    @staticmethod
    def parse(text: str) -> Graph:
        """The inverse of ``str``; what it returns is verified."""
        return verify(Graph(*read_graph(text)))

    def to_json(self) -> str:
        return json.dumps(graph_to_json(self), allow_nan=False)

    @staticmethod
    def from_json(data: Any) -> Graph:
        """The inverse of `to_json`, from the text or the object it stands for; what it returns is verified.

        Rules that an extractor attached are passed over.
        """
        return verify(Graph(*read_json(data)))


@dataclass
class GraphBuilder:
    """Adds values and nodes one by one.

    >>> b = GraphBuilder("mlp")
    >>> x, w = b.input((8, 16), name="x"), b.input((16, 4), name="w")
    >>> h = b.op("matmul", [x, w], [(8, 4)])
    >>> print(b.finish([h]))
    graph mlp(%x: f32[8, 16], %w: f32[16, 4]) {
      %2 = matmul(%x, %w) : f32[8, 4]
      return %2
    }
    """

    name: str = "main"
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _types: dict[TensorType, TensorType] = field(default_factory=dict)
    _attrs: dict[str, Attrs] = field(default_factory=dict)
    """Equal ones are one object: ten thousand values have some sixty types."""

    def input(self, shape: Sequence[int] | TensorType, dtype: str = "f32", name: str | None = None) -> int:
        value = self._value(_type(shape, dtype), name or f"arg{len(self.inputs)}", None)
        self.inputs.append(value)
        return value

    def op(
        self,
        op: str,
        operands: Sequence[Operand | list[int]],
        results: Sequence[Sequence[int] | TensorType],
        *,
        dtype: str = "f32",
        names: Sequence[str] = (),
        attrs: Mapping[str, Any] | None = None,
        views: Iterable[tuple[int, int]] = (),
        source: Source | None = None,
    ) -> Any:
        """Add a node; returns its result, or a tuple of them when there is not exactly one."""
        n = len(self.nodes)
        made = tuple(
            self._value(_type(result, dtype), names[r] if r < len(names) else None, (n, r))
            for r, result in enumerate(results)
        )
        frozen = tuple((key, freeze_attr(value)) for key, value in sorted((attrs or {}).items()))
        reads: tuple[Operand, ...] = tuple(
            tuple(operand) if isinstance(operand, list | tuple) else operand for operand in operands
        )
        # By their text: numbers that are equal need not be of one type.
        same = self._attrs.setdefault(repr(frozen), frozen)
        self.nodes.append(Node(op, reads, made, same, tuple(views), source))
        return made[0] if len(made) == 1 else made

    def finish(self, outputs: Sequence[int], updates: Iterable[tuple[int, int]] = ()) -> Graph:
        graph = Graph(
            self.name,
            tuple(self.values),
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(outputs),
            tuple(updates),
        )
        return verify(graph)

    def _value(self, type: TensorType, name: str | None, producer: tuple[int, int] | None) -> int:
        id = len(self.values)
        base = name = name if name else str(id)
        suffix = 1
        while name in self._names:
            name, suffix = f"{base}_{suffix}", suffix + 1
        self._names.add(name)
        self.values.append(Value(id, self._types.setdefault(type, type), name, producer))
        return id


def _type(shape: Sequence[int] | TensorType, dtype: str) -> TensorType:
    return shape if isinstance(shape, TensorType) else TensorType(tuple(shape), dtype)
