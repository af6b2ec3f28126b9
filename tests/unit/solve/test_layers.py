"""Layers are found, numbered and checked by arrays as they are one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shardwright.ir.graph import Graph, GraphBuilder, Node, Operand, Value
from shardwright.solve.repeated.layers import (
    FEWEST,
    PERIODS,
    WINDOW,
    Layers,
    _distances,
    _ops,
    _runs,
    _turned,
    find_layers,
)

SHAPE = (64, 64)


def training_step(layers: int, wide: bool = False) -> Graph:
    """Forward, back in the opposite order, and updates; ``wide`` adds ops with lists and with operands left out."""
    b = GraphBuilder("step")
    x = b.input(SHAPE)
    weights = [b.input(SHAPE) for _ in range(layers)]
    kept = []
    for weight in weights:
        made = b.op("matmul", [x, weight], [SHAPE])
        if wide:
            made = b.op("sum", [[made, x], None, weight], [SHAPE])
        kept.append((x, made))
        x = b.op("add", [b.op("exp", [made], [SHAPE]), x], [SHAPE])
    grad = b.op("neg", [x], [SHAPE])
    grads = []
    for weight, (before, made) in zip(reversed(weights), reversed(kept)):
        grad = b.op("mul", [grad, made], [SHAPE])
        grads.append(b.op("matmul", [before, grad], [SHAPE], attrs={"turned": True}))
        grad = b.op("matmul", [grad, weight], [SHAPE])
    new = []
    for weight, one in zip(weights, reversed(grads)):
        new.append(b.op("sub", [weight, b.op("mul", [one, one], [SHAPE])], [SHAPE]))
    return b.finish([x, *new], updates=[(1 + i, 1 + i) for i in range(layers)])


def changed(graph: Graph, rng: random.Random) -> tuple[Graph, dict[int, object]]:
    """One thing otherwise: what a node reads, what it does, what comes out, what becomes of a state, what is given."""
    nodes, outputs, updates = list(graph.nodes), list(graph.outputs), list(graph.updates)
    given: dict[int, object] = {}
    n = rng.randrange(len(nodes))
    node, what = nodes[n], rng.randrange(7)
    if what == 0:
        earlier = rng.randrange(min(node.results))
        nodes[n] = Node(node.op, (earlier, *node.operands[1:]), node.results, node.attrs, node.views)
    elif what == 1:
        nodes[n] = Node("tanh", node.operands, node.results, node.attrs, node.views)
    elif what == 2:
        outputs.append(rng.randrange(len(graph.values)))
    elif what == 3:
        a, b = rng.sample(range(len(updates)), 2)
        updates[a], updates[b] = (updates[a][0], updates[b][1]), (updates[b][0], updates[a][1])
    elif what == 4:
        given[rng.randrange(len(graph.values))] = "given"
    elif what == 5:
        del updates[rng.randrange(len(updates))]
    else:
        near = [v for v in range(max(0, n - 12), n) if graph.values[v].producer is not None]
        slot = rng.randrange(len(node.operands))
        operands: list[Operand] = list(node.operands)
        if near and isinstance(operands[slot], int):
            operands[slot] = rng.choice(near)
        nodes[n] = Node(node.op, tuple(operands), node.results, node.attrs, node.views)
    return Graph(graph.name, graph.values, tuple(nodes), graph.inputs, tuple(outputs), tuple(updates)), given


class Plain:
    """The same one by one: where things are, and whether that is regular."""

    def __init__(self, graph: Graph, count: int, runs: list[tuple[int, int, bool]]) -> None:
        self.graph, self.count, self.runs = graph, count, runs
        self.spots: dict[int, tuple[int, int, int]] = {}
        """(layer, run, place in it) of nodes."""
        for r, (start, period, turned) in enumerate(runs):
            for k in range(count):
                for at in range(period):
                    self.spots[start + k * period + at] = (count - 1 - k if turned else k, r, at)
        readers: dict[int, list[tuple[int, int]]] = {}
        for n, node in enumerate(graph.nodes):
            for slot, value in enumerate(node.inputs):
                readers.setdefault(value, []).append((n, slot))
        self.of: dict[int, tuple[int, object]] = {}
        """(layer, place in it) of values."""
        for value in graph.values:
            self.of[value.id] = (-1, value.id)
            if value.producer is not None:
                layer, *spot = self.spots.get(value.producer[0], (-1, value.id))
                self.of[value.id] = (layer, (*spot, value.producer[1]) if layer >= 0 else value.id)
            elif found := readers.get(value.id):
                layers = [self.spots.get(n, (-1,))[0] for n, _ in found]
                if min(layers) >= 0 and max(layers) - min(layers) <= 1:
                    layer, *spot = self.spots[found[0][0]]
                    self.of[value.id] = (layer, ("input", *spot, found[0][1]))

    def is_regular(self, given: Mapping[int, object]) -> bool:
        graph, inner = self.graph, range(1, self.count - 1)
        about: dict[object, object] = {}
        roles: dict[int, list[object]] = {}
        states = {output: graph.inputs[i] for i, output in graph.updates}
        for i, value in enumerate(graph.outputs):
            state = states.get(i)
            if state is not None and self.of[state][0] != self.of[value][0]:
                return False
            away = None if state is None else (self.of[state][1], self.of[state][0] - self.of[value][0])
            roles.setdefault(value, []).append(away)
        for n, node in enumerate(graph.nodes):
            layer, *spot = self.spots.get(n, (-1,))
            read: list[object] = []
            for value in node.inputs:
                theirs, place = self.of[value]
                both = layer >= 0 and theirs >= 0
                if (layer < 0 and theirs in inner) or (both and abs(theirs - layer) > 1):
                    return False
                read.append((place, theirs - layer if both else None))
            fact = (read, [(given.get(v), roles.get(v)) for v in node.results])
            if layer in inner and about.setdefault(("node", *spot), fact) != fact:
                return False
        for value in graph.inputs:
            layer, place = self.of[value]
            known = (given.get(value), roles.get(value), graph.values[value].type)
            if layer in inner and about.setdefault(place, known) != known:
                return False
        return True


def numbers(graph: Graph) -> list[int]:
    known: dict[object, int] = {}
    keys = (
        (node.op, node.attrs, node.views, *graph.types(node.inputs), "->", *graph.types(node.results))
        for node in graph.nodes
    )
    return [known.setdefault(key, len(known)) for key in keys]


def distances(ops: list[int]) -> list[int]:
    last: dict[tuple[int, ...], int] = {}
    found: Counter[int] = Counter()
    for i in range(len(ops) - WINDOW):
        here = tuple(ops[i : i + WINDOW])
        if here in last:
            found[i - last[here]] += 1
        last[here] = i
    return [distance for distance, _ in found.most_common(PERIODS)]


def directions(graph: Graph, runs: list[tuple[int, int]], count: int) -> list[bool]:
    place: dict[int, int] = {}
    found = []
    for start, period in runs:
        seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for n in range(start, start + count * period):
            for slot, value in enumerate(graph.nodes[n].inputs):
                maker = graph.node_of(value)
                if maker in place:
                    k, at = divmod(n - start, period)
                    seen.setdefault((at, slot), []).append((k, place[maker]))
        steps = [b - a for pairs in seen.values() for (k, a), (m, b) in pairwise(pairs) if m == k + 1]
        found.append(steps.count(-1) > steps.count(1))
        for n in range(start, start + count * period):
            k = (n - start) // period
            place[n] = count - 1 - k if found[-1] else k
    return found


def graphs(seed: int) -> tuple[Graph, dict[int, object]]:
    rng = random.Random(seed)
    graph = training_step(rng.randrange(5, 10), rng.random() < 0.3)
    given: dict[int, object] = {}
    for _ in range(rng.randrange(3)):
        graph, more = changed(graph, rng)
        given.update(more)
    return graph, given


def test_the_same_as_one_by_one() -> None:
    refused = 0
    for seed in range(400):
        graph, given = graphs(seed)
        wiring = graph.wiring
        ops = _ops(wiring)
        plain_ops = numbers(graph)
        assert len(set(zip(ops.tolist(), plain_ops))) == len(set(plain_ops)) == len(set(ops.tolist()))
        expected: Plain | None = None
        for count, runs in _runs(ops):
            assert count >= FEWEST
            turned = _turned(wiring, runs, count)
            assert [one[2] for one in turned] == directions(graph, runs, count), seed
            plain = Plain(graph, count, turned)
            layers = Layers(graph, wiring, count, turned)
            assert layers.layer == [plain.spots.get(n, (-1,))[0] for n in range(len(graph.nodes))]
            assert [layers.value_layer(v) for v in range(len(graph.values))] == [plain.of[v][0] for v in plain.of]
            places = set(zip(layers.value_places.tolist(), (plain.of[v][1] for v in plain.of)))
            assert len(places) == len({a for a, _ in places}) == len({b for _, b in places}), seed
            assert layers.is_regular(given) == plain.is_regular(given), seed
            if expected is None and plain.is_regular(given):
                expected = plain
            refused += not plain.is_regular(given)
        found = find_layers(graph, given)
        assert (found is None) == (expected is None), seed
        if found is not None and expected is not None:
            assert (found.count, list(found.runs)) == (expected.count, expected.runs)
    assert 50 < refused < 350


def test_distances_come_in_the_same_order() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        ops = [rng.randrange(3) for _ in range(rng.randrange(30))] * rng.randrange(1, 6)
        ops += [rng.randrange(3) for _ in range(rng.randrange(60))]
        assert _distances(np.array(ops, np.int64)) == distances(ops), seed


@pytest.mark.parametrize("what", ["list", "absent", "type"])
def test_ops_that_differ_in_form_are_not_alike(what: str) -> None:
    """The same tensors in another list, at another place, or of another type."""
    graph = training_step(8, wide=True)
    assert find_layers(graph, {}) is not None
    n = next(n for n, node in enumerate(graph.nodes) if node.op == "sum" and n > 12)
    node, values = graph.nodes[n], list(graph.values)
    some, _, last = node.operands
    assert isinstance(some, tuple)
    operands = {"list": ((some[0],), None, some[1], last), "absent": (some, last, None), "type": node.operands}[what]
    if what == "type":
        one = values[node.results[0]]
        values[one.id] = Value(one.id, type(one.type)(SHAPE, "bf16"), one.name, one.producer)
    nodes = [*graph.nodes[:n], Node(node.op, operands, node.results), *graph.nodes[n + 1 :]]
    other = Graph(graph.name, tuple(values), tuple(nodes), graph.inputs, graph.outputs, graph.updates)
    assert find_layers(other, {}) is None


def test_types_are_looked_at_again() -> None:
    """The numbers of ops are all but certain: were two equal by chance, layers that differ are still refused."""
    graph = training_step(8)
    found = find_layers(graph, {})
    assert found is not None
    made = found.values_at[4]
    one = int(made[made >= 0][0])
    for other in (one, *graph.nodes[found.nodes_at[4, 0]].inputs):
        kinds = found.wiring.type.copy()
        kinds[other] = kinds.max() + 1
        wiring = replace(found.wiring, type=kinds)
        assert Layers(graph, found.wiring, found.count, found.runs).is_regular({})
        assert not Layers(graph, wiring, found.count, found.runs).is_regular({})


def test_next_states_come_from_the_same_layer() -> None:
    """A stack in which every layer's weight becomes what the next layer makes of its own."""
    graph = training_step(8)
    found = find_layers(graph, {})
    assert found is not None
    updates = dict(graph.updates)
    turned = {i: updates[i + 1] for i in list(updates)[:-1]} | {list(updates)[-1]: updates[next(iter(updates))]}
    other = Graph(graph.name, graph.values, graph.nodes, graph.inputs, graph.outputs, tuple(turned.items()))
    assert find_layers(other, {}) is None


def test_what_stands_for_what_was_left_out() -> None:
    graph = training_step(9)
    layers = find_layers(graph, {})
    assert layers is not None
    short = layers.short()
    for n, like in enumerate(short.nodes_like):
        kept = short.kept[like]
        layer = layers.layer[n]
        inside = short.low <= layer < short.low + short.out
        assert (kept == n) != inside
        assert layers.layer[kept] == (short.low - 1 if inside else layer)
        assert graph.nodes[kept].op == graph.nodes[n].op
        for mine, theirs in zip(graph.nodes[n].results, graph.nodes[kept].results):
            assert short.values_like[mine] == short.values[theirs]
    for value in graph.inputs:
        like = short.values_like[value]
        if value in short.values:
            assert like == short.values[value]
        else:
            readers = {short.nodes_like[n] for n in graph.uses[value]}
            assert readers == set(short.graph.uses[like])
