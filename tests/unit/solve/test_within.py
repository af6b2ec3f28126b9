"""Plans that fit in memory: what they hold is counted right, the bound is one, and limits are kept."""

from __future__ import annotations

import random
from itertools import product

import pytest

from shardwright import DeviceMesh, Graph, GraphBuilder
from shardwright.cost import Overlap, hardware_of, program_cost
from shardwright.cost.overlap import graph_roles
from shardwright.cost.profile import RESIDENT, program_memory
from shardwright.errors import PlanInfeasible
from shardwright.lower import lower
from shardwright.plans import Asked
from shardwright.proof import check_structure
from shardwright.propagation.complete import Complete
from shardwright.solve.exact import best_plan
from shardwright.solve.memory.mixed import mix, parts, taking
from shardwright.solve.memory.multipliers import SCALE
from shardwright.solve.memory.one_copy import Frame, OneCopyPlan, one_copy_of
from shardwright.solve.memory.search import Within
from shardwright.solve.model import Assigner
from shardwright.spec.sharding import ShardingSpec
from small_graphs import random_graph, stack

H100 = hardware_of("h100")


def measure(complete: Complete) -> int:
    return program_memory(lower(complete), RESIDENT)


def frame_of(assigner: Assigner) -> Frame:
    graph = assigner.graph
    rules = [assigner.space.rules.get(n) for n in range(len(graph.nodes))]
    return Frame(graph, assigner.book, graph_roles(graph), rules)


@pytest.mark.parametrize("mesh", ["d=4", "x=2, y=2"])
def test_what_a_plan_costs_and_holds(mesh: str) -> None:
    """Of plans at any price of bytes: the Program costs what was said, and holds no less than was counted."""
    for seed in range(30):
        assigner = Assigner(random_graph(seed, 6), DeviceMesh(mesh), H100)
        work = Within(assigner, frame_of(assigner), 1 << 40, measure)
        work.steps = [int(work.at(0, None).held.argmax())]
        for price in (0, 1 << 10, 1 << 16, 1 << 22):
            found = work.at(price, None)
            program = lower(found.one_copy.decode(assigner.mesh))
            check_structure(program)
            assert program_cost(program, H100, assigner.graph).objective == found.cost, (mesh, seed, price)
            assert int(found.held.max()) <= program_memory(program, RESIDENT), (mesh, seed, price)


def test_the_count_is_exact_where_nothing_passes() -> None:
    """The best plan of a stack: at its peak, what was counted is what the Program holds."""
    assigner = Assigner(stack(3, 1536, 6144), DeviceMesh("d=4"), H100)
    frame = frame_of(assigner)
    best = Within(assigner, frame, 1 << 40, measure).at(0, None)
    assert int(best.held.max()) == measure(best.one_copy.decode(assigner.mesh))
    assert best.cost == assigner.solve().objective


class AllFlat:
    """Every plan of the kind for a small graph: its price and what its Program holds."""

    def __init__(self, assigner: Assigner) -> None:
        self.assigner, self.frame = assigner, frame_of(assigner)

    def cheaper_than(self, limit: int, memory: int) -> int | None:
        """A price below the limit of a plan that fits; None if there is none."""
        about, frame = self.assigner, self.frame
        shared = [v for v, demand in enumerate(about.demands) if demand.is_shared]
        for ways in product(*about.ways):
            time = sum(way.time for way in ways)
            if time >= limit:
                continue
            for input_specs in product(*about.inputs.values()):
                one_copy = OneCopyPlan(frame, list(ways), dict(zip(about.inputs, input_specs)), {})
                options: list[list[ShardingSpec]] = []
                for v in shared:
                    home = one_copy.home(v)
                    options.append([home] if v in frame.lives.shows else list(about.demands[v].routes.specs))
                for hubs in product(*options):
                    one_copy.hubs = dict(zip(shared, hubs))
                    if one_copy.cost < limit and int(one_copy.held().max()) <= memory:
                        complete = one_copy.decode(about.mesh)
                        if measure(complete) <= memory:
                            return one_copy.cost
        return None


def limited(graph: Graph, mesh: DeviceMesh, part: int) -> tuple[int, int]:
    """What the best plan costs, and this percentage of what it holds."""
    free = best_plan(graph, mesh, H100)
    return free.objective, measure(free.complete) * part // 100


@pytest.mark.parametrize("part", [75, 90])
@pytest.mark.parametrize("seed", range(24))
def test_no_plan_that_fits_is_cheaper(seed: int, part: int) -> None:
    """All plans of the kind, each lowered and measured; where none is found there is none."""
    graph, mesh = random_graph(seed, 2 + seed % 2), DeviceMesh("d=2")
    free, memory = limited(graph, mesh, part)
    try:
        found = best_plan(graph, mesh, H100, Asked.fixing(graph, memory=memory), measure=measure)
    except PlanInfeasible:
        assert AllFlat(Assigner(graph, mesh, H100)).cheaper_than(1 << 60, memory) is None
        return
    assert measure(found.complete) <= memory
    assert program_cost(lower(found.complete), H100, graph).objective == found.objective
    assert free <= found.objective
    assert found.lower_bound <= found.objective
    assert found.gap == 0
    assert AllFlat(Assigner(graph, mesh, H100)).cheaper_than(found.objective, memory) is None


@pytest.mark.parametrize(("mesh", "nodes"), [("d=2", 7), ("d=4", 7), ("x=2, y=2", 3), ("x=2, y=3", 3)])
def test_small_graphs_are_proven(mesh: str, nodes: int) -> None:
    """Where a plan fits, it is nearly always proven to be the best."""
    proven = found = 0
    for seed in range(24):
        graph, on = random_graph(seed, 2 + seed % nodes), DeviceMesh(mesh)
        free, memory = limited(graph, on, 90)
        try:
            made = best_plan(graph, on, H100, Asked.fixing(graph, memory=memory), measure=measure)
        except PlanInfeasible:
            continue
        assert measure(made.complete) <= memory
        assert free <= made.lower_bound <= made.objective
        found += 1
        proven += made.gap == 0
    assert found >= 5
    assert proven >= found - 1


@pytest.mark.parametrize("mesh", ["d=4", "x=2, y=2"])
@pytest.mark.parametrize("layers", [3, 8])
def test_a_stack_within_less_and_less(mesh: str, layers: int) -> None:
    """Limits are kept, no bound is above a plan that keeps a lower one, and at the end it is said that nothing fits."""
    graph, on = stack(layers, 1536, 6144), DeviceMesh(mesh)
    free = best_plan(graph, on, H100)
    most, bounds = measure(free.complete), [free.lower_bound]
    for part in (9, 7):
        found = best_plan(graph, on, H100, Asked.fixing(graph, memory=most * part // 10), measure=measure)
        assert measure(found.complete) <= most * part // 10
        assert program_cost(lower(found.complete), H100, graph).objective == found.objective
        bounds.append(found.lower_bound)
        assert found.objective >= max(bounds)
    with pytest.raises(PlanInfeasible):
        best_plan(graph, on, H100, Asked.fixing(graph, memory=most // 100), measure=measure)


def test_plans_are_mixed_part_by_part() -> None:
    """Many weights that are each whole or cut: parts are independent, and as many are taken as fit."""
    b = GraphBuilder("many")
    x = b.input((64, 1024), name="x")
    updates, outputs = [], []
    for i in range(6):
        w = b.input((1024, 1024), name=f"w{i}")
        x = b.op("matmul", [x, w], [(64, 1024)])
        outputs.append(b.op("exp", [w], [(1024, 1024)]))
        updates.append((i + 1, i))
    graph, mesh = b.finish([*outputs, x], updates=updates), DeviceMesh("d=4")
    # New state at a fifth of its price: then what is whole costs less time than what is cut.
    assigner = Assigner(graph, mesh, H100.with_overlap(Overlap(25, 20, 20)))
    frame = frame_of(assigner)
    work = Within(assigner, frame, 1 << 40, measure)
    low = work.at(0, None).one_copy
    cut = ShardingSpec(mesh, ["d", None])
    for n, node in enumerate(graph.nodes):
        if node.op == "exp":
            low.ways[n] = next(way for way in assigner.ways[n] if way.operands == (cut,))
    high = OneCopyPlan(frame, low.ways, dict(low.input_specs), dict(low.hubs))
    other = OneCopyPlan(frame, low.ways, dict(low.input_specs), dict(low.hubs))
    whole = ShardingSpec.replicate(mesh, 2)
    for value in graph.inputs[1:]:
        high.input_specs[value] = high.hubs[value] = cut
        other.input_specs[value] = other.hubs[value] = whole
    cheap, dear = sorted((high, other), key=lambda one_copy: one_copy.cost)
    found = parts(cheap, dear)
    assert len(found) == 6
    apart = [taking(cheap, dear, [part]).cost - dear.cost for part in found]
    assert taking(cheap, dear, found).cost == cheap.cost
    assert sum(apart) == cheap.cost - dear.cost
    limit = (int(cheap.held().max()) + int(dear.held().max())) // 2
    assert cheap.held().max() > dear.held().max()
    mixed = mix(cheap, dear, limit)
    assert int(mixed.held().max()) <= limit
    assert cheap.cost < mixed.cost < dear.cost


def forked() -> Graph:
    """Two views of a view, both there when only what they show in the end is."""
    b = GraphBuilder("forked")
    x = b.op("exp", [b.input((1536, 768), name="x")], [(1536, 768)])
    turned = b.op("transpose", [x], [(768, 1536)], views=[(0, 0)])
    back = [b.op("transpose", [turned], [(1536, 768)], views=[(0, 0)]) for _ in range(2)]
    other = b.op("exp", [b.input((768, 768), name="y")], [(768, 768)])
    ends = [b.op("add", [one, one], [(1536, 768)]) for one in (*back, x)]
    return b.finish([*ends, other], updates=[])


@pytest.mark.parametrize("seed", range(-1, 24))
def test_what_has_a_price_is_there(seed: int) -> None:
    """Of any plan, good or bad: at no step more bytes are priced than it holds."""
    rng = random.Random(seed)
    graph = forked() if seed < 0 else random_graph(seed, 7)
    about = Assigner(graph, DeviceMesh("d=2"), H100)
    work = Within(about, frame_of(about), 1 << 40, measure)
    free = work._terms([], 0)
    for _ in range(60 if seed < 0 else 12):
        sizes = [len(cost) for cost in free[0]]
        choice = [rng.randrange(size) for size in sizes]
        for value, hub in about.hub_of.items():
            if value in work.frame.lives.shows:  # a view is kept as it is
                demand = about.demands[value]
                choice[hub] = int(demand.made[choice[demand.decider]])
        held = one_copy_of(work.frame, about, choice).held()
        for step in work.candidates:
            costs, edges, _ = work._terms([step], SCALE)
            bytes = sum(int(a[i] - b[i]) for a, b, i in zip(costs, free[0], choice))
            bytes += sum(int(table[choice[a], choice[b]]) for a, b, table in edges)
            bytes -= sum(int(table[choice[a], choice[b]]) for a, b, table in free[1])
            assert bytes <= held[step], (seed, step)
