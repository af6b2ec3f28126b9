"""Where axes come from."""

from __future__ import annotations

import pytest

from shardwright.ir.graph import Graph
from shardwright.propagation.engine import Propagated, run_hierarchical_propagation_pass
from shardwright.propagation.provenance import Link, Provenance
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec
from strategies import rule_of

MESH = DeviceMesh("x=2, y=4")
X, Y = MESH.axes
MLP = Graph.parse(
    """graph mlp(%x: f32[8, 16], %w: f32[16, 32], %v: f32[32, 16]) {
  %h = matmul(%x, %w) : f32[8, 32]
  %r = neg(%h) : f32[8, 32]
  %o = matmul(%r, %v) : f32[8, 16]
  return %o
}"""
)


def spread(specs: dict[str, str], outs: dict[int, str] | None = None, groups: tuple[str, ...] = ()) -> Propagated:
    return run_hierarchical_propagation_pass(
        MLP,
        {MLP.by_name[name]: ShardingSpec.parse(text, MESH) for name, text in specs.items()},
        rule_of,
        out_specs={i: ShardingSpec.parse(text, MESH) for i, text in (outs or {}).items()},
        groups=[[MLP.by_name[name] for name in group.split()] for group in groups],
    )


@pytest.mark.parametrize(
    ("name", "dim", "why"),
    [
        ("x", 0, "x: from argument 0 (%x)"),
        ("x", 1, "dim 1 of %x is not cut"),
        ("h", 0, "x: from argument 0 (%x), through node 0 (matmul)"),
        ("h", 1, "y: from argument 1 (%w), through node 0 (matmul)"),
        ("v", 0, "y: from argument 1 (%w), through node 0 (matmul), node 1 (neg), node 2 (matmul)"),
    ],
)
def test_from_an_argument(name: str, dim: int, why: str) -> None:
    assert spread({"x": "[x, _]", "w": "[_, y]"}).why(name, dim) == why


def test_from_an_output() -> None:
    found = spread({}, {0: "[x, _]"})
    assert found.why("o", 0) == "x: from output 0"
    assert found.why("h", 0) == "x: from output 0, through node 2 (matmul), node 1 (neg)"


def test_from_a_value_in_the_middle() -> None:
    found = spread({"r": "[x, _]"})
    assert found.why("r", 0) == "x: from %r itself"
    assert found.why("x", 0) == "x: from %r itself, through node 1 (neg), node 0 (matmul)"


def test_each_axis_has_its_own_reason() -> None:
    found = spread({"x": "[x, ?]", "o": "[x+y, ?]"})
    assert found.why("h", 0) == (
        "x: from argument 0 (%x), through node 0 (matmul); y: from %o itself, through node 2 (matmul), node 1 (neg)"
    )


def test_through_a_group() -> None:
    found = spread({"x": "[x, _]"}, groups=("h r",))
    assert found.why("r", 0).startswith("x: from argument 0 (%x), through node 0 (matmul)")


def test_through_a_group_from_an_output() -> None:
    graph = Graph.parse("graph g(%a: f32[8], %b: f32[8]) { return %a }")
    said = {0: ShardingSpec.parse("[x]", MESH)}
    found = run_hierarchical_propagation_pass(graph, {}, rule_of, out_specs=said, groups=[[0, 1]])
    assert found.why("b", 0) == "x: from output 0"


def test_a_value_without_a_sharding() -> None:
    assert spread({}).why("h", 0) == "dim 0 of %h is not cut"


# -- the table ------------------------------------------------------------------------------------------


def test_the_first_link_that_touches_the_axis_counts() -> None:
    table = Provenance()
    table.add(1, 0, (X,), Link(0, 0, 1))
    table.add(1, 0, (X, Y), Link(5, 3, 0))
    table.add(1, 0, (), Link(7, 7, 7))
    assert table.find(1, 0, X.split(1)[1]) == Link(0, 0, 1)
    assert table.find(1, 0, Y) == Link(5, 3, 0)
    assert table.find(1, 1, X) is None


def test_a_path_ends_where_nothing_is_known() -> None:
    table = Provenance()
    table.add(2, 0, (X,), Link(1, 1, 1))
    table.add(1, 1, (X,), Link(None, 0, 0))
    assert table.path(2, 0, X) == (0, [1])


def test_a_path_does_not_run_in_circles() -> None:
    table = Provenance()
    table.add(0, 0, (X,), Link(0, 1, 0))
    table.add(1, 0, (X,), Link(0, 0, 0))
    assert table.path(0, 0, X)[1] == [0, 0]
