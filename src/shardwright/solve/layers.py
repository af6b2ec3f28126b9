"""Layers of a graph that repeat, and a shorter graph with fewer of them.

A training step of a stack of equal blocks has several *runs* of equal ops: each block's forward ops follow those of the
one before, its backward ops come in the opposite order, its optimizer's ops in some order again.  `find_layers` finds
such runs by the ops alone, numbers the layers, and then checks everything: in all layers but the first and the last, an
op reads the same things of its own layer, of the two next to it, and of what belongs to no layer.

`Layers.short` leaves layers out in the middle, and wires their neighbours together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..ir.graph import Graph, Node, Operand, Value

FEWEST = 5
"""So many layers make it worth while."""
WINDOW = 6
"""So many equal ops in a row suggest a repeat."""
PERIODS = 24
"""So many distances between repeats are looked at, the most frequent first."""
SIDES = ((2, 2), (2, 3))
"""Layers that are kept at the two ends of a short graph, fewest first; see `stack` for what they have to show."""


class Spot(NamedTuple):
    """Where in its layer something is: a node, or an input by its first reader."""

    run: int
    at: int
    slot: int = -1
    """Of an input, the place at which that node reads it."""


@dataclass
class Layers:
    """A graph whose nodes and inputs are numbered by layer; -1: of no layer."""

    graph: Graph
    count: int
    runs: list[tuple[int, int, bool]]
    """First node, nodes in a layer, and whether the last layer comes first."""
    reads: Sequence[Sequence[int]]
    """The values that each node reads."""
    layer: list[int] = field(default_factory=list)
    """Of each node."""
    spot: list[Spot | None] = field(default_factory=list)
    input_layer: dict[int, int] = field(default_factory=dict)
    input_spot: dict[int, Spot] = field(default_factory=dict)

    def node(self, spot: Spot, layer: int) -> int:
        start, period, turned = self.runs[spot.run]
        return start + (self.count - 1 - layer if turned else layer) * period + spot.at

    def value_layer(self, value: int) -> int:
        producer = self.graph.values[value].producer
        return self.input_layer.get(value, -1) if producer is None else self.layer[producer[0]]

    def value_spot(self, value: int) -> object:
        """What a value is in its layer; its own number if it is of no layer."""
        producer = self.graph.values[value].producer
        if producer is None:
            return self.input_spot.get(value, value)
        spot = self.spot[producer[0]]
        return value if spot is None else (spot, producer[1])

    # -- what is checked --------------------------------------------------------------------------------

    def number(self) -> None:
        graph = self.graph
        self.layer = [-1] * len(graph.nodes)
        self.spot = [None] * len(graph.nodes)
        for r, (start, period, turned) in enumerate(self.runs):
            for k in range(self.count):
                for at in range(period):
                    n = start + k * period + at
                    self.layer[n] = self.count - 1 - k if turned else k
                    self.spot[n] = Spot(r, at)
        readers: dict[int, list[tuple[int, int]]] = {value: [] for value in graph.inputs}
        for n, values in enumerate(self.reads):
            for slot, value in enumerate(values):
                if value in readers:
                    readers[value].append((n, slot))
        for value, found in readers.items():
            layers = {self.layer[n] for n, _ in found}
            if found and -1 not in layers and max(layers) - min(layers) <= 1:
                n, slot = found[0]
                first = self.spot[n]
                assert first is not None
                self.input_layer[value] = self.layer[n]
                self.input_spot[value] = Spot(first.run, first.at, slot)

    def is_regular(self, given: Mapping[int, object]) -> bool:
        """Whether all inner layers are alike, know only their neighbours, and nobody outside knows them."""
        about: dict[object, object] = {}
        graph, inner = self.graph, range(1, self.count - 1)
        roles: dict[int, list[object]] = {}
        states = {output: graph.inputs[i] for i, output in graph.updates}
        for i, value in enumerate(graph.outputs):
            state = states.get(i)
            if state is None:
                roles.setdefault(value, []).append("output")
            else:
                away = self.value_layer(state) - self.value_layer(value)
                roles.setdefault(value, []).append((self.value_spot(state), away))
        for n, node in enumerate(graph.nodes):
            layer = self.layer[n]
            refs = []
            for value in self.reads[n]:
                theirs = self.value_layer(value)
                if layer < 0 and theirs in inner:
                    return False
                offset = theirs - layer if layer >= 0 and theirs >= 0 else None
                if offset is not None and abs(offset) > 1:
                    return False
                refs.append((self.value_spot(value), offset))
            made = [(given.get(v), tuple(roles.get(v, ()))) for v in node.results]
            if layer in inner and about.setdefault(self.spot[n], (refs, made)) != (refs, made):
                return False
        for value in graph.inputs:
            layer = self.value_layer(value)
            fact = (given.get(value), tuple(roles.get(value, ())), graph.values[value].type)
            if layer in inner and about.setdefault(("input", self.input_spot[value]), fact) != fact:
                return False
        return True

    # -- a shorter graph --------------------------------------------------------------------------------

    def short(self, first: int = SIDES[0][0], last: int = SIDES[0][1]) -> Short:
        """With this many layers at the two ends."""
        graph, low, high = self.graph, first, self.count - last
        out = range(low, high)
        by_spot: dict[tuple[object, int], int] = {}
        for value in graph.values:
            layer = self.value_layer(value.id)
            if layer in (low - 1, high):
                by_spot[self.value_spot(value.id), layer] = value.id
        number: dict[int, int] = {}
        values: list[Value] = []

        def wired(value: int, reader: int) -> int:
            """A value, or if its layer is left out the one in its place on the other side."""
            if self.value_layer(value) in out:
                value = by_spot[self.value_spot(value), high if self.layer[reader] < low else low - 1]
            return number[value]

        def add(value: Value, producer: tuple[int, int] | None) -> int:
            number[value.id] = len(values)
            values.append(Value(len(values), value.type, value.name, producer))
            return number[value.id]

        inputs = [add(graph.values[v], None) for v in graph.inputs if self.value_layer(v) not in out]
        nodes: list[Node] = []
        kept = [n for n in range(len(graph.nodes)) if self.layer[n] not in out]
        for n in kept:
            node = graph.nodes[n]
            operands: tuple[Operand, ...] = tuple(
                None if o is None else tuple(wired(v, n) for v in o) if isinstance(o, tuple) else wired(o, n)
                for o in node.operands
            )
            results = tuple(add(graph.values[v], (len(nodes), r)) for r, v in enumerate(node.results))
            nodes.append(Node(node.op, operands, results, node.attrs, node.views, node.source))
        places = [i for i, v in enumerate(graph.outputs) if self.value_layer(v) not in out]
        new_out = {i: j for j, i in enumerate(places)}
        new_in = {v: j for j, v in enumerate(v for v in graph.inputs if v in number)}
        updates = tuple(
            (new_in[graph.inputs[i]], new_out[o])
            for i, o in graph.updates
            if o in new_out and graph.inputs[i] in new_in
        )
        made = Graph(
            graph.name,
            tuple(values),
            tuple(nodes),
            tuple(inputs),
            tuple(number[graph.outputs[i]] for i in places),
            updates,
        )
        return Short(self, made, low, len(out), tuple(kept), number, new_out)


@dataclass(frozen=True)
class Short:
    """A graph without some layers, and what became of the other one's nodes, values and outputs."""

    layers: Layers
    graph: Graph
    low: int
    """The layers left out lay between ``low - 1`` and ``low``, as they are numbered here."""
    out: int
    """How many were left out."""
    kept: tuple[int, ...]
    """Of every node the one it was."""
    values: Mapping[int, int]
    outputs: Mapping[int, int]

    def layer(self, node: int) -> int:
        found = self.layers.layer[self.kept[node]]
        return found if found < self.low else found - self.out

    def stand_in(self, node: int) -> int:
        """For a node of the long graph the one of the same kind whose layer was kept, in the long graph."""
        layers = self.layers
        layer, spot = layers.layer[node], layers.spot[node]
        if spot is None or not self.low <= layer < self.low + self.out:
            return node
        return layers.node(spot, self.low - 1)


def find_layers(graph: Graph, given: Mapping[int, object]) -> Layers | None:
    """None if nothing repeats often enough, or not regularly."""
    reads = [node.inputs for node in graph.nodes]
    for count, runs in _runs(_numbered(graph, reads)):
        if count < FEWEST:
            continue
        found = Layers(graph, count, _turned(graph, reads, runs, count), reads)
        found.number()
        if found.is_regular(given):
            return found
    return None


def _numbered(graph: Graph, reads: Sequence[Sequence[int]]) -> list[int]:
    """Equal numbers for equal ops on equal types."""
    known: dict[object, int] = {}
    values = graph.values
    found = []
    for node, inputs in zip(graph.nodes, reads):
        types = tuple([values[v].type for v in (*inputs, *node.results)])
        key = (node.op, node.attrs, node.views, types)
        found.append(known.setdefault(key, len(known)))
    return found


def _runs(ops: Sequence[int]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Runs of repeats by how many there are in each; of a kind those that do not overlap, longest first."""
    last: dict[tuple[int, ...], int] = {}
    distance: Counter[int] = Counter()
    for i in range(len(ops) - WINDOW):
        here = tuple(ops[i : i + WINDOW])
        if here in last:
            distance[i - last[here]] += 1
        last[here] = i
    row = np.array(ops)
    by_count: dict[int, list[tuple[int, int]]] = {}
    for period, _ in distance.most_common(PERIODS):
        same = np.flatnonzero(np.diff(np.concatenate([[0], (row[:-period] == row[period:]).astype(np.int8), [0]])))
        for start, end in zip(same[::2].tolist(), same[1::2].tolist()):
            if end - start >= period:
                by_count.setdefault((end - start + period) // period, []).append((start, period))
    found = []
    for count, runs in by_count.items():
        kept: list[tuple[int, int]] = []
        for start, period in sorted(runs, key=lambda run: (-run[1], run[0])):
            end = start + count * period
            if all(end <= other or other + count * length <= start for other, length in kept):
                kept.append((start, period))
        found.append((count, sorted(kept)))
    return sorted(found, key=lambda pair: -pair[0] * sum(period for _, period in pair[1]))


def _turned(
    graph: Graph, reads: Sequence[Sequence[int]], runs: Sequence[tuple[int, int]], count: int
) -> list[tuple[int, int, bool]]:
    """Which runs go from the last layer to the first: there, what comes from earlier runs falls as one goes on."""
    place: dict[int, int] = {}
    found: list[tuple[int, int, bool]] = []
    for start, period in runs:
        rising = falling = 0
        seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for n in range(start, start + count * period):
            k, at = divmod(n - start, period)
            for slot, value in enumerate(reads[n]):
                producer = graph.values[value].producer
                if producer is not None and producer[0] in place:
                    seen.setdefault((at, slot), []).append((k, place[producer[0]]))
        for pairs in seen.values():
            for (k, a), (m, b) in pairwise(pairs):
                if m == k + 1:
                    rising += b == a + 1
                    falling += b == a - 1
        turned = falling > rising
        for n in range(start, start + count * period):
            k = (n - start) // period
            place[n] = count - 1 - k if turned else k
        found.append((start, period, turned))
    return found
