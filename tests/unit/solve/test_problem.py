"""From JSON to a problem: rules, classes, strategic nodes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardwright import DeviceMesh, Graph, GraphError, GraphExtractor, MeshError, P, ShardingSpec, SpecError
from shardwright.cost import H100, Link
from shardwright.propagation import rule_of
from shardwright.solve import Problem

MESH = DeviceMesh("dp=2, tp=4")
Build = Callable[..., Graph]


def test_a_graph_its_json_and_its_text_are_the_same_problem(transformer_block: Build) -> None:
    graph = transformer_block()
    extractor = GraphExtractor(graph)
    problems = [Problem.parse(program, MESH) for program in (graph, extractor.extract(), extractor.to_json())]
    assert problems[0].graph == problems[1].graph == problems[2].graph
    assert problems[0].rules == problems[1].rules == problems[2].rules
    assert problems[0].strategic == problems[1].strategic == (0, 1, 2, 4, 5, 6, 8, 9)


def test_rules_from_json_are_those_of_the_book(transformer_block: Build) -> None:
    graph = transformer_block()
    problem = Problem.parse(GraphExtractor(graph).to_json(), MESH)
    for node in problem.graph.nodes:
        assert problem.rule_of(problem.graph, node) == rule_of(graph, node)


def test_an_op_that_only_the_json_knows_has_its_rule() -> None:
    graph = Graph.parse("graph f(%x: f32[8, 4]) { %y = their.op(%x) : f32[8, 4] return %y }")
    record = GraphExtractor(graph).extract()
    assert record["nodes"][0]["rule"] is None
    record["nodes"][0]["rule"] = "i j -> i j | i=8 j=4"
    assert str(Problem.parse(record, MESH).rules[0]) == "i j -> i j | i=8 j=4"


def test_an_unknown_op_is_no_obstacle_and_is_told() -> None:
    graph = Graph.parse("graph f(%x: f32[8]) { %y = no.such_op(%x) : f32[8] return %y }")
    problem = Problem.parse(graph, MESH)
    assert problem.rules == (None,)
    assert problem.strategic == ()
    assert problem.warnings == ("[GraphExtractor] WARNING: Failed to get sharding_rule for node 0",)


def test_arithmetic_is_strategic_and_else_the_dearest_of_its_part() -> None:
    graph = Graph.parse("""graph f(%x: f32[64, 64], %p: f32[8], %q: f32[2048, 2048]) {
      %a = exp(%p) : f32[8]
      %y = matmul(%x, %x) : f32[64, 64]
      %z = exp(%y) : f32[64, 64]
      %b = exp(%q) : f32[2048, 2048]
      %c = reduce_sum(%b) {axis=1} : f32[2048]
      return %a, %z, %c
    }""")
    assert Problem.parse(graph, MESH).strategic == (0, 1, 3)


def test_convolutions_are_strategic() -> None:
    graph = Graph.parse("""graph f(%x: f32[8, 32, 32, 16], %w: f32[3, 3, 16, 64]) {
      %y = convolution(%x, %w) {dims="b01f,01io->b01f"} : f32[8, 30, 30, 64]
      %z = exp(%y) : f32[8, 30, 30, 64]
      return %z
    }""")
    assert Problem.parse(graph, MESH).strategic == (0,)


def test_given_by_value_or_name_in_any_notation(matmul: Build) -> None:
    graph = matmul(8, 16, 4)
    spec = ShardingSpec(MESH, ["dp", None])
    for given in ({0: spec}, {"x": spec}, {"x": P("dp")}, {"x": "[dp, _]"}):
        assert Problem.parse(graph, MESH, given).given == {0: spec}


def test_a_shard_is_held_by_its_bytes(matmul: Build) -> None:
    problem = Problem.parse(matmul(8, 16, 4), MESH)
    assert problem.held(0, ShardingSpec(MESH, ["dp", "tp"])) == 8 * 16 * 4 // 8


@pytest.mark.parametrize("given", [{7: "[dp, _]"}, {-1: "[dp, _]"}, {"z": "[dp, _]"}], ids=str)
def test_a_sharding_for_no_value_is_refused(given: dict[int, str], matmul: Build) -> None:
    with pytest.raises(SpecError, match="no value"):
        Problem.parse(matmul(8, 16, 4), MESH, given)


def test_a_sharding_for_no_output_is_refused(matmul: Build) -> None:
    with pytest.raises(SpecError, match="output 1"):
        Problem.parse(matmul(8, 16, 4), MESH, out_specs={1: "[dp, _]"})


def test_a_sharding_of_another_rank_or_mesh_is_refused(matmul: Build) -> None:
    with pytest.raises(SpecError, match="dims"):
        Problem.parse(matmul(8, 16, 4), MESH, {"x": "[dp, _, _]"})
    with pytest.raises(SpecError, match="mesh"):
        Problem.parse(matmul(8, 16, 4), MESH, {"x": ShardingSpec(DeviceMesh("dp=4"), ["dp", None])})


def test_a_link_of_an_unknown_axis_is_refused(matmul: Build) -> None:
    with pytest.raises(MeshError, match="no axis 'ep'"):
        Problem.parse(matmul(8, 16, 4), MESH, hardware=H100.with_link("ep", Link(0.0, 1)))


@pytest.mark.parametrize("text", ["{", '{"format": "x"}', "[]"])
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(GraphError):
        Problem.parse(text, MESH)
