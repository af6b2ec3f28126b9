"""Dims to factors and back."""

from __future__ import annotations

import pytest

from shardwright.propagation.project import FactorAxes, Projection, TensorFactors, project, unproject
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import DimSpec, ShardingSpec

MESH = DeviceMesh("x=2, y=4, z=3")


def factors(rule: str, spec: str | None) -> TensorFactors:
    """The first operand of a rule in terms of factors."""
    bound = OpShardingRule.parse(rule)
    return project(bound.operands[0], spec and ShardingSpec.parse(spec, MESH), bound.sizes)


def cells(rule: str, spec: str) -> list[str]:
    """Per factor its axes, and after a bar what overflows."""
    found = factors(rule, spec).factors
    words = []
    for f in sorted(found):
        overflow = f" | {DimSpec(found[f].overflow)}" if found[f].overflow else ""
        words.append(f"{DimSpec(found[f].axes)}{overflow}")
    return words


@pytest.mark.parametrize(
    ("rule", "spec", "expected"),
    [
        ("a b -> a | a=4 b=4", "[x, y]", ["x", "y"]),
        ("a -> a | a=5", "[x+y]", ["x+y"]),
        ("(a b) -> a | a=2 b=4", "[x+y]", ["x", "y"]),
        ("(a b) -> a | a=4 b=4", "[x]", ["x", "_"]),
        ("(a b) -> a | a=2 b=4", "[y]", ["y:(1)2", "y:(2)2"]),
        ("(a b) -> a | a=4 b=4", "[x+y]", ["x+y:(1)2", "y:(2)2"]),
        ("(a b c) -> a | a=2 b=1 c=2", "[y]", ["y:(1)2", "_", "y:(2)2"]),
        ("(a b) -> a | a=3 b=4", "[x]", ["_ | x", "_"]),
        ("(a b) -> a | a=6 b=4", "[y]", ["y:(1)2 | y:(2)2", "_"]),
        ("(a b) -> a | a=1 b=4", "[y]", ["_", "y"]),
        ("(a b) -> a | a=0 b=4", "[y]", ["y", "_"]),
        ("(a b) -> a | a=2 b=5", "[x+y+z]", ["x", "y+z"]),
    ],
)
def test_a_dim_is_filled_from_its_major_factor(rule: str, spec: str, expected: list[str]) -> None:
    assert cells(rule, spec) == expected


def test_nothing_said_leaves_everything_open() -> None:
    found = factors("(a b) c -> a | a=2 b=2 c=2", None)
    assert [(f.axes, f.closed) for f in found.factors.values()] == [((), False)] * 3


def test_a_factor_is_closed_as_its_dim_is() -> None:
    found = factors("(a b) c -> a | a=2 b=2 c=2", "[x, ?]").factors
    assert [found[f].closed for f in range(3)] == [True, True, False]


def test_factors_after_an_overflow_are_closed() -> None:
    found = factors("(a b) -> a | a=3 b=4", "[x+?]").factors
    assert [found[f].closed for f in range(2)] == [False, True]


def test_only_the_last_factor_of_a_dim_is_minor_most() -> None:
    found = factors("(a b) c -> a | a=2 b=2 c=2", None).factors
    assert [found[f].minor_most for f in range(3)] == [False, True, True]


def test_replicated_and_pending_axes_are_banned() -> None:
    found = factors("a -> a | a=4", "[x] // max(y) ~ z")
    assert [str(axis) for axis in found.banned] == ["z", "y"]


# -- back -----------------------------------------------------------------------------------------------


def back(rule: str, cells: dict[int, FactorAxes]) -> str:
    bound = OpShardingRule.parse(rule)
    return str(unproject(TensorFactors(cells), bound.operands[0], bound.sizes, MESH))


X, Y, Z = MESH.axes
Y1, Y2 = Y.split(2)


@pytest.mark.parametrize(
    ("cells", "spec"),
    [
        ({0: FactorAxes((X,)), 1: FactorAxes((Y,))}, "[x+y+?]"),
        ({0: FactorAxes((Y1,)), 1: FactorAxes((Y2,))}, "[y+?]"),
        ({0: FactorAxes(()), 1: FactorAxes((Y,))}, "[?]"),
        ({0: FactorAxes((X,), closed=True), 1: FactorAxes(())}, "[x]"),
        ({0: FactorAxes((), (Z,)), 1: FactorAxes((Y,))}, "[z+?]"),
    ],
)
def test_a_minor_factor_counts_under_a_fully_split_one(cells: dict[int, FactorAxes], spec: str) -> None:
    assert back("(a b) -> a | a=2 b=4", cells) == spec


@pytest.mark.parametrize(
    ("rule", "spec"),
    [
        ("(a b) -> a | a=2 b=4", "[y+?]"),
        ("(a b) -> a | a=6 b=4", "[y+x]"),
        ("(a b) -> a | a=3 b=4", "[x+?] // max(z)"),
        ("(a b c) d -> a | a=2 b=3 c=4 d=5", "[x+z+y, ?] "),
        ("1 a -> a | a=4", "[x, y] ~ z"),
        ("a -> a | a=4", "[z]"),
    ],
)
def test_there_and_back(rule: str, spec: str) -> None:
    bound = OpShardingRule.parse(rule)
    given = ShardingSpec.parse(spec, MESH)
    assert unproject(project(bound.operands[0], given, bound.sizes), bound.operands[0], bound.sizes, MESH) == given


def test_priorities_are_no_concern_of_factors() -> None:
    bound = OpShardingRule.parse("a -> a | a=4")
    given = ShardingSpec.parse("[x!1]", MESH)
    assert Projection.of(bound, [given, None]).specs(MESH) == [
        ShardingSpec.parse("[x]", MESH),
        ShardingSpec.parse("[?]", MESH),
    ]


def test_table_names_tensors_and_hides_ones() -> None:
    rule = OpShardingRule.parse("1 (a b) -> a | a=3 b=4")
    specs = [ShardingSpec.parse("[_, x]", MESH), ShardingSpec.parse("[?]", MESH)]
    assert Projection.of(rule, specs).table() == ("           a=3  b=4\noperand 0  x    _\nresult 0   ?    -")
