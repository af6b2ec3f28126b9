"""`Recorder`: the program as it is written down while the user's code runs.

Constants turn up in the middle of the run and are inputs all the same, and much of what a model computes is never
used (masks, positions, results of a recomputation), so the graph is built at the end: inputs first, dead ops left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ....ir.graph import Graph, GraphBuilder, Operand, SourceLine, TensorType
from ....ir.nodes import flat_operands
from ...base import BACKWARD, FORWARD, UPDATE
from ..private import current_autograd_node


@dataclass(slots=True)
class Recorded:
    op: str
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    attrs: Mapping[str, Any]
    views: tuple[tuple[int, int], ...]
    source: SourceLine | None
    phase: str

    def reads(self) -> tuple[int, ...]:
        return flat_operands(self.operands)


class Recorder:
    """Collects inputs and ops; values are numbered as they come."""

    def __init__(self) -> None:
        self.types: list[TensorType] = []
        self.inputs: list[tuple[int, str]] = []
        self.nodes: list[Recorded] = []
        self.draws = 0
        self.stage = ""
        self.phases: tuple[str, ...] = ()
        """Of the finished graph's nodes."""
        self.numbers: dict[int, int] = {}
        """For values of the finished graph: the number there."""

    @contextmanager
    def update(self, stage: str = UPDATE) -> Iterator[None]:
        """While an optimizer's step is written, or another stage of the update."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

    def value(self, type: TensorType) -> int:
        self.types.append(type)
        return len(self.types) - 1

    def input(self, type: TensorType, name: str) -> int:
        value = self.value(type)
        self.inputs.append((value, name))
        return value

    def order_inputs(self, first: int, then: Sequence[int]) -> None:
        """The first few inputs stay so; these follow, wherever they turned up, and the others after them."""
        place = {value: i for i, value in enumerate(then)}
        head, rest = self.inputs[:first], self.inputs[first:]
        self.inputs = [*head, *sorted(rest, key=lambda pair: place.get(pair[0], len(place)))]

    def node(
        self,
        op: str,
        operands: Sequence[Operand],
        types: Sequence[TensorType],
        attrs: Mapping[str, Any],
        views: Sequence[tuple[int, int]] = (),
        source: SourceLine | None = None,
    ) -> tuple[int, ...]:
        results = tuple(self.value(type) for type in types)
        phase = self.stage or (FORWARD if current_autograd_node() is None else BACKWARD)
        self.nodes.append(Recorded(op, tuple(operands), results, attrs, tuple(views), source, phase))
        return results

    def move_last_before(self, *phases: str) -> None:
        """The last node before all of these phases: it belongs to every batch, not to the update."""
        first = next((n for n, node in enumerate(self.nodes) if node.phase in phases), len(self.nodes) - 1)
        self.nodes.insert(first, self.nodes.pop())

    def maker(self, value: int) -> Recorded | None:
        """The op that made a value; None for inputs."""
        return next((node for node in reversed(self.nodes) if value in node.results), None)

    def draw(self) -> int:
        """The number of a random op among those of the program: together with a key and a step it fixes the numbers."""
        self.draws += 1
        return self.draws - 1

    def finish(
        self, name: str, outputs: Sequence[int], updates: Sequence[tuple[int, int]], keep: str | None = None
    ) -> Graph:
        """``updates`` are pairs (position in inputs, value): they become outputs after ``outputs``.

        With ``keep``, ops whose names begin so stay, whether or not anything comes of them here, and inputs that
        nobody reads go.
        """
        wanted = set(outputs) | {value for _, value in updates}
        alive: list[Recorded] = []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.results) or (keep is not None and node.op.startswith(keep)):
                wanted.update(node.reads())
                alive.append(node)
        self.phases = tuple(node.phase for node in reversed(alive))
        builder = GraphBuilder(name)
        used = wanted.union(*(node.reads() for node in alive)) if keep is not None else None
        known = {
            value: builder.input(self.types[value], name=label)
            for value, label in self.inputs
            if used is None or value in used
        }
        for node in reversed(alive):
            operands = [
                tuple(known[item] for item in operand) if isinstance(operand, tuple)
                else None if operand is None else known[operand]
                for operand in node.operands
            ]  # fmt: skip
            types = [self.types[value] for value in node.results]
            made = builder.op(node.op, operands, types, attrs=node.attrs, views=node.views, source=node.source)
            known.update(zip(node.results, (made,) if isinstance(made, int) else made))
        self.numbers = known
        ends = [known[value] for value in (*outputs, *(value for _, value in updates))]
        pairs = [(position, len(outputs) + n) for n, (position, _) in enumerate(updates)]
        return builder.finish(ends, pairs)
