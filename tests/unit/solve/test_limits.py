"""Work that is bounded: strategies on meshes of many axes, and the limit of time."""

from __future__ import annotations

import sys
from itertools import count
from math import inf

import numpy as np
import pytest

import shardwright as sw
from shardwright import DeviceMesh, Graph, ShapeDtype
from shardwright.cost import H100
from shardwright.cost.hardware import hardware_of
from shardwright.errors import PlanInfeasible
from shardwright.optimize import batches
from shardwright.optimize.compact import OutOfTime, compact
from shardwright.plans.asked import Asked
from shardwright.plans.plan import Plan
from shardwright.plans.requests import Request
from shardwright.solve import strategies
from shardwright.solve.planner import Planner
from shardwright.solve.recipes import RECIPES
from shardwright.solve.strategies import Space
from small_graphs import random_graph, stack

ARGS = ShapeDtype((4096, 1024), np.float32), ShapeDtype((1024, 1024), np.float32)
SIX = "a=2, b=2, c=2, d=2, e=2, f=2"
SOON = 20
"""Looks at the clock after time is up."""


def fn(x, w):
    return np.tanh(x @ w) @ w


def test_six_axes_make_few_strategies() -> None:
    """A tuple for every choice of six axes would be thousands of strategies, and tables of gigabytes."""
    plan = sw.plan(fn, *ARGS, mesh=SIX)
    assert any("were split the same way" in note for note in plan.data.program.notes)
    assert plan.data.lower_bound == 0, "nothing is known of plans that split these axes apart"
    assert plan.cost.objective <= sw.plan(fn, *ARGS, mesh=SIX, recipe="dp").cost.objective


def test_axes_are_joined_from_the_outside_and_those_that_were_named_last(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, mesh = random_graph(1, 4), DeviceMesh("a=2, b=2, c=2")
    alone = Space(graph, mesh, H100.on(mesh))
    assert [len(group) for group in alone.groups] == [1, 1, 1]
    assert alone.joined == ()
    most = max(len(alone.ways(n)) for n in range(len(graph.nodes)))
    monkeypatch.setattr(strategies, "MOST", most - 1)
    joined = Space(graph, mesh, H100.on(mesh))
    assert next(" ".join(axis.name for axis in group) for group in joined.groups) == "a b"
    named = Space(graph, mesh, H100.on(mesh), apart=frozenset("a"))
    assert [" ".join(axis.name for axis in group) for group in named.groups][-1].endswith("b c")
    for n in range(len(graph.nodes)):
        for way in joined.ways(n):
            for spec in (*way.operands, *way.results):
                assert len({dim for dim, of in enumerate(spec.dims) for axis in of.axes if axis.name in "ab"}) < 2


def test_time_that_is_up_is_noticed_while_choices_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on at every look: then a recipe is taken, and the plan says that it was cut short."""
    ticks = count()
    for module in ("optimize.compact", "solve.planner", "solve.scheduled", "solve.exact"):
        monkeypatch.setattr(f"shardwright.{module}.monotonic", lambda: next(ticks) / 10)
    plan = sw.plan(fn, *ARGS, mesh="x=4, y=2", time_limit=0.5)
    assert plan.data.timed_out
    assert plan.solver in RECIPES
    assert any("time was up after 0.5 s" in note for note in plan.data.program.notes)
    assert next(ticks) < 100, "what was left to do went on long after"


class Clock:
    """Time that is up at some look at it."""

    def __init__(self, last: float) -> None:
        self.last, self.looks = last, 0

    def __call__(self) -> float:
        self.looks += 1
        return 0.0 if self.looks < self.last else 100.0


ROOM = [Request("memory", 64 * 2**20)], [Request("memory", 2**20)]


@pytest.mark.parametrize("hardware", ["h100", "virtual"])
@pytest.mark.parametrize(
    ("graph", "mesh", "requests"),
    [
        (stack(8, 1536, 768), "x=4, y=2", []),
        (stack(8, 1536, 768), "x=4, y=2", ROOM[0]),
        (stack(8, 1536, 768), "x=4, y=2", ROOM[1]),
        (random_graph(11, 12), "x=2, y=2", ROOM[1]),
        (random_graph(7, 6, (1000, 1500)), "x=4, y=2", [Request("uneven", "yes")]),
    ],
    ids=["stack", "stack that has to fit", "stack that cannot", "graph that cannot", "uneven"],
)
def test_wherever_time_is_up_the_call_ends_soon(
    graph: Graph, mesh: str, requests: list[Request], hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = DeviceMesh(mesh)

    def planned(last: float) -> tuple[Plan | PlanInfeasible, int]:
        clock = Clock(last)
        for name, module in list(sys.modules.items()):
            if name.startswith("shardwright.") and hasattr(module, "monotonic"):
                monkeypatch.setattr(module, "monotonic", clock)
        planner = Planner(graph, on, hardware_of(hardware).on(on), Asked.of(graph, on, requests))
        try:
            return planner.best(time_limit=10.0), clock.looks
        except PlanInfeasible as error:
            return error, clock.looks

    free, looks = planned(inf)
    assert not free.timed_out
    for last in sorted({*range(5, 9), *(looks * part // 8 for part in range(1, 8))}):
        found, after = planned(last)
        assert after - last < SOON, last
        if isinstance(found, Plan):
            assert isinstance(free, Plan), "what is found in a part of the time is there in all of it"
            assert found.timed_out or found.cost.objective == free.cost.objective
        else:
            assert found.timed_out or str(found) == str(free)


def test_what_is_said_of_a_failure_takes_no_more_time_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []

    def best(self: Planner, solver: str = "auto", time_limit: float | None = None) -> Plan:
        asked.append(time_limit)
        clock.last = 0
        raise PlanInfeasible("none")

    clock = Clock(inf)
    monkeypatch.setattr(Planner, "best", best)
    for module in ("infeasible", "fitting", "deciding"):
        monkeypatch.setattr(f"shardwright.api.{module}.monotonic", clock)
    with pytest.raises(PlanInfeasible) as failed:
        sw.plan(fn, *ARGS, mesh="d=4", memory=1000, time_limit=3)
    assert asked == [3]
    assert "time ran out before a remedy was found" in str(failed.value)


def test_compaction_stops() -> None:
    cost = np.arange(3)
    with pytest.raises(OutOfTime):
        compact([cost, cost], [(0, 1, np.ones((3, 3), np.int64))], until=0.0)


def test_large_tables_are_looked_at_in_parts_and_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    costs = [np.repeat(rng.integers(0, 9, (3, size)), [1, 4, 2], axis=0) for size in (7, 9)]
    members = np.arange(7)
    link = batches.Link(0, 1, members, members, rng.integers(0, 9, (7, 9)))

    def said(block: int) -> list[np.ndarray]:
        monkeypatch.setattr(batches, "BLOCK", block)
        monkeypatch.setattr(batches, "PART", block)
        passing = batches.Batches(costs, [link])
        bounds = [passing.sweep() for _ in range(3)]
        return [np.array(bounds), *passing.boxes[0], *passing.round()]

    whole = said(10**6)
    assert whole[0][-1] == (costs[0][:, :, None] + link.table + costs[1][:, None, :]).min((1, 2)).sum()
    for block in (8, 64, 200):
        assert all(np.array_equal(one, other) for one, other in zip(said(block), whole))
