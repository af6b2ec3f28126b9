"""Which collectives can hide, what that is worth, and when things happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from shardwright import Graph, GraphError, Program
from shardwright.cost import H100, Overlap, graph_roles, program_cost, program_roles, simulate
from shardwright.cost.schedule import COMMUNICATION, COMPUTE, Task, schedule

STEP = Graph.parse("""graph step(%x: f32[64, 32], %w1: f32[32, 32], %w2: f32[32, 32], %m2: f32[32, 32]) {
  %t1 = transpose(%w1) : f32[32, 32]
  %h = matmul(%x, %t1) : f32[64, 32]
  %y = matmul(%h, %w2) : f32[64, 32]
  %ht = transpose(%h) : f32[32, 64]
  %g2 = matmul(%ht, %y) : f32[32, 32]
  %wt = transpose(%w2) : f32[32, 32]
  %gh = matmul(%y, %wt) : f32[64, 32]
  %xt = transpose(%x) : f32[32, 64]
  %g1 = matmul(%xt, %gh) : f32[32, 32]
  %n2 = add(%m2, %g2) : f32[32, 32]
  %v2 = add(%w2, %n2) : f32[32, 32]
  %v1 = add(%w1, %g1) : f32[32, 32]
  return %y, %v1, %v2, %n2
  update %w1 := output 1
  update %w2 := output 2
  update %m2 := output 3
}""")
DATA = {"x": "[d, _]", "w1": "[_, _]", "w2": "[_, _]", "m2": "[_, _]", "v1": "[_, _]", "v2": "[_, _]", "n2": "[_, _]"}
SHARDED = {"x": "[d, _]", **dict.fromkeys(("w1", "w2", "m2", "v1", "v2", "n2"), "[d, _]")}


def named(graph: Graph) -> dict[str, str | None]:
    return dict(zip((value.name for value in graph.values), graph_roles(graph)))


def test_roles_follow_from_what_a_value_is_made_of_and_for() -> None:
    roles = named(STEP)
    assert {name for name, role in roles.items() if role == "weight"} == {"w1", "t1", "w2", "wt"}
    assert {name for name, role in roles.items() if role == "gradient"} == {"g1", "g2", "n2", "v1", "v2", "m2"}
    assert [roles[name] for name in ("x", "h", "y", "gh")] == [None] * 4


def test_without_updates_nothing_has_a_role() -> None:
    assert set(graph_roles(replace(STEP, updates=()))) == {None}


@pytest.mark.parametrize("given", [DATA, SHARDED], ids=["data", "sharded"])
def test_copies_have_the_role_of_their_value(given: dict[str, str], lowered: Callable[..., Program]) -> None:
    program = lowered(STEP, "d=4", given)
    by_value = graph_roles(STEP)
    roles = program_roles(program, STEP)
    assert program.collectives
    for local, role in zip(program.values, roles):
        if local.origin is not None:
            assert role == by_value[local.origin]
    assert roles == program_roles(program)


def test_the_objective_counts_what_shows(lowered: Callable[..., Program]) -> None:
    program = lowered(STEP, "d=4", SHARDED)
    hardware = H100.with_overlap(Overlap(weight=50, gradient=10))
    cost = program_cost(program, hardware)
    assert {item.role for item in cost.collectives} >= {"weight", "gradient"}
    shown = sum(-(-item.ps * {"weight": 50, "gradient": 10, None: 100}[item.role] // 100) for item in cost.collectives)
    assert cost.objective == cost.compute + shown < cost.total
    assert cost.hidden == cost.communication - shown
    plain = program_cost(program, H100.with_overlap(None))
    assert (plain.objective, plain.hidden) == (plain.total, 0)
    assert plain.total == cost.total


# -- schedules ------------------------------------------------------------------------------------------


def op(ps: int, reads: tuple[int, ...], *makes: int) -> Task:
    return Task(COMPUTE, ps, reads, makes)


def collective(ps: int, read: int, made: int) -> Task:
    return Task(COMMUNICATION, ps, (read,), (made,))


def test_a_chain_hides_nothing() -> None:
    found = schedule([op(5, (0,), 1), collective(7, 1, 2), op(3, (2,), 3)])
    assert (found.total, found.compute, found.communication) == (15, 8, 7)
    assert (found.exposed, found.hidden) == (7, 0)


def test_a_gradient_hides_behind_the_rest_of_the_backward_pass() -> None:
    tasks = [op(5, (0,), 1), collective(4, 1, 2), op(5, (0,), 3), op(1, (2,), 4)]
    found = schedule(tasks)
    assert (found.total, found.exposed, found.hidden) == (11, 0, 4)


def test_what_follows_waits() -> None:
    assert schedule([op(5, (0,), 1), collective(9, 1, 2), op(5, (0,), 3), op(1, (2,), 4)]).exposed == 4


def test_a_weight_is_gathered_while_a_gradient_is_still_made() -> None:
    """In the program a reduction stands before the gather; it waits for its operand, so the gather overtakes."""
    tasks = [op(10, (0,), 1), collective(3, 1, 2), collective(6, 9, 3), op(10, (3,), 4)]
    assert schedule(tasks).exposed == 0
    assert schedule(tasks, ahead=0).exposed == 9
    assert [span.start for span in schedule(tasks).spans] == [0, 10, 0, 10]


def test_what_takes_no_time_waits_for_no_stream() -> None:
    tasks = [op(0, (0,), 1), collective(4, 1, 2), op(3, (0,), 3), op(0, (2,), 4), op(2, (4,), 5)]
    found = schedule(tasks)
    assert found.total == 6
    assert found.spans[3][2:] == (4, 4)


def test_nothing_to_do() -> None:
    assert schedule([]).total == 0


@pytest.mark.parametrize("late", [op(1, (1,), 2), collective(1, 1, 2)])
def test_what_can_never_start_is_an_error(late: Task) -> None:
    with pytest.raises(GraphError, match="only after it"):
        schedule([late, op(1, (2,), 1)])


@pytest.mark.parametrize("seed", range(40))
def test_any_schedule_is_sound(seed: int, random_program: Callable[[int], tuple[Graph, Program]]) -> None:
    graph, program = random_program(seed)
    found, cost = simulate(program, H100, graph), program_cost(program, H100, graph)
    assert (found.compute, found.communication) == (cost.compute, cost.communication)
    assert max(found.compute, found.communication) <= found.total <= cost.total
    assert 0 <= found.exposed <= found.communication
    made: dict[int, int] = {}
    for span in found.spans:
        instr = program.instrs[span.task]
        made.update(dict.fromkeys(instr.results, span.end))
    for span in found.spans:
        reads = program.instrs[span.task].as_node().inputs
        assert span.start >= max((made.get(value, 0) for value in reads), default=0)
    for stream in (COMPUTE, COMMUNICATION):
        spans = sorted(found.stream(stream), key=lambda span: span.start)
        assert all(a.end <= b.start for a, b in pairwise(spans))
    order = [span.start for span in found.stream(COMPUTE)]
    assert order == sorted(order)
