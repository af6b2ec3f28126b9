"""FactorSharding: one choice, from which all specs of an op follow."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.errors import MeshError, RuleError, SpecError
from shardwright.spec.factors import FactorSharding
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule

MESH = DeviceMesh("dp=2, tp=4")
MATMUL = "m k, k n -> m n | m=8 k=16 n=4"


def choose(text: str, axes: dict[str, Any]) -> FactorSharding:
    return FactorSharding.of(OpShardingRule.parse(text), MESH, axes)


@pytest.mark.parametrize(
    ("text", "axes", "operands", "results"),
    [
        (MATMUL, {}, ["[_, _]", "[_, _]"], ["[_, _]"]),
        (MATMUL, {"m": "dp"}, ["[dp, _]", "[_, _]"], ["[dp, _]"]),
        (MATMUL, {"k": "tp", "n": "dp"}, ["[_, tp]", "[tp, dp]"], ["[_, dp] // tp"]),
        (MATMUL, {"k": "tp+dp"}, ["[_, tp+dp]", "[tp+dp, _]"], ["[_, _] // dp, tp"]),
        (MATMUL, {"k": ("tp:(1)2", "tp:(2)2")}, ["[_, tp]", "[tp, _]"], ["[_, _] // tp"]),
        ("i k -> i, k ; k: max | i=4 k=4", {"i": "dp", "k": "tp"}, ["[dp, tp]"], ["[dp] // max(tp)", "[tp] // dp"]),
        ("i k -> i ; k: whole | i=4 k=4", {"i": "dp"}, ["[dp, _]"], ["[dp]"]),
        ("(a b) -> a b | a=2 b=4", {"a": "dp", "b": "tp"}, ["[dp+tp]"], ["[dp, tp]"]),
        ("(a b) -> a b | a=4 b=4", {"a": "tp"}, ["[tp]"], ["[tp, _]"]),
        ("(a b) -> a b | a=2 b=2", {"a": "tp:(1)2", "b": "tp:(2)2"}, ["[tp]"], ["[tp:(1)2, tp:(2)2]"]),
        ("k l -> () | k=4 l=4", {"k": "tp:(1)2", "l": "tp:(2)2"}, ["[tp:(1)2, tp:(2)2]"], ["[] // tp"]),
        ("1 j -> j | j=4", {"j": "tp"}, ["[_, tp]"], ["[tp]"]),
    ],
)
def test_specs(text: str, axes: dict[str, Any], operands: list[str], results: list[str]) -> None:
    chosen = choose(text, axes)
    assert [str(spec) for spec in chosen.operand_specs] == operands
    assert [str(spec) for spec in chosen.result_specs] == results


def test_a_minor_factor_is_not_cut_under_one_that_is_not_fully_split() -> None:
    with pytest.raises(SpecError, match="'b' is split under 'a', which is not all split"):
        choose("(a b) -> a b | a=4 b=4", {"a": "dp", "b": "tp"})
    assert str(choose("(a b) -> a b | a=2 b=4", {"a": "dp", "b": "tp"}).operand_specs[0]) == "[dp+tp]"


@pytest.mark.parametrize(
    ("text", "axes", "printed"),
    [
        (MATMUL, {"m": "dp", "k": "tp"}, "m/dp k/tp, k/tp n -> m/dp n // tp"),
        ("i k -> i, i k | i=4 k=4", {"k": "tp"}, "i k/tp -> i // tp, i k/tp"),
        ("i k -> (), k | i=4 k=4", {"i": "dp", "k": "tp"}, "i/dp k/tp -> () // dp+tp, k/tp // dp"),
        ("i -> i n ; n: new | i=4 n=4", {"n": "tp"}, "i -> i n/tp ; n: new"),
    ],
)
def test_text_and_back(text: str, axes: dict[str, Any], printed: str) -> None:
    chosen = choose(text, axes)
    assert str(chosen) == printed
    assert FactorSharding.parse(printed, MESH, chosen.rule) == chosen


@pytest.mark.parametrize("axes", [{"m": "dp", "k": "dp"}, {"m": "tp", "n": "tp:(2)2"}, {"m": "dp+dp"}])
def test_an_axis_is_given_to_one_factor(axes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="is given to two factors"):
        choose(MATMUL, axes)


def test_unknown_names() -> None:
    with pytest.raises(RuleError, match="the rule has no factor 'z'"):
        choose(MATMUL, {"z": "dp"})
    with pytest.raises(MeshError, match="the mesh has no axis 'pp'"):
        choose(MATMUL, {"m": "pp"})
