"""The complete pass: what it decides for one op, for pending values, and for state."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import PropagationError
from shardwright.ir.graph import Graph
from shardwright.lower import lower
from shardwright.propagation import rule_of, run_hierarchical_propagation_pass
from shardwright.propagation.choices import legal_axes, legal_spec
from shardwright.propagation.complete import Complete, complete, work_of
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

MESH = DeviceMesh("dp=2, tp=4")


def completed(text: str, specs: dict[str, str], outputs: dict[int, str] | None = None) -> Complete:
    graph = Graph.parse(text)
    said = {graph.by_name[name]: ShardingSpec.parse(spec, MESH) for name, spec in specs.items()}
    outs = {i: ShardingSpec.parse(spec, MESH) for i, spec in (outputs or {}).items()}
    found = run_hierarchical_propagation_pass(graph, said, rule_of, out_specs=outs)
    return complete(graph, MESH, found.specs, rule_of, pinned=said, out_specs=outs)


def kinds(done: Complete) -> list[str]:
    return [collective.kind for collective in lower(done).collectives]


CHAIN = """graph f(%x: f32[8, 16], %w: f32[16, 8], %b: f32[8]) {
  %h = matmul(%x, %w) : f32[8, 8]
  %y = multiply(%h, %b) : f32[8, 8]
  %z = add(%y, %y) : f32[8, 8]
  return %z
}"""


def test_a_pending_sum_is_carried_through_linear_ops() -> None:
    done = completed(CHAIN, {"x": "[_, tp]", "w": "[tp, _]"})
    assert [str(d.results[0]) for d in done.decisions] == ["[_, _] // tp"] * 3
    assert kinds(done) == ["all_reduce"]


def test_it_is_reduced_before_one_that_is_not() -> None:
    done = completed(CHAIN.replace("multiply(%h, %b)", "maximum(%h, %b)"), {"x": "[_, tp]", "w": "[tp, _]"})
    assert str(done.decisions[1].operands[0]) == "[_, _]"
    assert kinds(done) == ["all_reduce"]


def test_it_is_scattered_where_the_reader_is_split() -> None:
    assert kinds(completed(CHAIN, {"x": "[_, tp]", "w": "[tp, _]"}, {0: "[tp, _]"})) == ["reduce_scatter"]


def test_axes_that_a_factor_cannot_keep_split_another() -> None:
    """Sorting along a split dim: the axis moves to the other dim rather than being gathered."""
    text = "graph f(%x: f32[8, 16]) { %y = sort(%x) {axis=0} : f32[8, 16] return %y }"
    done = completed(text, {"x": "[tp, _]"})
    assert str(done.decisions[0].operands[0]) == "[_, tp]"
    assert kinds(done) == ["all_to_all"]


def test_an_unknown_op_runs_replicated_with_a_note() -> None:
    text = "graph f(%x: f32[8, 16]) { %y = mystery(%x) : f32[8, 16] return %y }"
    done = completed(text, {"x": "[tp, _]"})
    assert done.notes == ("node 0: mystery has no rule and runs replicated",)
    assert kinds(done) == ["all_gather"]


def test_the_next_state_lies_as_the_input_does() -> None:
    text = """graph step(%w: f32[8, 8], %g: f32[8, 8]) {
      %n = subtract(%w, %g) : f32[8, 8]
      return %n
      update %w := output 0
    }"""
    done = completed(text, {"w": "[tp, _]", "g": "[_, tp]"})
    assert str(done.outputs[0]) == "[tp, _]"
    with pytest.raises(PropagationError, match="update of %w is wanted in another sharding"):
        completed(text, {"w": "[tp, _]"}, {0: "[_, tp]"})


def test_what_does_not_divide_is_cut_back() -> None:
    six = DeviceMesh("x=6, y=2")
    rule = OpShardingRule.parse("(a b) -> a b | a=4 b=3")
    axes = legal_axes(rule, [(six.axis("x"),), (six.axis("y"),)])
    assert [tuple(map(str, given)) for given in axes] == [("x:(1)2",), ()]
    spec = ShardingSpec(six, [("x:(1)2", "y")])
    assert str(legal_spec(spec, (7,))) == "[_]"
    assert str(legal_spec(spec, (4,))) == "[x:(1)2+y]"
    assert str(legal_spec(ShardingSpec(six, ["x"]), (7,))) == "[x]", "whole axes may leave uneven shards"


def test_copies_are_made_once() -> None:
    text = """graph f(%x: f32[8, 8]) {
      %a = sort(%x) {axis=1} : f32[8, 8]
      %b = cumsum(%x) {axis=1} : f32[8, 8]
      return %a, %b
    }"""
    assert kinds(completed(text, {"x": "[_, tp]"})) == ["all_to_all"]


# -- what is asked of outputs, and what an op has to compute -------------------------------------------


def bytes_of(function: object, mesh: str, shapes: list[tuple[int, int]], ins: tuple[str, ...], out: str) -> int:
    arrays = [sw.ShapeDtype(shape, np.float32) for shape in shapes]
    mapped = sw.shard_map(function, mesh, in_specs=ins, out_specs=out)
    return sum(collective.bytes for collective in mapped.plan(*arrays).collectives)


def written(y: np.ndarray, u: np.ndarray) -> np.ndarray:
    z = y.copy()
    z[:, :512] = u
    return z


def joined(y: np.ndarray, u: np.ndarray) -> np.ndarray:
    return np.concatenate([y, u], axis=1)


@pytest.mark.parametrize("mesh", ["d=8", "d=3", "d=2, e=3"])
@pytest.mark.parametrize("function", [written, joined])
def test_a_replicated_output_is_counted_before_its_maker_is_split(function: object, mesh: str) -> None:
    """Only the part that is written has to be gathered; to split the op's work would mean to gather all of it."""
    rows = 4096 if mesh == "d=8" else 4608
    axes = "d+e" if "e" in mesh else "d"
    sent = bytes_of(function, mesh, [(rows, rows), (rows, 512)], ("[_, _]", f"[_, {axes}]"), "[_, _]")
    ways = sw.DeviceMesh(mesh).size
    even = -(-512 // ways) * ways
    assert sent <= rows * even * 4 * (ways - 1) // ways * 1.01


def test_factors_that_never_meet_do_not_multiply() -> None:
    product = OpShardingRule.parse("m k, k n -> m n | m=8 k=16 n=4")
    assert work_of(product) == 8 * 16 * 4
    write = OpShardingRule.parse("i j, i k -> i j ; j: whole ; k: whole | i=8 j=16 k=4")
    assert work_of(write) == 8 * 16
    attention = OpShardingRule.parse("q e, k e, k d -> q d ; k: whole ; e: whole | q=8 e=2 k=16 d=4")
    assert work_of(attention) >= 8 * 16 * 4
    total = OpShardingRule.parse("i j -> i | i=8 j=16")
    assert work_of(total) == 8 * 16
