"""How axes spread along the factors of one op."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardwright.propagation.engine import propagate_sharding
from shardwright.propagation.factors import Direction, Strategy, aggressive, basic
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.op_record import Flow
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

MESH = DeviceMesh("x=2, y=4")
MATMUL = "m k, k n -> m n | m=8 k=16 n=4"
ADD = "i j, i j -> i j | i=8 j=8"
BOTH = [basic, aggressive]


def spread(
    rule: str,
    specs: Sequence[str | None],
    strategy: Strategy = aggressive,
    *,
    flow: Flow = Flow.OTHER,
    ways: Sequence[Direction] | None = None,
    conservative: bool = False,
) -> list[str]:
    given = [None if text is None else ShardingSpec.parse(text, MESH) for text in specs]
    bound = OpShardingRule.parse(rule)
    found = propagate_sharding(bound, given, flow=flow, strategy=strategy, directions=ways, conservative=conservative)
    return [str(spec) if spec is not None else "-" for spec in found]


# -- along one factor -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (MATMUL, ["[x, y]", None, None], ["[x, y]", "[y+?, ?]", "[x+?, ?]"]),
        (MATMUL, [None, None, "[x, y]"], ["[x+?, ?]", "[?, y+?]", "[x, y]"]),
        (MATMUL, [None, "[y, _]", None], ["[?, y+?]", "[y, _]", "-"]),
        (MATMUL, ["[x+?, ?]", None, "[x+y+?, ?]"], ["[x+y+?, ?]", "-", "[x+y+?, ?]"]),
        (MATMUL, [None, None, None], ["-", "-", "-"]),
        (ADD, ["[x, ?]", "[?, y+?]", None], ["[x, y+?]", "[x+?, y+?]", "[x+?, y+?]"]),
        ("(a b) -> a b | a=2 b=4", ["[x+y]", None], ["[x+y]", "[x+?, y+?]"]),
        ("(a b) -> a b | a=2 b=4", [None, "[x, y]"], ["[x+y+?]", "[x, y]"]),
        ("(a b) -> a b | a=2 b=4", ["[y]", None], ["[y]", "[y:(1)2+?, y:(2)2+?]"]),
        ("i -> i, i | i=4", [None, "[x]", None], ["[x+?]", "[x]", "[x+?]"]),
        ("i -> i | i=3", ["[y]", None], ["[y]", "[y+?]"]),
    ],
)
def test_axes_spread(strategy: Strategy, rule: str, before: list[str | None], after: list[str]) -> None:
    assert spread(rule, before, strategy) == after


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize(
    ("target", "why"),
    [("[_]", "closed"), ("[?] ~ x", "kept replicated"), ("[?] // x", "pending"), ("[y]", "closed with others")],
)
def test_axes_do_not_spread_where_they_may_not(strategy: Strategy, target: str, why: str) -> None:
    assert spread("i -> i | i=8", ["[x]", target], strategy) == ["[x]", target], why


def test_a_dim_without_that_factor_gets_nothing() -> None:
    assert spread("i -> () | i=8", ["[x]", None]) == ["[x]", "-"]


@pytest.mark.parametrize("strategy", BOTH)
def test_a_blocked_factor_does_not_spread(strategy: Strategy) -> None:
    assert spread("i j -> i j ; i: blocked | i=4 j=4", ["[x, y]", None], strategy) == ["[x, y]", "[?, y+?]"]


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (Direction.NONE, ["[x+?]", "[x+y:(1)2+?]"]),
        (Direction.FORWARD, ["[x+?]", "[x+y:(1)2+?]"]),
        (Direction.BACKWARD, ["[x+y:(1)2+?]", "[x+y:(1)2+?]"]),
        (Direction.BOTH, ["[x+y:(1)2+?]", "[x+y:(1)2+?]"]),
    ],
)
def test_directions(way: Direction, expected: list[str]) -> None:
    assert spread("i -> i | i=8", ["[x+?]", "[x+y:(1)2+?]"], ways=[way]) == expected


def test_a_major_factor_takes_only_what_divides_it() -> None:
    """y splits i unevenly where i stands alone; as the major factor of a dim it takes the half that fits."""
    assert spread("i j -> (i j) | i=6 j=4", ["[y, _]", None]) == ["[y, _]", "[y:(1)2+?]"]


def test_conservatively_no_axis_is_cut() -> None:
    rule = "i j -> (i j) | i=6 j=4"
    assert spread(rule, ["[y, _]", None], conservative=True) == ["[y, _]", "-"]


# -- disagreement ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["[x+?]", "[y+?]", None], ["[x+?]", "[y+?]", "-"]),
        (["[x+y]", "[x]", None], ["[x+y]", "[x]", "[x+y+?]"]),
        (["[y:(1)2+x]", "[y]", None], ["[y:(1)2+x]", "[y]", "[y:(1)2+?]"]),
        (["[y]", "[y:(1)2+x]", None], ["[y]", "[y:(1)2+x]", "[y:(1)2+?]"]),
    ],
)
def test_the_common_start_spreads(strategy: Strategy, before: list[str | None], after: list[str]) -> None:
    rule = "i, i -> i | i=8"
    if strategy is basic and before[1] == "[x]":
        after = [*before[:2], "[x+?]"]  # the closed operand objects to y for all
    assert spread(rule, before, strategy) == after


# -- conflicts between factors --------------------------------------------------------------------------


def test_basic_asks_every_tensor() -> None:
    assert spread(MATMUL, ["[x, _]", "[_, x]", None], basic) == ["[x, _]", "[_, x]", "-"]


def test_aggressive_lets_the_larger_tensor_win() -> None:
    assert spread(MATMUL, ["[x, _]", "[_, x]", None]) == ["[x, _]", "[_, x]", "[x+?, ?]"]
    wide = "m k, k n -> m n | m=4 k=16 n=8"
    assert spread(wide, ["[x, _]", "[_, x]", None]) == ["[x, _]", "[_, x]", "[?, x+?]"]


def test_between_equals_the_first_tensor_wins() -> None:
    square = "m k, k n -> m n | m=4 k=4 n=4"
    assert spread(square, ["[x, _]", "[_, x]", None]) == ["[x, _]", "[_, x]", "[x+?, ?]"]


def test_in_pointwise_ops_the_factor_that_is_split_more_wins() -> None:
    before = ["[x, ?]", "[?, x+y]", None]
    assert spread(ADD, before, flow=Flow.POINTWISE)[2] == "[?, x+y+?]"
    assert spread(ADD, before)[2] == "[x+?, ?]"


def test_a_conflict_leaves_the_part_that_is_free() -> None:
    assert spread("i j -> i j | i=8 j=8", ["[y, _]", "[?, y:(2)2]"]) == ["[y, _]", "[y:(1)2+?, y:(2)2]"]


def test_pointwise_operands_take_no_more_than_the_result() -> None:
    """Otherwise both operands would have to be gathered instead of one."""
    before = ["[x, _]", "[?, ?]", "[_, _]"]
    assert spread(ADD, before, flow=Flow.POINTWISE) == before
    assert spread(ADD, before) == ["[x, _]", "[x+?, ?]", "[_, _]"]


# -- meshes ---------------------------------------------------------------------------------------------


def test_nothing_spreads_between_meshes() -> None:
    rule = OpShardingRule.parse("i, i -> i | i=4")
    one = ShardingSpec(MESH, ["x"])
    other = ShardingSpec(DeviceMesh("x=2"), ["?"])
    assert propagate_sharding(rule, [one, other, None]) == (one, other, None)


def test_a_mesh_without_axes_gives_way() -> None:
    rule = OpShardingRule.parse("i -> i | i=4")
    found = propagate_sharding(rule, [ShardingSpec(MESH, ["x"]), ShardingSpec(DeviceMesh({}), ["?"])])
    assert repr(found[1]) == "<[x+?] on x=2, y=4>"
