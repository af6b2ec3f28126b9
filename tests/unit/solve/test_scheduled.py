"""Plans by schedule: what is chosen, and the bound of all schedules."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import inf
from time import monotonic

import pytest

from shardwright import DeviceMesh, Graph, GraphBuilder, ShardingSpec
from shardwright.cost import H100, step_time
from shardwright.cost.comm import full_bucket, sent_cost
from shardwright.errors import BoundError, PlanInfeasible
from shardwright.lower import lower, ordered
from shardwright.plans import Asked
from shardwright.plans.requests import requests_of
from shardwright.propagation.complete import Complete
from shardwright.solve.bound import WHOLE, Neighbours, best_price, last_needed_by_several, shares_of
from shardwright.solve.model import FINE, Assigner
from shardwright.solve.planner import Planner
from shardwright.solve.scheduled import UNFOLDED, Scheduled
from small_graphs import random_graph, stack


def planner_of(graph: Graph, mesh: str) -> Planner:
    on = DeviceMesh(mesh)
    return Planner(graph, on, H100.on(on), Asked(graph))


def time_of(complete: Complete, mesh: DeviceMesh) -> int:
    program = ordered(lower(complete), H100, complete.graph)
    return step_time(program, H100.on(mesh), complete.graph).total


@pytest.mark.parametrize("mesh", ["d=2", "d=6", "x=2, y=2", "x=2, y=8"])
def test_no_plan_is_below_the_bound(mesh: str) -> None:
    """Random choices, the plan, and what each sum finds."""
    for seed in range(3):
        graph = random_graph(seed, 2 + seed % 4)
        planner = planner_of(graph, mesh)
        plan = planner.best()
        assert 0 < plan.lower_bound <= plan.cost.objective
        assert plan.cost.objective == plan.cost.compute + plan.cost.exposed
        assert plan.cost.hidden + plan.cost.exposed == plan.cost.communication
        about, rng = Assigner(graph, planner.mesh, planner.hardware), random.Random(seed)
        sizes = [len(ways) for ways in about.ways] + [len(about.inputs[value]) for value in graph.inputs]
        for _ in range(25):
            made = about.decode([rng.randrange(size) for size in sizes])
            assert time_of(made, planner.mesh) >= plan.lower_bound, (mesh, seed)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_that_are_not_looked_for_would_not_be_higher(seed: int) -> None:
    planner = planner_of(random_graph(seed, 2 + seed % 4), "x=2, y=8")
    search = planner.scheduled("auto", inf)
    search.search()
    search.raise_bound()
    assert search.lower_bound > 0
    every = [shares for row in shares_of(search.hardware, search.mesh.axes) for shares in row]
    skipped = [shares for shares in every if not search.may_raise(shares)]
    assert all(search.bound(shares) <= search.lower_bound for shares in skipped)
    search.judged.clear()
    assert all(search.may_raise(shares) for shares in every), "nothing is known without a plan"


def test_which_kind_of_bound_is_higher_is_asked_once() -> None:
    """With neighbours 5, without 7: so without, from then on."""
    search = planner_of(random_graph(1, 3), "d=2").scheduled("auto", inf)
    between, asked = Neighbours((), {}, left_out=True), list[bool]()

    def bound(extra: Neighbours | None) -> int:
        asked.append(extra is not None)
        return 7 if extra is None else 5

    assert [search._higher(between, bound) for _ in range(3)] == [7, 7, 7]
    assert asked == [True, False, False, False]
    assert search._higher(Neighbours((), {}), bound) == 5, "where all compute counts there is one kind"


def test_a_plan_below_its_bound_is_an_error() -> None:
    planner = planner_of(random_graph(1, 3), "d=2")
    plan = planner.best()
    with pytest.raises(BoundError, match="less than the bound"):
        planner.bounded(plan, plan.cost.objective + 1)
    assert planner.bounded(plan, plan.cost.objective).gap == 0.0


def test_time_may_be_up_while_a_bound_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduled, "is_over", lambda self: False)  # it was not when that was asked last
    assert planner_of(random_graph(1, 3), "d=2").free_bound(-1.0) == 0


def test_the_best_rate_is_that_of_no_bucket() -> None:
    """Members of a bucket take at least their share, however they are joined."""
    rng = random.Random(3)
    for mesh in ("d=8", "x=4, y=8"):
        axes, on = DeviceMesh(mesh).axes, H100.on(DeviceMesh(mesh))
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            most = full_bucket(kind, axes, on)
            for _ in range(60):
                parts = [rng.randrange(1, most) for _ in range(rng.randrange(1, 9))]
                while sum(parts) > most and len(parts) > 1:
                    parts.pop()
                whole = sent_cost(kind, axes, sum(parts), on)
                assert sum(best_price(kind, axes, part, on) for part in parts) <= whole


def test_memory_is_limited_by_the_device() -> None:
    graph = random_graph(2, 4)
    free = planner_of(graph, "d=4")
    held = free.best().memory
    small = replace(free, hardware=free.hardware.with_memory(held // 50))
    with pytest.raises(PlanInfeasible):
        small.best()
    assert free.limit == H100.memory * 94 // 100


def test_what_only_leads_to_state_keeps_no_order() -> None:
    step = Graph.parse("""graph step(%x: f32[8, 8], %w: f32[8, 8]) {
      %y = matmul(%x, %w) : f32[8, 8]
      %g = matmul(%x, %y) : f32[8, 8]
      %v = add(%w, %g) : f32[8, 8]
      return %y, %v
      update %w := output 1
    }""")
    assert last_needed_by_several(step) == 0


@pytest.mark.parametrize("early", [False, True])
def test_what_comes_between_neighbours(early: bool) -> None:
    """A gradient that reads what the first makes comes between them only if it needs nothing later."""
    b = GraphBuilder("step")
    x, w = b.input((4096, 1024)), b.input((1024, 4096))
    h = b.op("exp", [x], [(4096, 1024)])
    y = b.op("matmul", [h, w], [(4096, 4096)])
    turned = b.op("transpose", [h], [(1024, 4096)], views=[(0, 0)])
    new = b.op("exp", [turned], [(1024, 4096)]) if early else b.op("matmul", [turned, y], [(1024, 4096)])
    graph, mesh = b.finish([y, new], updates=[(1, 1)]), DeviceMesh("d=8")
    assert last_needed_by_several(graph) == 1
    links = Neighbours.of(Assigner(graph, mesh, H100.on(mesh)), WHOLE).links()
    assert ((0, 1) in [(first, second) for first, second, _ in links]) is not early


@pytest.mark.parametrize(("mesh", "moved"), [("d=8", 2), ("x=2, y=8", 1)])
def test_of_more_values_than_links_all_are_moved_one_after_the_other(mesh: str, moved: int) -> None:
    b = GraphBuilder("product")
    graph, on = (
        b.finish([b.op("matmul", [b.input((1024, 1024)), b.input((1024, 1024))], [(1024, 1024)])]),
        DeviceMesh(mesh),
    )
    links = Neighbours.of(Assigner(graph, on, H100.on(on)), WHOLE).links()
    assert [second for _, second, _ in links] == [0] * moved


@pytest.mark.parametrize(("graph", "folds"), [(stack(12, 1536, 768), True), (random_graph(2, 4), False)])
def test_one_more_sum_where_a_graph_does_not_fold(graph: Graph, folds: bool) -> None:
    """Gathers of weights count in full and reductions of gradients little, as no other sum has it."""
    found = list(planner_of(graph, "d=2").scheduled("auto", monotonic() + 60).candidates())
    assert {one.short is not None for one in found} == {folds}
    assert (UNFOLDED.overlap in [one.hardware.overlap for one in found]) is not folds


def prepared_weights(layers: int) -> Graph:
    """A step whose weights take an op of their own before each product that reads them."""
    b = GraphBuilder("prepared")
    h = b.input((4096, 1024))
    weights = [b.input((1024, 1024)) for _ in range(layers)]
    for weight in weights:
        h = b.op("matmul", [h, b.op("exp", [weight], [(1024, 1024)])], [(4096, 1024)])
    new = [b.op("multiply", [weight, weight], [(1024, 1024)]) for weight in weights]
    return b.finish([h, *new], updates=[(1 + i, 1 + i) for i in range(layers)])


def test_weights_are_prepared_in_time_for_their_gathers() -> None:
    graph = prepared_weights(4)
    planner = planner_of(graph, "d=8")
    cut = ShardingSpec.parse("[d, _]", planner.mesh)
    made = [value.id for value in graph.values if value.producer and graph.nodes[value.producer[0]].op != "matmul"]
    specs = {**dict.fromkeys(graph.inputs, cut), **dict.fromkeys(made, cut)}
    plan = planner.priced(planner.spread(specs, specs), "specs")
    assert Counter(c.kind for c in plan.program.collectives) == {"all_gather": 4}
    spans = step_time(plan.program, planner.hardware, graph).spans
    gathers = [span for span in spans if span.stream != "compute"]
    assert [a.end for a in gathers[:-1]] == [b.start for b in gathers[1:]], "none waits for an op"


def test_a_move_hides_behind_what_prepares_others() -> None:
    """No schedule takes less than what is computed and what shows between neighbours, as the bound adds them up."""
    graph, mesh = prepared_weights(4), DeviceMesh("d=8")
    requests = requests_of([{"arg*": "[d, _]"}])
    about = Assigner(graph, mesh, H100.on(mesh), Asked.of(graph, mesh, requests))
    rng = random.Random(1)
    sizes = [len(ways) for ways in about.ways] + [len(about.inputs[value]) for value in graph.inputs]
    for try_ in range(30):
        choice = [rng.randrange(size) for size in sizes]
        if not try_:  # all cut as the inputs are
            cut = [[str(way.operands[0]) == "[d, _]" for way in ways] for ways in about.ways]
            choice[: len(cut)] = [found.index(True) for found in cut]
        extra = Neighbours.of(about, WHOLE)
        shown = sum(int(table[choice[a], choice[b]]) for a, b, table in extra.links())
        for n, node in enumerate(graph.nodes):
            less = extra.value(node.results[0])[0]
            shown += about.ways[n][choice[n]].compute * FINE + (0 if less is None else int(less[choice[n]]))
        assert shown <= FINE * time_of(about.decode(choice), mesh)
