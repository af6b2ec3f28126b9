"""Layers of a graph that repeat, and a shorter graph with fewer of them.

A training step of a stack of equal blocks has several *runs* of equal ops: each block's forward ops follow those of the
one before, its backward ops come in the opposite order, its optimizer's ops in some order again.  `find_layers` finds
such runs by the ops alone, numbers the layers, and then checks everything: in all layers but the first and the last, an
op reads the same things of its own layer, of the two next to it, and of what belongs to no layer.

A layer's nodes in a run follow each other, and so do what they read and make: with a row for each layer, layers are
alike where rows are equal.

`Layers.short` leaves layers out in the middle, and wires their neighbours together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...ir.graph import Graph, Node, Operand, Value
from ...ir.wiring import Wiring, numbers
from ...optimize.problem import Ints

FEWEST = 5
"""So many layers make it worth while."""
WINDOW = 6
"""So many equal ops in a row suggest a repeat."""
PERIODS = 24
"""So many distances between repeats are looked at, the most frequent first."""
SIDES = ((2, 2), (2, 3), (3, 3))
"""Layers that are kept at the two ends of a short graph, fewest first; see `stack` for what they have to show."""
TYPED = 40
"""Bits of an op's number that its types are mixed into."""
ODD = 0x9E3779B97F4A7C15
"""Powers of it mix numbers in a row."""


def _ops(wiring: Wiring) -> Ints:
    """Equal numbers for equal ops on equal types: by all but certain, so types are looked at again later."""
    read, made = (
        _mixed(wiring.type[values], first)
        for values, first in ((wiring.reads, wiring.first_read), (wiring.made, wiring.first_made))
    )
    return (wiring.kind.astype(np.uint64) << TYPED | read * ODD + made >> 64 - TYPED).astype(np.int64)


def _mixed(numbers: Ints, first: Ints) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """For each list of numbers, of which all follow each other, one that other lists hardly share."""
    sizes = np.diff(first)
    at = np.arange(numbers.size) - np.repeat(first[:-1], sizes)
    powers = np.multiply.accumulate(np.full(sizes.max(initial=0) + 1, ODD, np.uint64))
    sums = np.zeros(numbers.size + 1, np.uint64)
    np.cumsum((numbers.astype(np.uint64) + 1) * powers[at], out=sums[1:])
    return sums[first[1:]] - sums[first[:-1]]


Run = tuple[int, int, bool]
"""First node, nodes in a layer, and whether the last layer comes first."""


class Layers:
    """A graph whose nodes and values are numbered by layer; -1: of no layer.

    What is in the same place of different layers has the same number there, too.
    """

    def __init__(self, graph: Graph, wiring: Wiring, count: int, runs: Sequence[Run]) -> None:
        self.graph, self.wiring, self.count, self.runs = graph, wiring, count, runs
        self.node_layer = np.full(len(graph.nodes), -1)
        self.node_place = np.full(len(graph.nodes), -1)
        self.value_layers = np.full(len(graph.values), -1)
        self.value_places = -1 - np.arange(len(graph.values))
        """Of values of no layer: some number of their own, below zero."""
        read_place = np.full(wiring.reads.size, -1)
        nodes = values = reads = 0
        for start, period, turned in runs:
            mine = slice(start, start + count * period)
            self.node_layer[mine] = np.repeat(np.arange(count)[:: -1 if turned else 1], period)
            self.node_place[mine] = np.tile(np.arange(nodes, nodes + period), count)
            made = self.made_in((start, period, turned))
            self.value_places[made] = np.arange(values, values + made.shape[1])
            read = read_place[wiring.read_rows(start, period, count)].reshape(count, -1)
            read[:] = np.arange(reads, reads + read.shape[1])
            nodes, values, reads = nodes + period, values + made.shape[1], reads + read.shape[1]
        self.value_layers[wiring.made] = self.node_layer[wiring.maker[wiring.made]]
        self._number_inputs(values, read_place)
        self.places = nodes, values + reads
        self.layer: list[int] = self.node_layer.tolist()
        self._value_layer: list[int] = self.value_layers.tolist()

    def _number_inputs(self, above: int, read_place: Ints) -> None:
        """Those that a layer reads, perhaps with the next one, are where their first reader is."""
        wiring = self.wiring
        at = np.flatnonzero(wiring.maker[wiring.reads] < 0)
        values, layers = wiring.reads[at], self.node_layer[wiring.reader[at]]
        low, high, first = np.full((3, len(self.graph.values)), -1)
        low[values] = self.count
        np.minimum.at(low, values, layers)
        np.maximum.at(high, values, layers)
        first[values[::-1]] = at[::-1]
        found = np.flatnonzero((low >= 0) & (high - low <= 1))
        self.value_layers[found] = self.node_layer[wiring.reader[first[found]]]
        self.value_places[found] = above + read_place[first[found]]

    def value_layer(self, value: int) -> int:
        return self._value_layer[value]

    def made_in(self, run: Run) -> Ints:
        """The values that a run makes, in a row for each layer (from the last on, if it is turned)."""
        return self.wiring.made[self.wiring.made_rows(*run[:2], self.count)].reshape(self.count, -1)

    @cached_property
    def nodes_at(self) -> Ints:
        """By layer and place."""
        found = np.full((self.count, self.places[0]), -1)
        some = np.flatnonzero(self.node_layer >= 0)
        found[self.node_layer[some], self.node_place[some]] = some
        return found

    @cached_property
    def values_at(self) -> Ints:
        """By layer and place; -1 where there is none."""
        found = np.full((self.count, self.places[1]), -1)
        some = np.flatnonzero(self.value_layers >= 0)
        found[self.value_layers[some], self.value_places[some]] = some
        return found

    # -- what is checked --------------------------------------------------------------------------------

    def is_regular(self, given: Mapping[int, object]) -> bool:
        """Whether all inner layers are alike, know only their neighbours, and nobody outside knows them."""
        wiring, reads = self.wiring, self.wiring.reads
        mine, theirs = self.node_layer[wiring.reader], self.value_layers[reads]
        if ((mine < 0) & self._is_inner(theirs)).any():
            return False
        both = (mine >= 0) & (theirs >= 0)
        away = np.where(both, theirs - mine, 2)
        if (np.abs(away[both]) > 1).any():
            return False
        # The next state of what is in a layer comes from that layer: where it is left out, both are.
        states = np.array([self.graph.inputs[i] for i, _ in self.graph.updates], np.int64)
        nexts = np.array([self.graph.outputs[o] for _, o in self.graph.updates], np.int64)
        if (self.value_layers[states] != self.value_layers[nexts]).any():
            return False
        read, read_type = 4 * self.value_places[reads] + away, wiring.type[reads]
        facts = self._facts(given)
        for run in self.runs:
            made = self.made_in(run)
            rows = wiring.read_rows(*run[:2], self.count)
            alike = (
                _alike(read[rows].reshape(self.count, -1)[1:-1])
                and _alike(facts[made[1:-1]])
                # Ends, too, are made of equal ops.
                and _alike(read_type[rows].reshape(self.count, -1))
                and _alike(wiring.type[made])
            )
            if not alike:
                return False
        inputs = np.array(self.graph.inputs, np.int64)
        inputs = inputs[self._is_inner(self.value_layers[inputs])]
        inputs = inputs[np.argsort(self.value_places[inputs])]
        same = np.diff(self.value_places[inputs]) == 0
        return not any((same & (np.diff(about[inputs]) != 0)).any() for about in (facts, wiring.type))

    def _is_inner(self, layers: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return (layers > 0) & (layers < self.count - 1)

    def _facts(self, given: Mapping[int, object]) -> Ints:
        """Of values: what was given for them, and what they are to the caller, numbered."""
        graph = self.graph
        outputs = np.array(graph.outputs, np.int64)
        states = np.full(outputs.size, -1)
        for i, output in graph.updates:
            states[output] = graph.inputs[i]
        # An output that is some input's next state: which one, by its place and how far its layer is.
        away = self.value_layers[states] - self.value_layers[outputs]
        where: list[object] = list(zip(self.value_places[states].tolist(), away.tolist()))
        roles: dict[int, list[object]] = {}
        for value, state, role in zip(graph.outputs, states.tolist(), where):
            roles.setdefault(value, []).append("output" if state < 0 else role)
        found = np.zeros(len(graph.values), np.int64)
        number = numbers()
        for value in {**roles, **given}:
            found[value] = 1 + number[given.get(value), tuple(roles.get(value, ()))]
        return found

    # -- a shorter graph --------------------------------------------------------------------------------

    def short(self, first: int = SIDES[0][0], last: int = SIDES[0][1]) -> Short:
        """With this many layers at the two ends."""
        graph, low, high = self.graph, first, self.count - last
        layer = self._value_layer
        out = range(low, high)
        number: dict[int, int] = {}
        values: list[Value] = []
        # A value whose layer is left out is wired as the one in its place on the other side.
        gone = np.flatnonzero((self.value_layers >= low) & (self.value_layers < high))
        wired: list[list[int]] = []
        for side in (high, low - 1):
            like = np.arange(len(graph.values))
            like[gone] = self.values_at[side, self.value_places[gone]]
            wired.append(like.tolist())

        def add(value: Value, producer: tuple[int, int] | None) -> int:
            number[value.id] = len(values)
            values.append(Value(len(values), value.type, value.name, producer))
            return number[value.id]

        inputs = [add(graph.values[v], None) for v in graph.inputs if layer[v] not in out]
        nodes: list[Node] = []
        kept = np.flatnonzero((self.node_layer < low) | (self.node_layer >= high)).tolist()
        for n in kept:
            node, seen = graph.nodes[n], wired[self.layer[n] >= low]
            operands: tuple[Operand, ...] = tuple(
                [
                    number[seen[o]] if isinstance(o, int) else o and tuple([number[seen[v]] for v in o])
                    for o in node.operands
                ]
            )
            results = tuple([add(graph.values[v], (len(nodes), r)) for r, v in enumerate(node.results)])
            nodes.append(Node(node.op, operands, results, node.attrs, node.views, node.source))
        places = [i for i, v in enumerate(graph.outputs) if layer[v] not in out]
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


def _alike(rows: Ints) -> bool:
    return bool((rows == rows[0]).all())


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

    @cached_property
    def nodes_like(self) -> list[int]:
        """For each node of the long graph the one here of the same kind."""
        found = np.full(len(self.layers.layer), -1)
        found[list(self.kept)] = np.arange(len(self.kept))
        rows = self.layers.nodes_at
        found[rows[self.low : self.low + self.out]] = found[rows[self.low - 1]]
        like: list[int] = found.tolist()
        return like

    @cached_property
    def values_like(self) -> list[int]:
        """For each value of the long graph the one here of the same kind."""
        found = np.full(len(self.layers.graph.values), -1)
        found[list(self.values)] = list(self.values.values())
        rows = self.layers.values_at
        rows = rows[:, rows[self.low - 1] >= 0]
        found[rows[self.low : self.low + self.out]] = found[rows[self.low - 1]]
        like: list[int] = found.tolist()
        return like

    def stand_in(self, node: int) -> int:
        """For a node of the long graph the one of the same kind whose layer was kept, in the long graph."""
        return self.kept[self.nodes_like[node]]


def find_layers(graph: Graph, given: Mapping[int, object]) -> Layers | None:
    """None if nothing repeats often enough, or not regularly."""
    wiring = graph.wiring
    for count, runs in _runs(_ops(wiring)):
        found = Layers(graph, wiring, count, _turned(wiring, runs, count))
        if found.is_regular(given):
            return found
    return None


def _runs(ops: Ints) -> list[tuple[int, list[tuple[int, int]]]]:
    """Runs of enough repeats by how many there are in each; of a kind those that do not overlap, longest first."""
    by_count: dict[int, list[tuple[int, int]]] = {}
    for period in _distances(ops):
        same = np.flatnonzero(np.diff(np.concatenate([[0], (ops[:-period] == ops[period:]).astype(np.int8), [0]])))
        for start, end in zip(same[::2].tolist(), same[1::2].tolist()):
            count = (end - start + period) // period
            if count >= FEWEST:
                by_count.setdefault(count, []).append((start, period))
    found = []
    for count, runs in by_count.items():
        kept: list[tuple[int, int]] = []
        for start, period in sorted(runs, key=lambda run: (-run[1], run[0])):
            end = start + count * period
            if all(end <= other or other + count * length <= start for other, length in kept):
                kept.append((start, period))
        found.append((count, sorted(kept)))
    return sorted(found, key=lambda pair: -pair[0] * sum(period for _, period in pair[1]))


def _distances(ops: Ints) -> list[int]:
    """How far apart the same few ops in a row come again: what is most frequent first, or else what comes first."""
    windows = max(0, ops.size - WINDOW)
    mixed = np.zeros(windows, np.uint64)
    for i in range(WINDOW):
        mixed = mixed * ODD + ops[i : i + windows].astype(np.uint64)
    order = np.argsort(mixed, kind="stable")
    again = mixed[order[1:]] == mixed[order[:-1]]
    away = np.zeros(windows, np.int64)
    away[order[1:][again]] = (order[1:] - order[:-1])[again]
    found, at, times = np.unique(away[away > 0], return_index=True, return_counts=True)
    frequent: list[int] = found[np.lexsort((at, -times))][:PERIODS].tolist()
    return frequent


def _turned(wiring: Wiring, runs: Sequence[tuple[int, int]], count: int) -> list[Run]:
    """Which runs go from the last layer to the first: there, what comes from earlier runs falls as one goes on."""
    layer = np.full(wiring.kind.size + 1, -1)
    """Of nodes; the last is for inputs."""
    found: list[Run] = []
    for start, period in runs:
        read = wiring.reads[wiring.read_rows(start, period, count)]
        theirs = layer[wiring.maker[read]].reshape(count, -1)
        step = np.where((theirs[1:] >= 0) & (theirs[:-1] >= 0), np.diff(theirs, axis=0), 0)
        turned = bool((step == -1).sum() > (step == 1).sum())
        layer[start : start + count * period] = np.repeat(np.arange(count)[:: -1 if turned else 1], period)
        found.append((start, period, turned))
    return found
