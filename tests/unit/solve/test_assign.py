"""The planner's core: its price is the lowered Program's, and on small graphs nothing is cheaper than what it finds."""

from __future__ import annotations

import random

import pytest

from shardwright import DeviceMesh, Graph, GraphBuilder, ShardingSpec
from shardwright.cost import hardware_of, program_cost
from shardwright.cost.comm import sent_cost
from shardwright.lower import lower
from shardwright.solve.assign import Assigner
from shardwright.solve.price import price
from shardwright.spec.reshard import reshard
from shardwright.verify import check_identity, check_structure

H100 = hardware_of("h100")
MESHES = ["d=2", "d=4", "x=2, y=2", "x=2, y=3"]
SAMPLES = 80
"""Graphs for each mesh."""


def random_graph(seed: int, nodes: int, sizes: tuple[int, ...] = (768, 1536, 3072)) -> Graph:
    """Ops of the NumPy book over few sizes, so that shapes often fit; values are shared, some inputs are updated."""
    rng = random.Random(seed)
    b = GraphBuilder("small")
    values: list[tuple[int, tuple[int, ...]]] = []

    def new(value: int, shape: tuple[int, ...]) -> None:
        values.append((value, shape))

    for _ in range(rng.randint(1, 3)):
        shape = (rng.choice(sizes), rng.choice(sizes))
        new(b.input(shape), shape)
    inputs = list(values)
    favourite = rng.randrange(len(values)) if rng.random() < 0.4 else None
    for _ in range(nodes):
        value, shape = values[favourite] if favourite is not None and rng.random() < 0.5 else rng.choice(values)
        fitting = [(v, s) for v, s in values if len(shape) == len(s) == 2 and s[0] == shape[1]]
        same = [v for v, s in values if s == shape]
        kind = rng.choice(["exp", "add", "multiply", "matmul", "matmul", "sum", "transpose"])
        if kind == "matmul" and fitting:
            other, with_shape = rng.choice(fitting)
            made = (shape[0], with_shape[1])
            new(b.op("matmul", [value, other], [made]), made)
        elif kind in ("add", "multiply"):
            new(b.op(kind, [value, rng.choice(same)], [shape]), shape)
        elif kind == "sum" and len(shape) == 2:
            axis = rng.randrange(2)
            made = (shape[1 - axis],)
            new(b.op("reduce_sum", [value], [made], attrs={"axis": (axis,)}), made)
        elif kind == "transpose" and len(shape) == 2:
            new(b.op("transpose", [value], [shape[::-1]], views=[(0, 0)]), shape[::-1])
        else:
            new(b.op("exp", [value], [shape]), shape)
    made = values[len(inputs) :]
    outputs = [made[-1], *rng.sample(made, min(len(made), rng.randint(0, 1)))]
    updates = []
    if rng.random() < 0.4:
        state, shape = inputs[0]
        new_state = next((o for o, (v, s) in enumerate(outputs) if s == shape), None)
        if new_state is not None:
            updates.append((0, new_state))
    return b.finish([value for value, _ in outputs], updates=updates)


# -- all choices ----------------------------------------------------------------------------------------


class Brute:
    """All choices of ways, shardings of inputs and hubs; copies as lowering makes them, written down once more."""

    def __init__(self, assigner: Assigner) -> None:
        self.a = assigner
        graph = assigner.graph
        self.order = [assigner.place[v] for v in graph.inputs] + list(range(len(graph.nodes)))
        at = {variable: i for i, variable in enumerate(self.order)}
        self.ready: list[list[int]] = [[] for _ in self.order]
        for v in range(len(graph.values)):
            variables = [self.maker(v), *(n for n, _ in assigner.readers[v])]
            variables += [assigner.place[s] for i, s in assigner.updates.items() if graph.outputs[i] == v]
            self.ready[max(at[variable] for variable in variables)].append(v)
        least = [0 if n >= len(graph.nodes) else min(way.time for way in assigner.ways[n]) for n in self.order]
        self.rest = [sum(least[i + 1 :]) for i in range(len(least))]
        self.known: dict[tuple[int, tuple[ShardingSpec, ...]], int] = {}
        self.visited = 0

    def maker(self, value: int) -> int:
        producer = self.a.graph.values[value].producer
        return self.a.place[value] if producer is None else producer[0]

    def lies(self, value: int, choice: dict[int, int]) -> ShardingSpec:
        producer = self.a.graph.values[value].producer
        if producer is None:
            return self.a.inputs[value][choice[self.a.place[value]]]
        return self.a.ways[producer[0]][choice[producer[0]]].results[producer[1]].closed()

    def copies(self, value: int, choice: dict[int, int]) -> int:
        a, graph = self.a, self.a.graph
        source = self.lies(value, choice)
        wanted = [a.ways[n][choice[n]].operands[place].closed() for n, place in a.readers[value]]
        for i, output in enumerate(graph.outputs):
            if output == value and i in a.updates:
                wanted.append(a.inputs[a.updates[i]][choice[a.place[a.updates[i]]]])
            elif output == value:
                wanted.append(ShardingSpec.make(a.mesh, source.dims))
        key = (value, (source, *wanted))
        if key not in self.known:
            hubs = [None, *a.demands.of(value).domain] if any(w != source for w in wanted) else [None]
            self.known[key] = min(self.cost(value, source, [h, *wanted] if h else wanted) for h in hubs)
        return self.known[key]

    def cost(self, value: int, source: ShardingSpec, wanted: list[ShardingSpec]) -> int:
        a, type = self.a, self.a.graph.type(value)
        held, total = [source], 0
        for want in wanted:
            if want in held:
                continue
            ways = [reshard(copy, want, type.shape, type.item_bytes, idle=False) for copy in held]
            steps = min(ways, key=lambda steps: sum(step.bytes for step in steps))
            for step in steps:
                time = sent_cost(step.kind, step.axes, step.bytes, a.hardware)
                total += a.hardware.overlap.shown(a.roles[value], time)
            held.append(want)
        return total

    def cheaper_than(self, limit: int, most: int) -> int | None:
        """The least cost below the limit; None if there is none.  Gives up after so many steps."""
        best: int | None = None
        choice: dict[int, int] = {}

        def visit(i: int, spent: int) -> None:
            nonlocal best, limit
            if i == len(self.order):
                best = limit = spent
                return
            variable = self.order[i]
            node = variable < len(self.a.ways)
            count = len(self.a.ways[variable]) if node else len(self.a.inputs[self.a.graph.inputs[i]])
            for pick in range(count):
                self.visited += 1
                if self.visited > most:
                    return
                choice[variable] = pick
                total = spent + (self.a.ways[variable][pick].time if node else 0)
                for v in self.ready[i]:
                    if total + self.rest[i] >= limit:
                        break
                    total += self.copies(v, choice)
                if total + self.rest[i] < limit:
                    visit(i + 1, total)

        visit(0, 0)
        return best


@pytest.mark.parametrize("mesh", MESHES)
def test_nothing_is_cheaper(mesh: str) -> None:
    proven = 0
    for seed in range(SAMPLES):
        nodes = random.Random(seed).randint(2, 8 if "," not in mesh else 5)
        assigner = Assigner(random_graph(seed, nodes), DeviceMesh(mesh), H100)
        found = assigner.solve()
        brute = Brute(assigner)
        best = brute.cheaper_than(found.cost.objective, 60_000)
        assert best is None, (mesh, seed, best, found.cost.objective, found.lower_bound)
        assert found.lower_bound <= found.cost.objective
        proven += brute.visited <= 60_000
        program = lower(found.complete)
        assert program_cost(program, H100, assigner.graph).objective == found.cost.objective
        if seed % 10 == 0:
            again = Brute(assigner).cheaper_than(found.cost.objective + 1, 60_000)
            assert again is None or again == found.cost.objective
    assert proven == SAMPLES
