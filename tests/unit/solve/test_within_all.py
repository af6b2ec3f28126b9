"""Plans within memory against all plans that would be cheaper, each of them lowered and measured."""

from __future__ import annotations

from collections import Counter

import pytest

from shardwright import DeviceMesh, Graph
from shardwright.cost import hardware_of, program_cost
from shardwright.cost.overlap import graph_roles
from shardwright.cost.profile import RESIDENT, program_memory
from shardwright.lower import lower
from shardwright.plans import Asked
from shardwright.propagation.complete import Complete
from shardwright.solve.assignment import Assignment
from shardwright.solve.exact import best_plan
from shardwright.solve.memory.one_copy import Frame, OneCopyPlan
from shardwright.solve.memory.search import Within
from shardwright.solve.model import Assigner
from small_graphs import random_graph

H100 = hardware_of("h100")
MESHES = ["d=2", "d=4", "x=2, y=2", "x=2, y=3"]
GRAPHS, PARTS = 210, 6
"""On each mesh, in parts; for about half of the graphs some plan holds less than the best does."""
LEAVES, VISITS = 2_000, 40_000
"""So many plans are measured, and so many partial ones looked at, before a graph is given up."""
ALL = 8
"""In each part so many graphs are gone through to the end, at least; in all they are 310."""


def measure(complete: Complete) -> int:
    return program_memory(lower(complete), RESIDENT)


class TooMany(Exception):
    pass


class Cheaper:
    """All plans that keep each value in one sharding and cost less than a price, node by node.

    Nothing is known of them but that no part of a plan costs less than nothing, and what is there while a node runs.
    """

    def __init__(self, about: Assigner, price: int, memory: int) -> None:
        self.about, self.price, self.memory = about, price, memory
        graph = about.graph
        rules = [about.space.rules.get(n) for n in range(len(graph.nodes))]
        self.frame = Frame(graph, about.book, graph_roles(graph), rules)
        self.one_copy = OneCopyPlan(self.frame, [ways[0] for ways in about.ways], {}, {})
        self.measured = self.visited = 0
        self.order: list[tuple[str, int]] = []
        for n, node in enumerate(graph.nodes):
            for value in node.inputs:
                if graph.values[value].producer is None:
                    self._decide("lies", value)
            self._decide("way", n)
            for value in node.results:
                self._decide("hub", value)
        for value in graph.inputs:
            self._decide("lies", value)
        at = {what: i for i, what in enumerate(self.order)}
        self.ready: list[list[int]] = [[] for _ in self.order]
        """What is decided last about a value decides what its copies cost."""
        for value, tensor in enumerate(graph.values):
            last = [at["lies", value] if tensor.producer is None else at["way", tensor.producer[0]]]
            last += [at["way", n] for n, _ in self.frame.readers[value]] + [at.get(("hub", value), 0)]
            states = [self.frame.updates[i] for i in self.frame.outputs.get(value, ()) if i in self.frame.updates]
            self.ready[max(last + [at["lies", state] for state in states])].append(value)
        least = [min(way.time for way in about.ways[n]) if kind == "way" else 0 for kind, n in self.order]
        self.rest = [sum(least[depth + 1 :]) for depth in range(len(least))]

    def _decide(self, kind: str, which: int) -> None:
        if (kind, which) in self.order or (kind == "hub" and which not in self.about.hub_of):
            return
        self.order.append((kind, which))
        if kind == "lies":
            self._decide("hub", which)

    def held(self, n: int) -> int:
        """What is there while a node runs, at least: what it reads and makes, what is read later, what the caller has.

        Views are left out, and what has been decided later than this node.
        """
        frame, one_copy = self.frame, self.one_copy
        graph, views = frame.graph, frame.lives.shows
        node, way, total = graph.nodes[n], one_copy.ways[n], 0
        for value, spec in set(zip(node.inputs, way.operands)):
            if (
                value not in views
                and not node.views
                and not (value in frame.lives.stays and spec == one_copy.input_specs[value])
            ):
                total += frame.bytes(spec, value)
        for value, spec in zip(node.results, way.results):
            total += 0 if value in views else frame.bytes(spec, value)
        made = [value for value, tensor in enumerate(graph.values) if tensor.producer and tensor.producer[0] < n]
        for value in [*one_copy.input_specs, *made]:
            if value in frame.lives.stays:
                total += frame.bytes(one_copy.input_specs[value], value)
                continue
            readers = [reader for reader, _ in frame.readers[value]]
            later = value in frame.outputs or any(reader > n for reader in readers)
            if later and value not in views and value not in node.inputs:
                kept = (
                    one_copy.hubs[value]
                    if value in one_copy.hubs and any(r < n for r in readers)
                    else one_copy.home(value)
                )
                total += frame.bytes(kept, value)
        return total

    def fits(self, depth: int = 0, spent: int = 0) -> int | None:
        """What one costs that fits; None if none does."""
        if depth == len(self.order):
            self.measured += 1
            if self.measured > LEAVES:
                raise TooMany
            complete = self.one_copy.decode(self.about.mesh)
            return spent if measure(complete) <= self.memory else None
        (kind, which), one_copy, about = self.order[depth], self.one_copy, self.about
        if kind == "hub":
            seen = which in self.frame.lives.shows
            hubs = [one_copy.home(which)] if seen else about.demands[which].routes.specs
        for option in about.ways[which] if kind == "way" else about.inputs[which] if kind == "lies" else hubs:
            self.visited += 1
            if self.visited > VISITS:
                raise TooMany
            if kind == "way":
                one_copy.ways[which] = option
            else:
                (one_copy.input_specs if kind == "lies" else one_copy.hubs)[which] = option
            if kind == "way" and self.held(which) > self.memory:
                continue
            now = spent + (option.time if kind == "way" else 0) + sum(map(one_copy.spent, self.ready[depth]))
            if now + self.rest[depth] < self.price:
                found = self.fits(depth + 1, now)
                if found is not None:
                    return found
        return None


def limited(seed: int, mesh: DeviceMesh) -> tuple[Graph, int] | None:
    """A graph and a limit below what its best plan holds, but not below what some plan does; None if there is none."""
    # On two axes there are many more plans: mostly small graphs, so that all can be gone through.
    graph = random_graph(seed, 2 + seed % (7 if len(mesh.axes) == 1 or seed % 4 == 0 else 3))
    about = Assigner(graph, mesh, H100)
    rules = [about.space.rules.get(n) for n in range(len(graph.nodes))]
    work = Within(about, Frame(graph, about.book, graph_roles(graph), rules), 1 << 40, measure)
    most = measure(about.solve().complete)
    work.steps = [int(work.at(0, None).held.argmax())]
    least = min(measure(work.at(1 << bits, None).one_copy.decode(mesh)) for bits in (17, 20, 23))
    return (graph, least + (most - least) * (1 + seed % 3) // 4) if least < most else None


def within(graph: Graph, mesh: DeviceMesh, memory: int, solver: str = "auto") -> Assignment:
    return best_plan(graph, mesh, H100, Asked.fixing(graph, memory=memory), solver=solver, measure=measure)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_plan_that_fits_is_cheaper(mesh: str, part: int) -> None:
    """Up to 8 nodes: of all plans that cost less than what every solver finds none fits, as far as there is time."""
    told: Counter[str] = Counter()
    devices = DeviceMesh(mesh)
    for seed in range(GRAPHS * part // PARTS, GRAPHS * (part + 1) // PARTS):
        case = limited(seed, devices)
        if case is None:
            continue
        graph, memory = case
        plan = within(graph, devices, memory)
        assert measure(plan.complete) <= memory
        assert program_cost(lower(plan.complete), H100, graph).objective == plan.objective
        told["proven"] += plan.gap == 0
        try:
            assert Cheaper(Assigner(graph, devices, H100), plan.objective, memory).fits() is None, (mesh, seed)
        except TooMany:
            told["part"] += 1
            continue
        told["all"] += 1
        for solver in ("elimination", "ilp"):
            assert within(graph, devices, memory, solver).objective == plan.objective, (mesh, seed, solver)
    print(mesh, part, dict(told))
    count = told["all"] + told["part"]
    assert told["proven"] >= count - 2
    assert told["all"] >= ALL


def test_the_enumeration_finds_what_there_is() -> None:
    """With the price raised above the best it finds a plan, and it is the best one."""
    seen, mesh = 0, DeviceMesh("d=2")
    for seed in range(12):
        case = limited(seed, mesh)
        if case is not None:
            graph, memory = case
            plan = within(graph, mesh, memory)
            try:
                assert Cheaper(Assigner(graph, mesh, H100), plan.objective + 1, memory).fits() == plan.objective
                seen += 1
            except TooMany:
                pass
    assert seen >= 3
