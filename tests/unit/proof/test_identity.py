"""Graph and Program over prime fields: equal ones are never told apart, unequal ones always."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import embedding, mlp, moved, ops, plan, reduced, softmax, update
from program_faults import with_attr, with_instr, with_spec
from random_programs import random_case

from shardwright.errors import VerifyError
from shardwright.ir.graph import Graph, GraphBuilder
from shardwright.ir.program import Program
from shardwright.proof import check_identity, check_structure
from shardwright.rules.registry import forget, rule
from shardwright.spec.sharding import ShardingSpec


def megatron() -> tuple[Graph, Program]:
    graph = mlp()
    return graph, plan(graph, "dp=2, tp=4", {"x": "[dp, _]", "w1": "[_, tp]", "w2": "[tp, _]"})


def complaint(graph: Graph, program: Program) -> VerifyError:
    with pytest.raises(VerifyError) as error:
        check_identity(graph, program)
    return error.value


def find(program: Program, op: str) -> int:
    return next(n for n, instr in enumerate(program.instrs) if instr.op == op)


def test_an_equal_program_comes_back() -> None:
    graph, program = megatron()
    assert check_identity(graph, program) is program


@pytest.mark.parametrize("seed", range(50))
def test_no_false_alarm_over_random_programs(seed: int) -> None:
    graph, program = random_case(seed)
    check_identity(graph, check_structure(program), seed=seed)


def test_pending_maxima_pass_through_what_rises_and_what_shifts() -> None:
    """The rule book lets them, so the field must too: exp, then a sum with something finished, then a negative."""
    b = GraphBuilder("rising")
    x, c = b.input((6, 10), name="x"), b.input((6,), name="c")
    m = b.op("reduce_max", [x], [(6,)], names=["m"], attrs={"axis": (1,), "keepdims": False})
    e = b.op("exp", [m], [(6,)], names=["e"])
    s = b.op("add", [e, c], [(6,)], names=["s"])
    n = b.op("negative", [s], [(6,)], names=["n"])
    graph = b.finish([n])
    program = plan(graph, "x=2, y=3", {"x": "[x, y]", "c": "[x]"})
    assert ops(program)[-1] == "all_reduce", "the maximum is taken at the very end"
    assert program.instrs[-1].attr("reduction") == "min"
    for seed in range(20):
        check_identity(graph, program, seed=seed)


def test_a_maximum_over_an_empty_shard() -> None:
    for op in ("reduce_max", "reduce_min", "reduce_prod", "reduce_sum", "reduce_any", "reduce_all"):
        graph = reduced(op, (3, 5), then="negative" if op in ("reduce_max", "reduce_min") else "abs")
        program = plan(graph, "x=2, y=4", {"x": "[_, x+y]"})
        sizes = {program.values[program.inputs[0]].local_shape(position)[1] for position in program.mesh}
        assert 0 in sizes
        check_identity(graph, program)


def test_softmax_whose_rows_are_split() -> None:
    graph = softmax(5, 11)
    for mesh, given in (("x=3", "[_, x]"), ("x=2, y=3", "[x, y]"), ("dp=2, tp=4", "[_, tp+dp]")):
        check_identity(graph, plan(graph, mesh, {"x": given}))


def test_no_dims_and_no_elements() -> None:
    b = GraphBuilder("scalars")
    x, y = b.input((), name="x"), b.input((0, 3), name="y")
    s = b.op("reduce_sum", [y], [(3,)], attrs={"axis": (0,), "keepdims": False})
    graph = b.finish([b.op("add", [s, x], [(3,)]), b.op("exp", [x], [()])])
    check_identity(graph, plan(graph, "x=2", {"y": "[x, _]"}))


def test_an_input_may_be_pending() -> None:
    graph = moved((4, 6))
    for kind in ("x", "max(x)", "prod(x)", "avg(x)"):
        program = plan(graph, "x=2", {}, pinned={"x": f"[_, _] // {kind}"})
        check_identity(graph, check_structure(program))


# -- what is said of a difference -----------------------------------------------------------------------


def test_the_first_wrong_instruction_is_named() -> None:
    graph, program = megatron()
    n = find(program, "all_reduce")
    error = complaint(graph, with_attr(program, n, reduction="max"))
    rows = dict(error.rows)
    assert error.fact == "output 0 differs from %out of the graph"
    assert rows["instruction"].startswith("3: %y_1 = all_reduce(%y)")
    assert rows["cause"] == "operand 0 of node 3 subtract"
    assert rows["wrong first"].startswith("%y_1[0, 0] on device 0: ")
    assert "on device 0" in rows["element"]
    assert "modulo 1048573" in rows["element"]


def test_replicas_must_agree() -> None:
    """The first device is right, another one is not."""
    graph = moved((4, 6))
    program = plan(graph, "x=2", {}, pinned={"x": "[_, _]", "a": "[_, _] // x", "c": "[_, _]"})
    n = find(program, "all_reduce")
    program = with_instr(program, n, replace(program.instrs[n], op="copy", attrs=(), axes=(), bytes=0))
    assert "on device 1: " in dict(complaint(graph, program).rows)["element"]


def test_a_wrong_form_is_found_although_its_result_names_no_origin() -> None:
    graph = embedding()
    program = plan(graph, "dp=2, tp=4", {"table": "[tp, _]", "index": "[dp]"})
    error = complaint(graph, with_attr(program, find(program, "core.offset"), size=8))
    assert "core.take" in dict(error.rows)["instruction"]


def test_another_value_is_returned() -> None:
    graph, program = megatron()
    error = complaint(graph, replace(program, outputs=(program.inputs[0],)))
    assert dict(error.rows)["wrong first"].startswith("no instruction")


def test_a_shard_of_the_wrong_shape() -> None:
    graph, program = megatron()
    h = program.instrs[0].results[0]
    wrong = with_spec(program, h, ShardingSpec(program.mesh, ["dp", None]))
    error = complaint(graph, wrong)
    assert "has another shape" in error.fact
    assert dict(error.rows)["instruction"].startswith("0: %h = matmul")


def test_a_program_that_cannot_be_run() -> None:
    graph, program = megatron()
    wrong = with_instr(program, 0, replace(program.instrs[0], operands=program.instrs[0].operands[::-1]))
    error = complaint(graph, wrong)
    assert error.fact.startswith("cannot be run: ValueError: ")
    assert dict(error.rows)["instruction"].startswith("0: %h = matmul")


def test_ends_must_be_those_of_the_graph() -> None:
    graph, program = megatron()
    assert complaint(graph, replace(program, outputs=())).fact == "the graph has 1 outputs, the program 0"
    turned = replace(program, inputs=program.inputs[::-1])
    assert complaint(graph, turned).fact == "graph and program differ in the type of inputs 0"
    graph = update()
    program = plan(graph, "x=2", {"w": "[x, _]"})
    assert complaint(graph, replace(program, updates=())).fact == "graph and program update different inputs"


# -- ops that are not in the book -----------------------------------------------------------------------


def unknown() -> Graph:
    b = GraphBuilder("unknown")
    x = b.input((4, 6), name="x")
    y = b.op("mystery", [x], [(4, 6)], names=["y"], attrs={"n": 3})
    return b.finish([b.op("sin", [y], [(4, 6)], names=["out"])])


def test_an_unknown_op_is_right_only_on_whole_tensors() -> None:
    graph = unknown()
    program = plan(graph, "x=2", {"x": "[x, _]"})
    assert "all_gather" in ops(program)
    check_identity(graph, program)
    split = ShardingSpec(program.mesh, ["x", None])
    for local in program.values:
        program = with_spec(program, local.id, split)
    n = find(program, "all_gather")
    program = with_instr(program, n, replace(program.instrs[n], op="copy", attrs=(), axes=(), bytes=0))
    error = complaint(graph, program)
    assert "mystery" in dict(error.rows)["instruction"]
    assert error.help is not None
    assert error.help.startswith("nothing is known of what mystery computes")


@pytest.mark.parametrize(
    ("meaning", "text"),
    [
        ("pointwise", "... -> ..."),
        ("pointwise rising", "... -> ... ; P(max) -> P(max)"),
        ("pointwise falling", "... -> ... ; P(max) -> P(min)"),
        ("pointwise linear", "... -> ... ; P(sum) -> P(sum)"),
    ],
)
def test_a_record_says_what_an_op_means(meaning: str, text: str) -> None:
    rule("mystery", text, meaning=meaning)
    try:
        graph = unknown()
        program = plan(graph, "x=2, y=3", {"x": "[x, y]"})
        assert "all_gather" not in ops(program)
        check_identity(graph, program)
        b = GraphBuilder("pending")
        x = b.input((4, 6), name="x")
        kind = "reduce_sum" if "linear" in meaning else "reduce_max"
        m = b.op(kind, [x], [(4,)], attrs={"axis": (1,), "keepdims": False})
        graph = b.finish([b.op("mystery", [m], [(4,)], names=["out"])])
        program = plan(graph, "x=2, y=3", {"x": "[x, y]"})
        check_identity(graph, program)
        late = ops(program).index("all_reduce") > ops(program).index("mystery")
        assert late == (meaning != "pointwise")
    finally:
        forget("mystery")


def test_a_contraction_is_known_by_its_rule() -> None:
    rule("bilinear", "b i, b j, i j k -> b k", meaning="contract")
    try:
        b = GraphBuilder("bilinear")
        x, y, w = b.input((4, 5), name="x"), b.input((4, 6), name="y"), b.input((5, 6, 3), name="w")
        graph = b.finish([b.op("bilinear", [x, y, w], [(4, 3)], names=["out"])])
        program = plan(graph, "x=2, y=3", {"x": "[x, y]"})
        assert "all_reduce" in ops(program)
        check_identity(graph, program)
        n = find(program, "all_reduce")
        assert complaint(graph, with_attr(program, n, reduction="max"))
    finally:
        forget("bilinear")
