"""Stacks whose layers all read the same values: folded and unfolded agree, and bounds are bounds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from shardwright import DeviceMesh, Graph
from shardwright.cost import RESIDENT, hardware_of, program_cost, program_memory
from shardwright.errors import PlanInfeasible
from shardwright.frontends.torch import capture_step
from shardwright.lower import lower
from shardwright.optimize.problem import Ints
from shardwright.plans import Asked
from shardwright.propagation.complete import Complete
from shardwright.solve.assignment import Assignment
from shardwright.solve.exact import OPEN, Prepared, _better, best_plan
from shardwright.solve.model import FINE, NEAR, Assigner, Terms
from shardwright.solve.repeated.layers import find_layers
from shardwright.solve.repeated.stack import DeepPlan, Stack
from small_graphs import sharing_stack

H100 = hardware_of("h100")


@pytest.mark.parametrize("mesh", ["d=2", "d=4", "x=2, y=2", "x=2, y=4"])
def test_folded_and_unfolded(mesh: str) -> None:
    axes, count, proven = DeviceMesh(mesh), 0, 0
    for seed in range(24):
        graph = sharing_stack(seed, (5, 6, 8, 24)[seed % 4])
        tried = (stack.solve() for stack in Prepared(graph, axes, H100, Asked(graph)).stacks(H100))
        folded = next((found for found in tried if found is not None), None)
        if folded is None:
            continue
        count += 1
        whole = Assigner(graph, axes, H100).solve()
        for found in (folded, whole):
            assert program_cost(lower(found.complete), H100, graph).objective == found.objective
            assert max(folded.lower_bound, whole.lower_bound) <= found.objective, seed
        if folded.gap <= NEAR and whole.gap <= NEAR:
            proven += 1
            assert folded.objective == pytest.approx(whole.objective, rel=2 * NEAR), seed
        best = best_plan(graph, axes, H100)
        assert best.objective <= whole.objective, seed
        assert best.lower_bound >= folded.lower_bound, seed
    assert count > 18
    assert proven > 8


def at_least(deep: Stack, terms: Terms, plan: DeepPlan, value: int) -> int:
    """What the bound's problem makes of a value of no layer (of the short graph) under a plan, with the best hubs."""
    costs, edges, hubs = terms
    near: dict[int, list[tuple[int, Ints]]] = {}
    for i, j, table in edges:
        near.setdefault(i, []).append((j, table))
        near.setdefault(j, []).append((i, table.T))
    nodes, hub, demand = len(deep.assigner.graph.nodes), hubs[value], deep.assigner.demands[value]
    chosen = nodes + len(deep.assigner.graph.inputs)
    total = costs[hub].copy()
    for other, table in near[hub]:
        if other == demand.decider:
            total = total + table[:, plan.choices[-1][other]]
            continue
        own = deep.layer[other]
        for layer in [n for n in range(plan.layers.count) if plan.short_layer(n) == own] if own >= 0 else [-1]:
            if other < chosen:
                total = total + table[:, plan.choices[layer][other]]
                continue
            part = costs[other].copy()
            for reader, want in near[other]:
                if reader != hub:
                    part = part + want[:, plan.choices[layer][reader]]
            total = total + (table + part).min(1)
    return int(total.min())


def test_no_plan_costs_less_than_the_bound_says_of_what_layers_share() -> None:
    """Value by value, for any plan.  With one hub for all readers of the short stack it would."""
    wrong = {False: 0, True: 0}
    told = 0
    for seed in range(12):
        graph = sharing_stack(seed, 14)
        layers = find_layers(graph, {})
        assert layers is not None
        short = layers.short()
        deep = Stack(short, Assigner(short.graph, DeviceMesh("x=2, y=2"), H100))
        plain = deep.assigner.terms(True)
        deep.label(plain[2])
        shared = list(deep._parts(plain[2]))
        terms, order = deep.spread(plain, deep.assigner.order)
        assert sorted(order) == list(range(len(terms[0]))) == list(range(len(deep.layer)))
        for turn in range(20):
            plan = any_plan(deep, random.Random(turn))
            for value in shared:
                cost = FINE * plan._seen(deep.was[value]).cost
                told += cost > 0
                for spread in (False, True):
                    wrong[spread] += at_least(deep, terms if spread else plain, plan, value) > cost
    assert told > 200
    assert wrong[True] == 0
    assert wrong[False] > 0


def any_plan(deep: Stack, rng: random.Random) -> DeepPlan:
    """Layers choose as they like, most of them alike."""
    about = deep.assigner
    sizes = [len(ways) for ways in about.ways] + [len(about.inputs[value]) for value in about.graph.inputs]
    some = [[rng.randrange(size) for size in sizes] for _ in range(3)]
    return DeepPlan(deep, rng.choices(some, (8, 1, 1), k=deep.short.layers.count + 1))


class Residual(torch.nn.Module):
    """Blocks between two projections."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.up = torch.nn.ModuleList(torch.nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = torch.nn.ModuleList(torch.nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for up, down in zip(self.up, self.down):
            x = x + down(torch.relu(up(x)))
        return self.last(x).square().mean()


def residual_step(layers: int) -> Graph:
    with torch.device("meta"):
        net, x = Residual(layers, 96), torch.empty(64, 96)
    return capture_step(net, x, optimizer=torch.optim.SGD(net.parameters(), lr=0.1)).graph


def test_a_step_whose_first_layer_is_simpler() -> None:
    """More layers are kept at its ends than for most; with too few layers for that it is solved as it is."""
    graph, axes = residual_step(9), DeviceMesh("d=4")
    tried = [stack.solve() is not None for stack in Prepared(graph, axes, H100, Asked(graph)).stacks(H100)]
    assert any(tried)
    assert best_plan(graph, axes, H100).objective <= Assigner(graph, axes, H100).solve().objective
    assert len(list(Prepared(residual_step(5), axes, H100, Asked(residual_step(5))).stacks(H100))) == 2


def test_a_small_stack_within_memory_is_no_worse_than_unfolded() -> None:
    axes, fitting = DeviceMesh("x=2, y=2"), 0
    for seed in range(6):
        graph = sharing_stack(seed, 7)
        free = best_plan(graph, axes, H100)
        limit = int(0.8 * held(free.complete))
        try:
            found = best_plan(graph, axes, H100, Asked.fixing(graph, memory=limit), measure=held)
        except PlanInfeasible:
            continue
        fitting += 1
        whole = best_plan(graph, axes, H100, Asked.fixing(graph, memory=limit), solver="elimination", measure=held)
        assert held(found.complete) <= limit
        assert found.objective <= whole.objective * (1 + OPEN), seed
        assert max(found.lower_bound, whole.lower_bound) <= min(found.objective, whole.objective), seed
    assert fitting > 2


def test_what_a_stack_finds_is_kept_where_the_other_search_finds_nothing() -> None:
    found = best_plan(sharing_stack(0, 6), DeviceMesh("d=2"), H100)

    def nothing() -> Assignment:
        raise PlanInfeasible("no plan fits")

    assert _better(found, nothing) is found
    assert _better(replace(found, objective=found.objective + 5), lambda: found).objective == found.objective


def held(complete: Complete) -> int:
    return program_memory(lower(complete), RESIDENT)
