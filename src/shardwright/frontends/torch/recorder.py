"""`Recorder`: the program as it is written down while the user's code runs.

Constants turn up in the middle of the run and are inputs all the same, and much of what a model computes is never
used (masks, positions, results of a recomputation), so the graph is built at the end: inputs first, dead ops left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.graph import Graph, GraphBuilder, Operand, Source, TensorType
from ...ir.nodes import flat_operands


@dataclass(slots=True)
class Recorded:
    op: str
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    attrs: Mapping[str, Any]
    views: tuple[tuple[int, int], ...]
    source: Source | None

    def reads(self) -> tuple[int, ...]:
        return flat_operands(self.operands)


class Recorder:
    """Collects inputs and ops; values are numbered as they come."""

    def __init__(self) -> None:
        self.types: list[TensorType] = []
        self.inputs: list[tuple[int, str]] = []
        self.nodes: list[Recorded] = []
        self.draws = 0

    def value(self, type: TensorType) -> int:
        self.types.append(type)
        return len(self.types) - 1

    def input(self, type: TensorType, name: str) -> int:
        value = self.value(type)
        self.inputs.append((value, name))
        return value

    def node(
        self,
        op: str,
        operands: Sequence[Operand],
        types: Sequence[TensorType],
        attrs: Mapping[str, Any],
        views: Sequence[tuple[int, int]] = (),
        source: Source | None = None,
    ) -> tuple[int, ...]:
        results = tuple(self.value(type) for type in types)
        self.nodes.append(Recorded(op, tuple(operands), results, attrs, tuple(views), source))
        return results

    def maker(self, value: int) -> Recorded | None:
        """The op that made a value; None for inputs."""
        return next((node for node in reversed(self.nodes) if value in node.results), None)

    def draw(self) -> int:
        """The number of a random op among those of the program: together with a key and a step it fixes the numbers."""
        self.draws += 1
        return self.draws - 1

    def finish(self, name: str, outputs: Sequence[int], updates: Sequence[tuple[int, int]]) -> Graph:
        """``updates`` are pairs (position in inputs, value): they become outputs after ``outputs``."""
        wanted = set(outputs) | {value for _, value in updates}
        alive: list[Recorded] = []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.results):
                wanted.update(node.reads())
                alive.append(node)
        builder = GraphBuilder(name)
        known = {value: builder.input(self.types[value], name=label) for value, label in self.inputs}
        for node in reversed(alive):
            operands = [
                tuple(known[item] for item in operand) if isinstance(operand, tuple)
                else None if operand is None else known[operand]
                for operand in node.operands
            ]  # fmt: skip
            types = [self.types[value] for value in node.results]
            made = builder.op(node.op, operands, types, attrs=node.attrs, views=node.views, source=node.source)
            known.update(zip(node.results, (made,) if isinstance(made, int) else made))
        ends = [known[value] for value in (*outputs, *(value for _, value in updates))]
        pairs = [(position, len(outputs) + n) for n, (position, _) in enumerate(updates)]
        return builder.finish(ends, pairs)
