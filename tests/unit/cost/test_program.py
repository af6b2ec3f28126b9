"""A whole Program: every collective once, and the peak that running it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardwright import DeviceMesh, Graph, Program
from shardwright.cost import H100, RESIDENT, communication_cost, compute_cost, program_cost, program_memory
from shardwright.cost.program import instr_cost
from shardwright.propagation import rule_of

MLP = Graph.parse("""graph mlp(%x: f32[16, 32], %w1: f32[32, 64], %w2: f32[64, 32]) {
  %h = matmul(%x, %w1) : f32[16, 64]
  %a = gelu(%h) : f32[16, 64]
  %y = matmul(%a, %w2) : f32[16, 32]
  return %y
}""")
FORK = Graph.parse("""graph fork(%x: f32[16, 32], %w: f32[32, 32]) {
  %h = matmul(%x, %w) : f32[16, 32]
  %a = exp(%h) : f32[16, 32]
  %b = tanh(%h) : f32[16, 32]
  %c = add(%a, %b) : f32[16, 32]
  return %c
}""")
UNEVEN = Graph.parse("""graph uneven(%x: f32[10, 7], %y: f32[10, 7]) {
  %a = add(%x, %y) : f32[10, 7]
  %b = exp(%a) : f32[10, 7]
  %c = add(%b, %x) : f32[10, 7]
  return %c, %a
}""")
VIEWS = Graph.parse("""graph views(%x: f32[8, 6], %w: f32[8, 4]) {
  %h = exp(%x) : f32[8, 6]
  %t = transpose(%h) : f32[6, 8]
  %u = transpose(%t) : f32[8, 6]
  %y = matmul(%t, %w) : f32[6, 4]
  %z = exp(%y) : f32[6, 4]
  return %z, %u
}""")


def with_views(graph: Graph) -> Graph:
    nodes = tuple(replace(n, views=((0, 0),)) if n.op == "transpose" else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


CASES = [
    (MLP, {"x": "[dp, _]", "w1": "[_, tp]", "w2": "[tp, _]"}),
    (MLP, {"x": "[dp, tp]"}),
    (MLP, {"w1": "[tp, _]", "w2": "[dp, tp]"}),
    (MLP, {}),
    (FORK, {"x": "[_, tp]", "w": "[tp, _]"}),
    (FORK, {"x": "[_, tp]", "w": "[tp, _]", "c": "[dp, tp]"}),
    (UNEVEN, {"x": "[tp, _]"}),
    (UNEVEN, {"x": "[tp, dp]", "y": "[_, tp]"}),
    (with_views(VIEWS), {"x": "[dp, tp]"}),
    (with_views(VIEWS), {}),
]
IDS = [f"{graph.name}-{i}" for i, (graph, _) in enumerate(CASES)]


@pytest.mark.parametrize(("graph", "given"), CASES, ids=IDS)
def test_each_collective_is_counted_once(
    graph: Graph, given: dict[str, str], lowered: Callable[..., Program], executed: Callable[..., object]
) -> None:
    program = lowered(graph, "dp=2, tp=4", given)
    cost = program_cost(program, H100)
    assert [tuple(item[:3]) for item in cost.collectives] == [tuple(item) for item in program.collectives]
    assert sum(item.bytes for item in cost.collectives) == program.bytes
    assert sum(item.ps for item in cost.collectives) == cost.communication
    assert cost.total == cost.compute + cost.communication
    assert executed(program).collectives == program.collectives  # type: ignore[attr-defined]


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("mesh", ["dp=2, tp=4", "dp=1, tp=3"])
@pytest.mark.parametrize(("graph", "given"), CASES, ids=IDS)
def test_the_peak_is_what_running_reports(
    graph: Graph,
    given: dict[str, str],
    mesh: str,
    views: bool,
    lowered: Callable[..., Program],
    executed: Callable[..., object],
) -> None:
    program = lowered(graph, mesh, given, views=views)
    assert program_memory(program, RESIDENT) == executed(program).peak_bytes  # type: ignore[attr-defined]


def test_views_lower_the_peak(lowered: Callable[..., Program]) -> None:
    graph = Graph.parse("graph f(%x: f32[8, 6]) { %t = transpose(%x) : f32[6, 8] return %t }")
    plain, shown = (lowered(with_views(graph), "d=2", {}, views=views) for views in (False, True))
    plain = replace(plain, instrs=tuple(replace(instr, views=()) for instr in plain.instrs))
    assert (program_memory(plain), program_memory(shown)) == (2 * 8 * 6 * 4, 8 * 6 * 4)


def test_a_shared_reshard_is_paid_once(lowered: Callable[..., Program]) -> None:
    """Both readers of a pending value need it finished: one all_reduce, not one for each."""
    program = lowered(FORK, "dp=2, tp=4", {"x": "[_, tp]", "w": "[tp, _]"})
    assert [item.kind for item in program.collectives] == ["all_reduce"]
    tp = DeviceMesh("dp=2, tp=4").axes[1:]
    once = communication_cost("all_reduce", tp, 16 * 32 * 4, H100)
    assert program_cost(program, H100).communication == once


def test_counting_twice_would_be_noticed(lowered: Callable[..., Program]) -> None:
    """The check above bites: a Program that repeats its collective costs more."""
    program = lowered(FORK, "dp=2, tp=4", {"x": "[_, tp]", "w": "[tp, _]"})
    twice = replace(program, instrs=tuple(i for instr in program.instrs for i in [instr] * (1 + instr.is_collective)))
    assert program_cost(twice, H100).communication == 2 * program_cost(program, H100).communication
    assert program_cost(twice, H100).compute == program_cost(program, H100).compute


def test_compute_is_that_of_the_nodes(lowered: Callable[..., Program]) -> None:
    program = lowered(MLP, "dp=2, tp=4", {"x": "[dp, _]", "w1": "[_, tp]", "w2": "[tp, _]"})
    dp, tp = program.mesh.axes
    splits = [((dp,), (), (tp,)), ((dp,), (tp,)), ((dp,), (tp,), ())]
    expected = 0
    for node, axes, kind in zip(MLP.nodes, splits, ("matmul", "pointwise", "matmul")):
        view = rule_of(MLP, node)
        assert view is not None
        expected += compute_cost(view.rule, kind, axes, "f32", H100)
    assert program_cost(program, H100).compute == expected


def test_local_steps_of_a_reshard_are_free(lowered: Callable[..., Program]) -> None:
    graph = Graph.parse("graph f(%x: f32[8, 8]) { %y = exp(%x) : f32[8, 8] return %y }")
    program = lowered(graph, "d=4", {"x": "[_, _]", "y": "[d, _]"})
    slices = [instr for instr in program.instrs if instr.node is None]
    assert slices
    assert all(instr_cost(program, instr, H100) == 0 for instr in slices)
    assert program_cost(program, H100).communication == 0


def test_an_op_without_a_record_costs_its_bytes(lowered: Callable[..., Program]) -> None:
    graph = Graph.parse("graph f(%x: f32[1000, 1000]) { %y = no.such_op(%x) : f32[1000, 1000] return %y }")
    program = lowered(graph, "d=4", {})
    add = Graph.parse("graph f(%x: f32[1000, 1000]) { %y = exp(%x) : f32[1000, 1000] return %y }")
    plain = replace(H100, classes=())
    assert program_cost(program, plain) == program_cost(lowered(add, "d=4", {}), plain)
    assert program_cost(program, H100, graph) == program_cost(program, H100)


def test_an_empty_program_costs_nothing(lowered: Callable[..., Program]) -> None:
    program = lowered(Graph.parse("graph f(%x: f32[4]) { return %x }"), "d=2", {})
    assert program_cost(program, H100).total == 0
    assert program_memory(program) == 16
