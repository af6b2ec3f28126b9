"""A training step cut into pieces that run one after the other: gradients, their norm, the update.

The graph is planned as one; where something has to happen between its phases (micro-batches that add up, a look at the
norm) its decisions are cut in rows, and each row is lowered by itself.  Values that one piece makes and a later one
reads go from hand to hand, in the sharding that they have; state that a piece updates is what the next one reads.

    complete -> [Piece "gradients"] -> [Piece "update"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..errors import GraphError
from ..ir.graph import Graph, GraphBuilder
from ..ir.program import Program
from ..plans.complete import Complete
from ..spec.sharding import ShardingSpec
from .lowering import lower


@dataclass(frozen=True)
class Piece:
    """Some nodes of a graph in a row, as a graph of their own.  Values are those of the whole graph."""

    name: str
    complete: Complete
    takes: tuple[int, ...]
    """The value behind each input."""
    gives: tuple[int, ...]
    """The value behind each output."""
    returns: Mapping[int, int] = field(default_factory=dict)
    """Outputs of the whole graph -> of the piece."""
    spent: frozenset[int] = frozenset()
    """Inputs, by position, that no later piece needs: they are the piece's to let go."""

    @cached_property
    def program(self) -> Program:
        made = lower(self.complete)
        return replace(made, spent=tuple(sorted(self.spent)))


def cut(complete: Complete, rows: Sequence[tuple[str, int]], data: int) -> list[Piece]:
    """The pieces of a plan: ``rows`` are names, and the node at which each ends.

    A piece takes all state, whether or not it reads it, so that its memory is that of the step; of the first ``data``
    inputs, which are given anew for each call, it takes those that it reads.
    """
    return [_Cut(complete, rows, data, i).piece() for i in range(len(rows))]


class _Cut:
    """One piece while it is cut out."""

    def __init__(self, complete: Complete, rows: Sequence[tuple[str, int]], data: int, number: int) -> None:
        self.whole, self.graph, self.data = complete, complete.graph, data
        self.name, self.stop = rows[number]
        self.start = rows[number - 1][1] if number else 0
        graph = self.graph
        self.place = {value: i for i, value in enumerate(graph.inputs)}
        self.renewed = {graph.outputs[o]: (i, o) for i, o in graph.updates}
        """The next state of an input -> that input and the output."""
        self.homes = complete.homes

    def made_before(self, value: int, node: int) -> bool:
        producer = self.graph.node_of(value)
        return producer is None or producer < node

    def read_from(self, value: int, node: int) -> bool:
        return any(n >= node for n in self.graph.uses[value])

    def spec(self, value: int) -> ShardingSpec:
        """In which sharding a value goes from piece to piece: state in that of its slot."""
        if value in self.renewed and self.graph.node_of(value) is not None:
            return self.whole.outputs[self.renewed[value][1]]
        return self.homes[value]

    def taken(self) -> list[int]:
        graph, found = self.graph, []
        next_state = {i: v for v, (i, _) in self.renewed.items() if self.made_before(v, self.start)}
        for i, value in enumerate(graph.inputs):
            read = any(self.start <= n < self.stop for n in graph.uses[value])
            now = next_state.get(i)
            if now is not None and now != value:
                if self.read_from(value, self.start):
                    raise GraphError(
                        f"%{graph.values[value].name} is read after it was updated, so the step cannot be cut there",
                        help="leave accumulation and on_nonfinite out",
                    )
                found.append(now)
            elif i >= self.data or read or not self.start:
                found.append(value)
        states = set(found)
        handed = [v.id for v in graph.values if v.producer is not None and self.made_before(v.id, self.start)]
        return found + [v for v in handed if v not in states and self.read_from(v, self.start)]

    def given(self) -> list[tuple[int, int | None]]:
        """Values that it makes and others need, each with the output of the whole graph that it is, if any."""
        graph = self.graph
        found: list[tuple[int, int | None]] = []
        for o, value in enumerate(graph.outputs):
            producer = graph.node_of(value)
            here = not self.start if producer is None else self.start <= producer < self.stop
            if here:
                found.append((value, o))
        known = {value for value, o in found if o is not None and value in self.renewed}
        for n in range(self.start, self.stop):
            for value in graph.nodes[n].results:
                if value not in known and self.read_from(value, self.stop):
                    found.append((value, None))
        return found

    def piece(self) -> Piece:
        graph, whole = self.graph, self.whole
        builder = GraphBuilder(f"{graph.name}.{self.name}")
        taken, given = self.taken(), self.given()
        numbers = {v: builder.input(graph.type(v), name=graph.values[v].name) for v in taken}
        for n in range(self.start, self.stop):
            node = graph.nodes[n]
            operands = [
                tuple(numbers[v] for v in operand) if isinstance(operand, tuple)
                else None if operand is None else numbers[operand]
                for operand in node.operands
            ]  # fmt: skip
            made = builder.op(
                node.op, operands, graph.types(node.results), names=[graph.values[v].name for v in node.results],
                attrs=dict(node.attrs), views=node.views, source=node.source,
            )  # fmt: skip
            numbers.update(zip(node.results, (made,) if isinstance(made, int) else made))
        returns = {o: at for at, (_, o) in enumerate(given) if o is not None}
        updates = [(taken.index(graph.inputs[i]), returns[o]) for i, o in graph.updates if o in returns]
        part = builder.finish([numbers[v] for v, _ in given], updates)
        outputs = tuple(self.spec(v) if o is None else whole.outputs[o] for v, o in given)
        decisions = tuple(
            decision._replace(node=decision.node - self.start)
            for decision in whole.decisions
            if self.start <= decision.node < self.stop
        )
        complete = Complete(
            part, whole.mesh, tuple(self.spec(v) for v in taken), decisions, outputs, whole.notes, 0,
            {numbers[v]: pairs for v, pairs in whole.sources.items() if v in numbers},
            {numbers[v]: spec for v, spec in whole.kept.items() if v in numbers},
        )  # fmt: skip
        spent = frozenset(
            at for at, v in enumerate(taken) if v not in self.place and v not in self.renewed
            and not self.read_from(v, self.stop)
        )  # fmt: skip
        return Piece(self.name, complete, tuple(taken), tuple(v for v, _ in given), returns, spent)


def rows_of(captured: Graph, phases: Sequence[str], planned: Graph, names: Mapping[str, str]) -> list[tuple[str, int]]:
    """Where a planned graph is cut, by the phases of the nodes as captured; one row where phases mix.

    ``names`` says which piece each phase belongs to.  Passes before planning keep the names of values, so a node of the
    planned graph belongs where the one that made its results did; one that is new stands with the node before it.
    """
    pieces = list(dict.fromkeys(names.values()))
    order = [pieces.index(names[phase]) for phase in phases]
    if order != sorted(order):
        return [("step", len(planned.nodes))]
    piece_of = {captured.values[v].name: piece for node, piece in zip(captured.nodes, order) for v in node.results}
    ends, piece = [0] * len(pieces), 0
    for at, node in enumerate(planned.nodes):
        known = [piece_of[name] for v in node.results if (name := planned.values[v].name) in piece_of]
        piece = max([piece, *known])
        ends[piece:] = [at + 1] * (len(pieces) - piece)
    return list(zip(pieces, ends))
