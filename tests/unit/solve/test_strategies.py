"""The ways to split one op, and what they are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardwright import DeviceMesh, FactorSharding, Graph, OpShardingRule
from shardwright.cost import H100, compute_cost
from shardwright.solve import PlanInfeasible, Problem
from shardwright.solve.simple.strategies import describe, strategies
from shardwright.solve.strategies import MOST

MESH = DeviceMesh("dp=2, tp=4")
RULE = OpShardingRule.parse("m k, k n -> m n | m=64 k=64 n=64")
Build = Callable[..., Graph]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "Replicated"),
        ({"m": "dp+tp"}, "Data Parallel (Split M)"),
        ({"m": "dp"}, "Data Parallel (Split M over dp)"),
        ({"n": "dp+tp"}, "Model Parallel (Split N)"),
        ({"k": "dp+tp"}, "Model Parallel (Split K)"),
        ({"m": "dp", "n": "tp"}, "Data Parallel (Split M over dp) + Model Parallel (Split N over tp)"),
        ({"k": "dp", "m": "tp"}, "Data Parallel (Split M over tp) + Model Parallel (Split K over dp)"),
    ],
)
def test_names(given: dict[str, str], text: str) -> None:
    assert describe(RULE, MESH, FactorSharding.of(RULE, MESH, given).axes)[1] == text


def test_with_one_axis_the_axis_is_not_named() -> None:
    mesh = DeviceMesh("d=8")
    assert describe(RULE, mesh, FactorSharding.of(RULE, mesh, {"m": "d"}).axes)[1] == "Data Parallel (Split M)"


def test_every_axis_goes_to_every_factor(matmul: Build) -> None:
    found = strategies(Problem.parse(matmul(64, 64, 64), MESH), 0)
    assert len(found) == 16  # each of two axes: m, k, n or none
    assert len({strategy.axes for strategy in found}) == 16
    assert found[0].text == "Replicated"
    assert sum(strategy.is_data for strategy in found) == 3
    assert sum(strategy.is_model for strategy in found) == 12


def test_batch_dims_are_candidates() -> None:
    graph = Graph.parse(
        "graph f(%x: f32[8, 16, 32], %w: f32[8, 32, 16]) { %y = matmul(%x, %w) : f32[8, 16, 16] return %y }"
    )
    found = strategies(Problem.parse(graph, "d=8"), 0)
    assert len(found) == 5
    batch = next(s for s in found if s.operands[0].dims[0].axes and s.operands[1].dims[0].axes)
    assert batch.is_data


def test_a_strategy_knows_what_it_needs_leaves_and_costs(matmul: Build) -> None:
    problem = Problem.parse(matmul(64, 32, 16), MESH)
    for strategy in strategies(problem, 0):
        split = FactorSharding(problem.rules[0], MESH, strategy.axes)  # type: ignore[arg-type]
        assert strategy.operands == split.operand_specs
        assert strategy.results == split.result_specs
        assert strategy.time == compute_cost(split.rule, "matmul", strategy.axes, "f32", H100)


def test_whole_factors_and_single_devices_are_not_split() -> None:
    graph = Graph.parse("graph f(%x: f32[1, 16]) { %y = sort(%x) {axis=1} : f32[1, 16] return %y }")
    assert [s.text for s in strategies(Problem.parse(graph, MESH), 0)] == ["Replicated"]
    graph = Graph.parse("graph f(%x: f32[8, 8]) { %y = matmul(%x, %x) : f32[8, 8] return %y }")
    assert [s.text for s in strategies(Problem.parse(graph, "d=1"), 0)] == ["Replicated"]


def test_many_axes_do_not_explode() -> None:
    graph = Graph.parse(
        "graph f(%x: f32[8, 8, 16, 32], %w: f32[8, 8, 32, 16]) { %y = matmul(%x, %w) : f32[8, 8, 16, 16] return %y }"
    )
    assert 1 < len(strategies(Problem.parse(graph, "a=2, b=2, c=2, d=2"), 0)) <= MOST


def test_what_the_user_gave_is_among_the_ways(matmul: Build) -> None:
    problem = Problem.parse(matmul(64, 64, 64), MESH, {"x": "[tp+dp, _]", "w": "[_, tp:(1)2]"})
    found = {str(strategy.operands[0]) for strategy in strategies(problem, 0)}
    assert "[tp+dp, _]" in found


def test_ways_that_do_not_fit_are_refused(matmul: Build) -> None:
    graph = matmul(1024, 1024, 1024)  # 4 MiB each
    roomy, tight = (strategies(Problem.parse(graph, MESH, hardware=H100.with_memory(m)), 0) for m in (2**30, 2**22))
    assert len(roomy) == 16
    assert 0 < len(tight) < 16
    assert all(strategy.bytes <= 2**22 for strategy in tight)
    assert all(strategy.used for strategy in tight)


def test_an_op_that_fits_nowhere_is_an_error(matmul: Build) -> None:
    problem = Problem.parse(matmul(1024, 1024, 1024), MESH, hardware=H100.with_memory(2**20))
    with pytest.raises(PlanInfeasible, match="node 0 fits on no device") as caught:
        strategies(problem, 0)
    assert "1048576 bytes (H100 SXM)" in str(caught.value)
