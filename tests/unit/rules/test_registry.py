"""The rule book: how ops get in, how they are found, and the extractor."""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from by_execution import check
from shardwright.errors import RuleError, UnknownOpError
from shardwright.ir.graph import Graph, GraphBuilder, SourceLine
from shardwright.rules import GraphExtractor, lookup, records, registry, rule, sharding_rule
from shardwright.rules.registry import find, forget, node_rule
from shardwright.spec.op_record import Call, Flow

CONTRACT = (
    "slice flip roll pad concatenate take take_along_axis update_slice scatter cumsum cumprod sort argsort argmax "
    "argmin tril triu full arange modf frexp divmod core.constant core.constraint matmul einsum reduce_sum reshape "
    "transpose fft cholesky triangular_solve convolution reduce_window stablehlo.gather stablehlo.scatter "
    "dynamic_slice dynamic_update_slice bitcast_convert reverse rng rng_bit_generator batch_norm_inference "
    "select_and_scatter stablehlo.all_gather stablehlo.all_to_all stablehlo.all_reduce"
)
MEANINGS = {
    **{op: op for op in ("slice", "flip", "roll", "pad", "concatenate", "take", "take_along_axis", "update_slice")},
    **{op: op for op in ("scatter", "sort", "argsort", "argmax", "argmin", "full", "arange")},
    "cumsum": "cumulative sum",
    "cumprod": "cumulative prod",
    "tril": "triangle",
    "triu": "triangle",
    **dict.fromkeys(("fft", "convolution", "stablehlo.gather", "core.constant"), None),
}
COSTS = {"memory", "view", "gather", "sort", "update", "conv", "matmul", "pointwise", "reduce", "attention"}


@pytest.fixture(autouse=True)
def book() -> Iterator[None]:
    """Ops that a test adds are taken out again."""
    before = {record.name: record for record in records()}
    yield
    for record in list(records()):
        if before.get(record.name) is not record:
            forget(record.name)
    registry._records.update(before)


# -- writing --------------------------------------------------------------------------------------------


def test_a_rule_by_text() -> None:
    rule("test.gate", "b k, k -> b ; P(sum), R -> P(sum)", cost="matmul", meaning="contract")
    record = lookup("test.gate")
    assert (record.cost, record.meaning, record.flow) == ("matmul", "contract", Flow.OTHER)
    assert [str(line) for line in record.transfers] == ["P(sum), R -> P(sum)"]
    assert str(sharding_rule("test.gate", [(8, 4), (4,)], [(8,)])) == "b k, k -> b ; P(sum), R -> P(sum) | b=8 k=4"


def test_a_rule_by_decorator() -> None:
    @rule("test.along", flow=Flow.VIEW, view=True)
    def along(call: Call) -> str:
        return "i j -> i" if call.attr("axis") else "i j -> j"

    assert along(Call((), (), {"axis": 1})) == "i j -> i"  # stays what it was
    assert lookup("test.along").view
    assert str(sharding_rule("test.along", [(8, 4)], [(4,)], {"axis": 0})) == "i j -> j | i=8 j=4"


def test_sizes_that_shapes_do_not_give() -> None:
    rule("test.one_hot", "i -> i n", n=10)
    assert str(sharding_rule("test.one_hot", [(4,)], [(4, 10)])) == "i -> i n ; n: new | i=4 n=10"
    rule("test.heads", "b (h d) -> b h d", h=4)
    assert str(sharding_rule("test.heads", [(2, 12)], [(2, 4, 3)])) == "b (h d) -> b h d | b=2 h=4 d=3"


def test_sizes_from_a_function() -> None:
    rule("test.groups", lambda call: ("b (g d) -> b g d", {"g": call.attr("groups")}))
    assert sharding_rule("test.groups", [(2, 12)], [(2, 3, 4)], {"groups": 3}).sizes == (2, 3, 4)


def test_an_op_cannot_be_written_twice() -> None:
    rule("test.twice", "i -> i")
    with pytest.raises(RuleError, match=r"op 'test.twice' stands in the rule book already\n  help  pass replace=True"):
        rule("test.twice", "i -> i ; i: whole")
    rule("test.twice", "i -> i ; i: whole", replace=True)
    assert lookup("test.twice").rule == "i -> i ; i: whole"


def test_whoever_writes_first_does_not_take_a_name_of_the_book() -> None:
    """In a fresh process, before anything was looked up."""
    code = (
        'from shardwright.rules import lookup, rule; rule("matmul", "i -> i", replace=True); print(lookup("exp").name)'
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "exp\n"
    code = 'from shardwright.rules import rule; rule("matmul", "i -> i")'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "op 'matmul' stands in the rule book already" in done.stderr


@pytest.mark.parametrize("family", ["pointwise", "view", "structured"])
def test_a_family_can_be_imported_first(family: str) -> None:
    code = f"import shardwright.rules.{family}; from shardwright.rules import records; print(len(list(records())))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(list(records()))


def test_a_wrong_rule_is_refused_when_written() -> None:
    with pytest.raises(RuleError, match=r"(?s)appears on the right but on no input.*op +test.wrong"):
        rule("test.wrong", "m k, k j -> m n")
    assert find("test.wrong") is None


def test_a_misspelt_argument() -> None:
    with pytest.raises(RuleError, match=r"(?s)rule\(\) has no argument 'meening'.*did you mean 'meaning'\?"):
        rule("test.misspelt", "i -> i", meening="pointwise")


# -- finding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTRACT.split())
def test_the_book_has(name: str) -> None:
    assert lookup(name).name == name


@pytest.mark.parametrize("name", MEANINGS)
def test_what_an_op_means(name: str) -> None:
    assert lookup(name).meaning == MEANINGS[name]


def test_an_unknown_op() -> None:
    with pytest.raises(UnknownOpError, match=r"the rule book has no op 'matmull'\n  help  did you mean 'matmul'\?"):
        lookup("matmull")
    with pytest.raises(
        UnknownOpError, match=r'help  add it: rule\("name", "m k, k n -> m n"\), or .*@shardwright.numpy.op'
    ):
        lookup("%%%")
    assert find("matmull") is None


def test_records_are_in_order() -> None:
    names = [record.name for record in records()]
    assert names == sorted(names)
    assert len(names) > 150


@pytest.mark.parametrize("record", list(records()), ids=lambda record: record.name)
def test_every_record_says_what_it_costs(record: Any) -> None:
    assert record.cost in COSTS
    assert (record.cost == "view") or not record.view


def test_a_call_that_does_not_fit_names_its_op() -> None:
    with pytest.raises(RuleError, match=r"(?s)has two sizes.*op +matmul"):
        sharding_rule("matmul", [(8, 16), (15, 4)], [(8, 4)])


# -- rules of nodes -------------------------------------------------------------------------------------


def one_node(op: str, **attrs: Any) -> Graph:
    b = GraphBuilder()
    x = b.input((8, 4), name="x")
    return b.finish([b.op(op, [x], [(8, 4)], attrs=attrs, source=SourceLine("model.py", 41, "Block"))])


def test_equal_calls_share_a_rule() -> None:
    first, second = one_node("cumsum", axis=1), one_node("cumsum", axis=1)
    assert node_rule(first, first.nodes[0]) is node_rule(second, second.nodes[0])
    other = one_node("cumsum", axis=0)
    assert node_rule(other, other.nodes[0]) != node_rule(first, first.nodes[0])


def test_a_rule_that_was_changed_is_seen() -> None:
    graph = one_node("test.changing")
    for i in range(20):
        word = ("whole", "permuted", "blocked")[i % 3]
        rule("test.changing", f"i j -> i j ; j: {word}")
        assert f"j: {word}" in str(node_rule(graph, graph.nodes[0]))
        forget("test.changing")
        gc.collect()  # the next record may stand where this one stood


def test_an_error_names_the_source_line() -> None:
    graph = one_node("cumsum", axis=2)
    with pytest.raises(RuleError, match=r"(?s)axis 2 of a tensor with 2 dims.*op +cumsum   at model.py:41"):
        node_rule(graph, graph.nodes[0])


# -- other packages -------------------------------------------------------------------------------------


def point(value: str, found: Any) -> Any:
    def load() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(value=value, load=load)


def test_rules_of_other_packages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    groups = []

    def fake(group: str) -> list[Any]:
        groups.append(group)
        return [
            point("third.party:register", lambda: rule("test.third", "i -> i")),
            point("third.party.rules", SimpleNamespace()),  # a module registers when it is imported
            point("broken.party", ImportError("no module named 'broken'")),
            point("fourth.party:register", lambda: rule("test.fourth", "i -> i")),
        ]

    monkeypatch.setattr(registry, "entry_points", fake)
    monkeypatch.setattr(registry, "_loaded", False)
    with caplog.at_level(logging.WARNING):
        assert lookup("test.third").rule == "i -> i"
    assert groups == ["shardwright.rules"]
    assert lookup("test.fourth").name == "test.fourth"  # a broken one does not take the rest down
    assert caplog.messages == ["rules of broken.party could not be loaded: no module named 'broken'"]


# -- the extractor --------------------------------------------------------------------------------------


def program(unknown: bool = False) -> Graph:
    b = GraphBuilder("f")
    x, w = b.input((8, 16), name="x"), b.input((16, 4), name="w")
    h = b.op("matmul", [x, w], [(8, 4)])
    if unknown:
        h = b.op("mystery", [h], [(8, 4)])
    y = b.op("concatenate", [[h, h]], [(8, 8)], attrs={"axis": 1})
    return b.finish([b.op("exp", [y], [(8, 8)])])


def test_every_op_is_extracted_with_its_rule(caplog: pytest.LogCaptureFixture) -> None:
    extractor = GraphExtractor(program())
    with caplog.at_level(logging.WARNING):
        nodes = extractor.extract()["nodes"]
    assert [node["op"] for node in nodes] == ["matmul", "concatenate", "exp"]
    assert nodes[0]["rule"] == "m k, k n -> m n ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum) | m=8 k=16 n=4"
    assert nodes[1]["rule"] == "i j, i j -> i j ; j: whole ; P(any), P(any) -> P(any) | i=8 j=8"
    assert extractor.warnings == []
    assert caplog.messages == []


def test_an_op_without_a_rule_is_extracted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    extractor = GraphExtractor(program(unknown=True))
    with caplog.at_level(logging.WARNING):
        nodes = extractor.extract()["nodes"]
    assert [node["op"] for node in nodes] == ["matmul", "mystery", "concatenate", "exp"]
    assert [node["rule"] is None for node in nodes] == [False, True, False, False]
    assert extractor.warnings == ["[GraphExtractor] WARNING: Failed to get sharding_rule for node 1"]
    (message,) = caplog.messages
    assert message.startswith("[GraphExtractor] WARNING: Failed to get sharding_rule for node 1 (mystery): ")


def test_a_call_that_its_rule_does_not_fit_is_extracted_with_a_warning() -> None:
    extractor = GraphExtractor(one_node("cumsum", axis=7))
    assert extractor.extract()["nodes"][0]["rule"] is None
    assert extractor.warnings == ["[GraphExtractor] WARNING: Failed to get sharding_rule for node 0"]


def test_the_extract_is_json() -> None:
    extractor = GraphExtractor(program(unknown=True))
    assert json.loads(extractor.to_json()) == json.loads(json.dumps(extractor.extract()))


# -- the check by execution must bite -------------------------------------------------------------------


def test_a_wrong_factor_is_noticed() -> None:
    rule("test.cumsum", "i -> i")
    with pytest.raises(AssertionError, match="split along i"):
        check("test.cumsum", np.cumsum, [np.arange(4.0)])


def test_a_wrong_transfer_is_noticed() -> None:
    rule("test.abs", "i -> i ; P(max) -> P(max)")
    with pytest.raises(AssertionError, match=r"P\(max\) -> P\(max\)"):
        check("test.abs", np.abs, [np.arange(4.0)])
