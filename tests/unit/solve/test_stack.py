"""A deep plan: what is said once for layers that are alike holds for each of them."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from shardwright import DeviceMesh, ShardingSpec
from shardwright.cost import hardware_of, program_cost
from shardwright.cost.overlap import graph_roles
from shardwright.ir.graph import Graph
from shardwright.lower import lower
from shardwright.plans import Asked
from shardwright.solve.exact import Prepared
from shardwright.solve.model import Assigner
from shardwright.solve.price import price
from shardwright.solve.repeated.layers import find_layers
from shardwright.solve.repeated.stack import DeepPlan, Stack
from small_graphs import stack

H100 = hardware_of("h100")


def stack_of(graph: Graph, mesh: DeviceMesh, given: Mapping[int, ShardingSpec]) -> Stack:
    layers = find_layers(graph, given)
    assert layers is not None
    short = layers.short()
    pinned = {short.values[value]: spec for value, spec in given.items() if value in short.values}
    found = Stack(short, Assigner(short.graph, mesh, H100, Asked.fixing(short.graph, pinned)))
    found.label(found.assigner.terms(False)[2])
    return found


def any_plan(deep: Stack, rng: random.Random) -> DeepPlan:
    """Layers choose as they like: some alike, some not, in the middle too."""
    about = deep.assigner
    sizes = [len(ways) for ways in about.ways] + [len(about.inputs[value]) for value in about.graph.inputs]
    sizes += [len(about.demands[value].routes.specs) for value in about.hub_of]
    some = [[rng.randrange(size) for size in sizes] for _ in range(rng.randrange(1, 4))]
    return DeepPlan(deep, [rng.choice(some) for _ in range(deep.short.layers.count + 1)])


@pytest.mark.parametrize("mesh", ["d=4", "x=2, y=2"])
@pytest.mark.parametrize("pinned", [False, True])
def test_any_choice_is_priced_and_decoded(mesh: str, pinned: bool) -> None:
    """The Program of what is decoded costs what was counted, and so does every value for itself."""
    graph, axes = stack(9, 1536, 6144), DeviceMesh(mesh)
    given: dict[int, ShardingSpec] = {}
    if pinned:
        layers = find_layers(graph, {})
        assert layers is not None
        made = layers.values_at[:, layers.value_places[graph.nodes[layers.nodes_at[4, 1]].results[0]]]
        spec = ShardingSpec(axes, [axes.axis_names[0], *[None] * (graph.type(int(made[4])).rank - 1)])
        given = {int(value): spec for value in made}
    deep = stack_of(graph, axes, given)
    alike = set()
    for seed in range(25):
        plan = any_plan(deep, random.Random(seed))
        alike.add(len(plan.alike(1)))
        complete = plan.decode()
        assert price(complete, deep.assigner.hardware, graph_roles(graph)).objective == plan.objective
        ways = deep.assigner.ways
        times = [
            ways[plan.variable(n)][plan.choices[plan.layers.layer[n]][plan.variable(n)]].time
            for n in range(len(graph.nodes))
        ]
        assert plan.objective == sum(times) + sum(plan._seen(v).cost for v in range(len(graph.values)))
        if seed < 3:
            assert program_cost(lower(complete), H100, graph).objective == plan.objective
    assert len(alike) > 1
    assert min(alike) == 6  # the four that are kept, those between, and the last of them, which has another neighbour


@pytest.mark.parametrize("mesh", ["d=4", "x=2, y=2"])
def test_a_rough_plan_takes_one_solve_and_says_nothing_of_others(mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here its choice is the best, as where values are wanted in one or two places."""
    graph, on = stack(9, 1536, 6144), DeviceMesh(mesh)
    solved = ((deep, deep.solve()) for deep in Prepared(graph, on, H100, Asked(graph)).stacks(H100))
    deep, exact = next(pair for pair in solved if pair[1] is not None)
    asked, optimum = list[bool](), Stack.optimum
    monkeypatch.setattr(Stack, "optimum", lambda self, bound, *more: asked.append(bound) or optimum(self, bound, *more))
    rough = deep.solve(rough=True)
    assert exact is not None
    assert rough is not None
    assert asked == [False]
    assert rough.lower_bound == 0
    assert rough.objective == exact.objective


def test_a_tight_plan_is_said_anew_where_inputs_changed() -> None:
    graph, changed = stack(9, 1536, 6144), 0
    deep = stack_of(graph, DeviceMesh("x=2, y=2"), {})
    for seed in range(15):
        plan = any_plan(deep, random.Random(seed))
        tight = plan.tight()
        again = DeepPlan(deep, tight.choices)
        assert tight.objective == again.objective
        mine, theirs = tight.decode(), again.decode()
        assert (mine.inputs, mine.decisions, mine.outputs) == (theirs.inputs, theirs.decisions, theirs.outputs)
        assert mine.sources == theirs.sources
        changed += mine.inputs != plan.decode().inputs
    assert changed > 5


def test_sources_come_by_value() -> None:
    deep = stack_of(stack(9, 1536, 6144), DeviceMesh("d=4"), {})
    for seed in range(5):
        sources = any_plan(deep, random.Random(seed)).decode().sources
        assert sources
        assert list(sources) == sorted(sources)
        assert all(type(value) is int for value in sources)
