"""What users read when something is wrong, word for word.

Each case raises one error; its text is ``golden/messages/<case>.txt``.  ``UPDATE_GOLDEN=1`` writes the files
anew: read the difference before keeping it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import ShardwrightError, near_misses
from shardwright.ir.graph import Graph, GraphBuilder
from shardwright.propagation.engine import run_hierarchical_propagation_pass
from shardwright.rules import lookup, sharding_rule
from shardwright.rules import rule as write_rule
from shardwright.spec.collective import collective_bytes
from shardwright.spec.factors import FactorSharding
from shardwright.spec.interop import to_placements
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.pending import check_pending
from shardwright.spec.rule import OpShardingRule, RulePattern
from shardwright.spec.sharding import P, ShardingSpec, compute_global_shape

GOLDEN = Path(__file__).parent / "golden" / "messages"
MESH = DeviceMesh("dp=2, tp=4")
MATMUL = RulePattern.parse("m k, k n -> m n")
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def spec(text: str) -> ShardingSpec:
    return ShardingSpec.parse(text, MESH)


def rule(name: str, text: str) -> None:
    """A rule that does not parse."""
    CASES[f"rule_{name}"] = lambda: RulePattern.parse(text)


def graph(name: str, *lines: str) -> None:
    """A graph that does not parse, between its first and last line."""
    text = "\n".join(["graph g(%x: f32[8]) {", *(f"  {line}" for line in lines), "}"])
    CASES[f"graph_{name}"] = lambda: Graph.parse(text)


# -- meshes ---------------------------------------------------------------------------------------------


@case
def mesh_size_0() -> None:
    DeviceMesh("dp=2, tp=0")


@case
def mesh_repeated_name() -> None:
    DeviceMesh("dp=2, tp=4, dp=2")


@case
def mesh_repeated_name_without_text() -> None:
    DeviceMesh((2, 4), ("dp", "dp"))


@case
def mesh_bad_name() -> None:
    DeviceMesh({"d-p": 2})


@case
def mesh_bad_text() -> None:
    DeviceMesh("dp=2, tp")


@case
def mesh_unreadable() -> None:
    DeviceMesh([2, 4])


@case
def mesh_device_ids() -> None:
    DeviceMesh("dp=2, tp=2; devices=[0, 1, 1, 3]")


@case
def mesh_sub_axis_does_not_divide() -> None:
    spec("[dp, tp:(1)3]")


# -- specs ----------------------------------------------------------------------------------------------


@case
def spec_unknown_axis() -> None:
    spec("[dp, pt]")


@case
def spec_unknown_axis_without_text() -> None:
    P("data").bind(MESH, 2)


@case
def spec_axis_twice() -> None:
    spec("[dp, tp+dp]")


@case
def spec_axis_twice_pending() -> None:
    spec("[tp:(1)2, _] // tp")


@case
def spec_p_too_long() -> None:
    ShardingSpec.of(P("dp", None, "tp"), MESH, 2)


@case
def spec_rank_against_shape() -> None:
    spec("[dp, _]").local_shape((16, 32, 8), 0)


@case
def spec_rank_against_tensor() -> None:
    ShardingSpec.of("[dp]", MESH, 2)


@case
def spec_of_another_mesh() -> None:
    ShardingSpec.of(spec("[dp]"), DeviceMesh("dp=4, tp=2"), 1)


@case
def spec_unknown_partial_kind() -> None:
    spec("[dp, _] // mex(tp)")


@case
def spec_bad_text() -> None:
    spec("[dp, tp // dp")


@case
def spec_bad_entry() -> None:
    ShardingSpec(MESH, [0])


@case
def spec_sub_axis_as_placement() -> None:
    to_placements(spec("[tp:(1)2]"), object())


@case
def pending_average_of_whole_numbers() -> None:
    check_pending(spec("[_] // avg(tp)"), "i64")


@case
def pending_sum_and_product() -> None:
    check_pending(spec("[_] // tp, prod(dp)"), "f32")


@case
def global_shape_of_too_few_devices() -> None:
    compute_global_shape([(2,), (2,)], spec("[tp]"))


@case
def unknown_collective() -> None:
    collective_bytes("all_gater", 2, 8)


# -- rules ----------------------------------------------------------------------------------------------

rule("missing_arrow", "m k, k n")
rule("wrong_arrow", "m k, k n => m n")
rule("unknown_word", "i k -> i ; k: wole")
rule("unknown_word_far_off", "i k -> i ; k: average")
rule("factor_on_the_right_only", "m k, k j -> m n")
rule("factor_twice_in_a_tensor", "m k, k k -> m")
rule("unknown_factor_in_a_note", "batch k -> batch ; bach: whole")
rule("fixed_number", "b 3 -> b")
rule("ellipsis_on_the_right_only", "k -> ... k")
rule("unclosed_group", "(a b -> a b")
rule("no_such_result", "i k -> i ; k@1: max")
rule("transfer_of_wrong_length", "i, i -> i ; P(sum) -> P(sum) ; i: whole")


@case
def rule_two_sizes() -> None:
    MATMUL.bind([(8, 16), (15, 4)])


@case
def rule_two_sizes_batch() -> None:
    RulePattern.parse("... k -> ...").bind([(3, 4)], [(5,)])


@case
def rule_rank() -> None:
    MATMUL.bind([(8, 16), (16,)])


@case
def rule_operands() -> None:
    MATMUL.bind([(8, 16)])


@case
def rule_unsized() -> None:
    RulePattern.parse("(a b) c -> a b c").bind([(6, 2)])


@case
def rule_batch_does_not_broadcast() -> None:
    RulePattern.parse("... k, ... k -> ...").bind([(2, 4), (3, 4)])


@case
def rule_without_sizes() -> None:
    OpShardingRule.parse("m k -> m | m=4")


@case
def factors_share_an_axis() -> None:
    FactorSharding.of(MATMUL.bind([(8, 16), (16, 4)]), MESH, {"m": "dp", "k": "dp"})


@case
def factors_disagree_on_axes() -> None:
    FactorSharding.parse("m k/dp, k/tp n -> m n", MESH, MATMUL.bind([(8, 16), (16, 4)]))


# -- the rule book --------------------------------------------------------------------------------------


@case
def op_unknown() -> None:
    lookup("matmull")


@case
def op_unknown_far_off() -> None:
    lookup("%%%")


@case
def op_written_twice() -> None:
    write_rule("matmul", "m k, k n -> m n")


@case
def op_with_a_wrong_rule() -> None:
    write_rule("mine", "m k, k j -> m n")


@case
def op_with_a_misspelt_argument() -> None:
    write_rule("mine", "m k, k n -> m n", meening="contract")


@case
def op_on_shapes_that_do_not_fit() -> None:
    sharding_rule("take_along_axis", [(4, 9), (5, 2)], [(4, 2)], {"axis": 1})


@case
def op_along_a_dim_that_is_not_there() -> None:
    sharding_rule("concatenate", [(4, 2), (4, 3)], [(4, 5)], {"axis": 2})


# -- graphs ---------------------------------------------------------------------------------------------

graph("undefined_value", "%y = neg(%z) : f32[8]", "return %y")
graph("defined_twice", "%x = neg(%x) : f32[8]", "return %x")
graph("no_type", "%y = neg(%x)", "return %y")
graph("bad_attribute", "%y = neg(%x) {axis=%x} : f32[8]", "return %y")
graph("unknown_dtype", "%y = neg(%x) : float[8]", "return %y")
graph("update_changes_type", "%y = sum(%x) : f32[]", "return %y", "update %x := output 0")


@case
def graph_ends_early() -> None:
    Graph.parse("graph g(%x: f32[8]) {\n  %y = neg(%x")


@case
def graph_reads_a_value_too_early() -> None:
    b = GraphBuilder()
    b.op("neg", [1], [(8,)], names=["early"])
    b.op("neg", [0], [(8,)], names=["late"])
    b.finish([0])


@case
def graph_attribute_without_text() -> None:
    GraphBuilder().op("neg", [], [(8,)], attrs={"mode": object()})


@case
def propagation_rank() -> None:
    graph = Graph.parse("graph g(%x: f32[8]) { return %x }")
    run_hierarchical_propagation_pass(graph, {0: spec("[dp, _]")}, lambda *_: None)


# -- the comparison -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CASES))
def test_message(name: str) -> None:
    with pytest.raises(ShardwrightError) as caught:
        CASES[name]()
    found = f"{type(caught.value).__name__}: {caught.value}\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.exists(), "no golden file; run with UPDATE_GOLDEN=1"
    assert found == path.read_text(encoding="utf-8")


def test_every_golden_file_has_its_case() -> None:
    mistakes = set(GOLDEN.glob("mistake_*.txt"))  # of test_mistakes.py
    assert {path.stem for path in {*GOLDEN.glob("*.txt")} - mistakes} <= set(CASES)


# -- the formatter --------------------------------------------------------------------------------------


def test_the_parts_of_a_message() -> None:
    error = ShardwrightError("fact", text="some text", at=5, rows=[("op", "mm"), ("given", "a\nb")], help="do this")
    assert str(error) == ("fact\n    some text\n         ^\n  op     mm\n  given  a\n         b\n  help   do this")


def test_what_an_inner_caller_said_stands() -> None:
    error = ShardwrightError("fact", text="inner", rows=[("op", "inner")])
    error.place("outer", 3).add("op", "outer").add("at", "outer")
    assert (error.text, error.at, error.rows) == ("inner", None, [("op", "inner"), ("at", "outer")])


def test_near_misses() -> None:
    assert near_misses("matmull", ["add", "matmul"]) == "did you mean 'matmul'?"
    assert near_misses("axs", ["axis", "axes", "x"]) == "did you mean 'axis' or 'axes'?"
    assert near_misses("zzz", ["add", "matmul"]) is None
