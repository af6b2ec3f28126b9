"""Which collectives can hide, what that is worth, and when things happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardwright import DeviceMesh, Graph, Program
from shardwright.cost import H100, Overlap, Timeline, graph_roles, program_cost, program_roles, simulate
from shardwright.cost.comm import sent_cost
from shardwright.ir.program import Event

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
    assert {name for name, role in roles.items() if role == "gradient"} == {"g1", "g2", "m2"}
    assert {name for name, role in roles.items() if role == "renewed"} == {"n2", "v1", "v2"}
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
    shown = sum(
        -(-item.ps * {"weight": 50, "gradient": 10, "renewed": 100, None: 100}[item.role] // 100)
        for item in cost.collectives
    )
    assert cost.objective == cost.compute + shown < cost.total
    assert cost.hidden == cost.communication - shown
    plain = program_cost(program, H100.with_overlap(None))
    assert (plain.objective, plain.hidden) == (plain.total, 0)
    assert plain.total == cost.total


# -- schedules ------------------------------------------------------------------------------------------

R, S, W = "run", "start", "wait"


@pytest.fixture
def two(lowered: Callable[..., Program]) -> Callable[..., Timeline]:
    """Two ops and, after the first, an all_reduce; the second op reads its result or not."""

    def make(reads: bool, ops: int, *events: tuple[str, int], contention: int = 0) -> Timeline:
        text = """graph f(%x: f32[64, 512], %w: f32[512, 64]) {
          %y = matmul(%x, %w) : f32[64, 64]
          %z = tanh(READ) : f32[64, 64]
          return %y, %z
        }""".replace("READ", "%y" if reads else "%w")
        text = text if reads else text.replace("%z = tanh(%w) : f32[64, 64]", "%z = tanh(%w) : f32[512, 64]")
        program = lowered(Graph.parse(text), "d=4", {"x": "[_, d]", "w": "[d, _]", "y": "[_, _]"})
        kinds = [instr.op for instr in program.instrs]
        assert kinds == ["matmul", "all_reduce", "tanh"]
        order = tuple(Event(kind, (n,)) for kind, n in events)
        machine = replace(H100, contention=contention)
        return simulate(replace(program, order=order), machine, times=[ops, SENT, ops])

    return make


SENT = sent_cost("all_reduce", DeviceMesh("d=4").axes, 64 * 64 * 4 * 2 * 3 // 4, H100)


def test_in_turn_nothing_hides(two: Callable[..., Timeline]) -> None:
    found = two(True, 5)
    assert (found.total, found.compute, found.communication) == (10 + SENT, 10, SENT)
    assert (found.exposed, found.hidden) == (SENT, 0)


def test_what_is_waited_for_late_hides(two: Callable[..., Timeline]) -> None:
    order = ((R, 0), (S, 1), (R, 2), (W, 1))
    assert two(False, SENT, *order).exposed == 0
    assert two(False, SENT // 3, *order).exposed == SENT - SENT // 3
    assert [span.start for span in two(False, SENT, *order).spans] == [0, SENT, SENT]
    assert two(False, SENT, (R, 0), (S, 1), (W, 1), (R, 2)).exposed == SENT


def test_compute_is_slower_beside_communication(two: Callable[..., Timeline]) -> None:
    """By what the hardware says, and only while something is under way; what it costs shows."""
    order = ((R, 0), (S, 1), (R, 2), (W, 1))
    ops = 2 * SENT
    for percent in (0, 25, 100):
        found = two(False, ops, *order, contention=percent)
        assert found.compute == 2 * ops
        done = SENT * 100 // (100 + percent)
        assert found.total == ops + SENT + ops - done
        assert found.exposed == SENT - done
    assert two(False, ops, (R, 0), (S, 1), (W, 1), (R, 2), contention=100).total == 2 * ops + SENT
    assert two(False, SENT // 4, *order, contention=100).total == SENT // 4 + SENT  # it is done before the link


def test_one_link_sends_one_thing_at_a_time(lowered: Callable[..., Program]) -> None:
    """Two axes inside a node share its link; a network beside it does not."""
    text = """graph f(%x: f32[64, 64], %y: f32[64, 64]) {
      %a = tanh(%x) : f32[64, 64]
      %b = tanh(%y) : f32[64, 64]
      return %a, %b
    }"""
    shardings = {"x": "[p, _]", "y": "[q, _]", "a": "[_, _]", "b": "[_, _]"}
    found = {}
    for mesh in ("p=2, q=4", "p=8, q=8"):
        program = lowered(Graph.parse(text), mesh, shardings)
        starts = [n for n, instr in enumerate(program.instrs) if instr.is_collective]
        local = [n for n in range(len(program.instrs)) if n not in starts]
        assert len(starts) == 2
        events = [*((R, n) for n in local), *((S, n) for n in starts), *((W, n) for n in starts)]
        program = replace(program, order=tuple(Event(kind, (n,)) for kind, n in events))
        found[mesh] = simulate(program, H100, times=[0] * 4)
    within, between = found.values()
    assert within.total == within.communication
    assert between.total < between.communication
    assert {span.stream for span in between.spans} == {"compute", "node", "network"}
