"""`GraphData`: the values and nodes of a program, and what follows from them.

What prints, reads and verifies graphs works on this; `graph.Graph` stands above it and knows them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from .nodes import Node, TensorType, Value
from .wiring import Wiring

Parts = tuple[str, tuple[Value, ...], tuple[Node, ...], tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
"""The fields of a graph, in order: what a reader makes of a text."""


@dataclass(frozen=True)
class GraphData:
    """A program as data, and the questions that it answers.  `graph.Graph` adds its forms: text and JSON."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    updates: tuple[tuple[int, int], ...] = ()
    """Pairs (position in inputs, position in outputs): that output is the input's next state."""

    def type(self, value: int) -> TensorType:
        return self.values[value].type

    def types(self, values: Iterable[int]) -> list[TensorType]:
        return [self.values[value].type for value in values]

    def node_of(self, value: int) -> int | None:
        producer = self.values[value].producer
        return None if producer is None else producer[0]

    @cached_property
    def wiring(self) -> Wiring:
        """The graph as arrays."""
        return Wiring.of(self.nodes, self.values)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each value the nodes that read it, in program order, one entry a use."""
        found: list[list[int]] = [[] for _ in self.values]
        for n, node in enumerate(self.nodes):
            for value in node.inputs:
                found[value].append(n)
        return tuple(map(tuple, found))

    @cached_property
    def output_uses(self) -> tuple[int, ...]:
        """For each value how often it is returned."""
        counts = [0] * len(self.values)
        for value in self.outputs:
            counts[value] += 1
        return tuple(counts)

    @cached_property
    def by_name(self) -> Mapping[str, int]:
        return {value.name: value.id for value in self.values}

    def base_of(self, value: int) -> int:
        """The value that owns the bytes shown by a view (itself, if it owns them)."""
        while (producer := self.values[value].producer) is not None:
            node = self.nodes[producer[0]]
            shown = next((operand for result, operand in node.views if result == producer[1]), None)
            if shown is None:
                return value
            value = node.inputs[shown]
        return value
