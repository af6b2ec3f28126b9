"""Rules as written, and bound to shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from shardwright.errors import RuleError
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.op_record import Call, OpRecord
from shardwright.spec.rule import Factor, OpShardingRule, RulePattern, factor_name

Shapes = Sequence[Sequence[int]]


def bind(
    text: str, operands: Shapes, results: Shapes | None = None, sizes: Mapping[str, int] | None = None
) -> OpShardingRule:
    return RulePattern.parse(text).bind(operands, results, sizes)


# -- sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "operands", "bound"),
    [
        ("m k, k n -> m n", [(8, 16), (16, 4)], "m k, k n -> m n | m=8 k=16 n=4"),
        ("... k -> ...", [(2, 3, 4)], "b0 b1 k -> b0 b1 | b0=2 b1=3 k=4"),
        ("... k -> ...", [(4,)], "k -> () | k=4"),
        ("..., ... -> ...", [(2, 3), (3,)], "b0 b1, b1 -> b0 b1 | b0=2 b1=3"),
        ("..., ... -> ...", [(2, 1), (1, 3)], "b0 1, 1 b1 -> b0 b1 | b0=2 b1=3"),
        ("..., ... -> ...", [(1,), (1,)], "b0, b0 -> b0 | b0=1"),
        ("... b0 -> ... b0", [(2, 3)], "bb0 b0 -> bb0 b0 | bb0=2 b0=3"),
        ("1 j -> j", [(1, 4)], "1 j -> j | j=4"),
        ("() -> ()", [()], "() -> ()"),
        ("a, (a b) -> b", [(2,), (6,)], "a, (a b) -> b | a=2 b=3"),
        ("(a b), a -> b", [(6,), (2,)], "(a b), a -> b | a=2 b=3"),
        ("i -> i", [(0,)], "i -> i | i=0"),
    ],
)
def test_bind(text: str, operands: Shapes, bound: str) -> None:
    rule = bind(text, operands)
    assert str(rule) == bound
    assert OpShardingRule.parse(bound) == rule


def test_sizes_from_results() -> None:
    assert str(bind("(a b) -> a b", [(6,)], [(2, 3)])) == "(a b) -> a b | a=2 b=3"


def test_sizes_as_told() -> None:
    assert bind("(a b) -> a b", [(6,)], sizes={"a": 2}).sizes == (2, 3)


def test_a_new_factor() -> None:
    rule = bind("i -> i n ; n: new", [(4,)], sizes={"n": 3})
    assert str(rule) == "i -> i n ; n: new | i=4 n=3"
    assert rule.new == {1}


@pytest.mark.parametrize("word", ["whole", "permuted", "blocked"])
def test_a_factor_that_is_not_split_may_change_size(word: str) -> None:
    assert bind(f"i -> i ; i: {word}", [(4,)], [(9,)]).sizes == (4,)


def test_shape_of() -> None:
    rule = bind("(a b) c -> c", [(6, 5)], sizes={"a": 2})
    assert [rule.shape_of(mapped) for mapped in rule.tensors] == [(6, 5), (5,)]


@pytest.mark.parametrize(
    ("text", "operands", "results", "sizes", "fact"),
    [
        ("m k, k n -> m n", [(8, 16), (15, 4)], None, {}, "'k' has two sizes: 16 .operand 0 dim 1. and 15 .operand 1"),
        ("m k -> m", [(8, 16)], [(9,)], {}, "'m' has two sizes: 8 .operand 0 dim 0. and 9 .result 0 dim 0"),
        ("m -> m", [(8,)], None, {"m": 4}, "'m' has two sizes: 4 .as told. and 8"),
        ("... k -> ... k", [(3, 4)], [(5, 4)], {}, "'b0' has two sizes: 3 .operand 0 dim 0. and 5 .result 0 dim 0"),
        (
            "..., ... -> ...",
            [(2,), (3,)],
            None,
            {},
            "batch dims do not broadcast: 2 .operand 0 dim 0. and 3 .operand 1 dim 0",
        ),
        ("m k -> m", [(8,)], None, {}, "operand 0 has 1 dims, the rule names 2"),
        ("... m k -> ...", [(8,)], None, {}, "operand 0 has 1 dims, the rule names 2"),
        ("m -> m", [(8,)], [()], {}, "result 0 has 0 dims, the rule names 1"),
        ("... -> ...", [(8,)], [(8, 1)], {}, "result 0 has 2 dims"),
        ("m -> m", [(8,), (8,)], None, {}, "the rule has 1 operands, the call 2"),
        ("m -> m", [(8,)], [(8,), (8,)], {}, "the rule has 1 results, the call 2"),
        ("1 -> ()", [(2,)], None, {}, "the rule says 1 where operand 0 dim 0 has 2"),
        ("(a b) -> a b", [(6,)], None, {}, "leaves a and b unsized"),
        ("(a b) -> a b", [(6,)], None, {"a": 4}, "cannot be divided by the 4 already known"),
        ("(a b) -> a b", [(6,)], [(2, 2)], {}, "the factors of .a b. make 4, operand 0 dim 0 has 6"),
        ("i -> i n ; n: new", [(4,)], None, {}, "factor 'n' appears on the right but on no input"),
    ],
)
def test_shapes_that_do_not_fit(
    text: str, operands: Shapes, results: Shapes | None, sizes: dict[str, int], fact: str
) -> None:
    with pytest.raises(RuleError, match=fact) as caught:
        bind(text, operands, results, sizes)
    assert caught.value.text == str(RulePattern.parse(text))


def test_a_text_without_sizes_is_no_bound_rule() -> None:
    with pytest.raises(RuleError, match="factor 'm' has no size"):
        OpShardingRule.parse("m -> m")


# -- what factors are -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reductions"),
    [
        ("i k -> i", (((1, "sum"),),)),
        ("i k -> i ; k: max", (((1, "max"),),)),
        ("i k -> i, k", (((1, "sum"),), ((0, "sum"),))),
        ("i k -> i, () ; k: max ; k@1: min", (((1, "max"),), ((0, "sum"), (1, "min")))),
        ("i k -> i k", ((),)),
        ("i k -> i ; k: whole", ((),)),
        ("i k -> i ; k: permuted", ((),)),
        ("i k -> i ; k: form(scan)", ((),)),
        ("i k -> i ; k: blocked", (((1, "sum"),),)),
    ],
)
def test_reductions(text: str, reductions: object) -> None:
    assert bind(text, [(4, 6)]).reductions == reductions


def test_a_broadcast_dim_is_not_reduced() -> None:
    assert bind("1 j -> j", [(1, 4)]).reductions == ((),)


def test_notes_on_batch_dims() -> None:
    rule = bind("... k -> k ; ...: max", [(2, 3, 4)])
    assert rule.reductions == (((0, "max"), (1, "max")),)


def test_pass_through() -> None:
    rule = bind("i j k l -> i j l ; j: whole ; l: permuted", [(2, 2, 2, 2)])
    assert rule.pass_through == (True, False, False, False)


def test_flags() -> None:
    rule = bind("i -> i ; i: whole blocked form(core.scan)", [(4,)])
    assert rule.factors == (Factor("i", 4, whole=True, blocked=True, form="core.scan"),)


def test_kinds_that_differ_by_result_print_one_by_one() -> None:
    rule = bind("k -> (), () ; k@1: max", [(4,)])
    assert str(rule) == "k -> (), () ; k@0: sum ; k@1: max | k=4"
    assert OpShardingRule.parse(str(rule)) == rule


def test_transfers_are_kept() -> None:
    text = "i, i -> i ; P(sum), P(sum) -> P(sum) ; R, P(max) -> P(min) | i=4"
    assert str(OpShardingRule.parse(text)) == text


def test_ones_do_not_take_the_name_of_a_factor() -> None:
    rule = bind("1 one0 -> one0", [(1, 4)])
    assert len({factor.name for factor in rule.factors}) == 2
    assert OpShardingRule.parse(str(rule)) == rule


def test_index() -> None:
    rule = bind("m k -> m", [(2, 3)])
    assert rule.index("k") == 1
    with pytest.raises(RuleError, match="the rule has no factor 'z'"):
        rule.index("z")


def test_identity() -> None:
    assert str(OpShardingRule.identity((2, 3), 2)) == "i j, i j -> i j | i=2 j=3"


def test_equal_rules_hash_alike() -> None:
    one, other = bind("m k -> m", [(2, 3)]), bind("m k -> m", [(2, 3)], [(2,)])
    assert one == other
    assert hash(one) == hash(other)
    assert one != bind("m k -> m", [(2, 4)])


def test_names_of_factors_do_not_run_out() -> None:
    assert len({factor_name(i) for i in range(100)}) == 100


# -- under a plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "axes", "printed"),
    [
        ("m k, k n -> m n | m=4 k=4 n=4", {0: "x", 1: "y"}, "m/x k/y, k/y n -> m/x n // y"),
        ("i k -> i, k | i=4 k=4", {0: "x", 1: "y"}, "i/x k/y -> i/x // y, k/y // x"),
        ("k l -> () ; l: max | k=4 l=4", {0: "x", 1: "y"}, "k/x l/y -> () // x+max(y) ; l: max"),
        ("(a b) 1 -> a b | a=4 b=2", {0: "x"}, "(a/x b) 1 -> a/x b"),
        ("i -> i | i=4", {}, "i -> i"),
    ],
)
def test_text_with_axes(text: str, axes: dict[int, str], printed: str) -> None:
    mesh = DeviceMesh("x=2, y=2")
    over = {factor: (mesh.axis(name),) for factor, name in axes.items()}
    assert OpShardingRule.parse(text).text_with(over) == printed


# -- records --------------------------------------------------------------------------------------------


def test_a_record_binds_its_text() -> None:
    record = OpRecord("op", "i k -> i n ; n: new", sizes={"n": 5})
    assert str(record.bind([(2, 3)], [(2, 5)])) == "i k -> i n ; n: new | i=2 k=3 n=5"


def test_a_record_may_read_attributes() -> None:
    def rule(call: Call) -> str:
        return "i j -> j i" if call.attr("swap") else "i j -> i j"

    record = OpRecord("op", rule)
    assert record.bind([(2, 3)], [(3, 2)], {"swap": True}).results == (((1,), (0,)),)
    assert record.bind([(2, 3)], [(2, 3)]).results == (((0,), (1,)),)


def test_a_record_may_size_factors_by_the_call() -> None:
    record = OpRecord("op", lambda call: ("(a b) -> a b", {"a": call.attr("a")}))
    assert record.bind([(6,)], [(3, 2)], {"a": 3}).sizes == (3, 2)


def test_a_record_may_give_the_rule_itself() -> None:
    rule = OpShardingRule.identity((4,))
    assert OpRecord("op", lambda _: rule).bind([(4,)], [(4,)]) is rule
