"""Graphs as text."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.errors import GraphError
from shardwright.ir.graph import Graph, GraphBuilder, SourceLine
from shardwright.ir.text import graph_text
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec

TEXT = """\
graph mlp(%x: f32[8, 16], %w: f32[16, 4]) {
  %h = matmul(%x, %w) : f32[8, 4]  # model.py:12 in MLP.forward
  %a, %b = split(%h) {axis=0, sections=2} view[0<-0, 1<-0] : f32[4, 4], f32[4, 4]
  %c = concat([%a, %b], none) {axis=0} : f32[8, 4]
  log(%c)
  %d = "my op"(%c) {a=[1, -2, 3.5], b=true, c=none, "d e"="x\\n"} : bf16[]  # "a file.py":1
  return %c, %d
  update %x := output 2
}"""


def one_op(name: str = "x", op: str = "neg", attrs: dict[str, Any] | None = None, results: int = 1) -> Graph:
    b = GraphBuilder("g")
    x = b.input((2,), name=name)
    b.op(op, [x], [(2,)] * results, attrs=attrs)
    return b.finish([x])


def test_text_and_back() -> None:
    text = TEXT.replace("output 2", "output 0").replace("%x: f32[8, 16]", "%x: f32[8, 4]")
    graph = Graph.parse(text)
    assert str(graph) == text
    assert graph.updates == ((0, 0),)


def test_spaces_and_line_ends_do_not_matter() -> None:
    graph = Graph.parse("graph g(%x:f32[2]){%y=neg(%x):f32[2] return %y}")
    assert Graph.parse(str(graph)) == graph


def test_an_empty_graph() -> None:
    graph = GraphBuilder("nothing").finish([])
    assert str(graph) == "graph nothing() {\n  return\n}"
    assert Graph.parse(str(graph)) == graph


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "layers.0.weight",
        "0.weight",
        "10_1",
        "12a",
        "1e5",
        "1e5x",
        "inf",
        "inf.x",
        "nan",
        "none",
        "-1",
        "a b",
        '"',
        "é",
        "7",
    ],
)
def test_names_survive(name: str) -> None:
    graph = one_op(name)
    assert Graph.parse(str(graph)) == graph


@pytest.mark.parametrize("op", ["return", "update", "view", "in", "none", "aten.mm.default", "a b"])
@pytest.mark.parametrize("results", [0, 1])
def test_ops_called_like_words_of_the_text(op: str, results: int) -> None:
    graph = one_op(op=op, results=results)
    assert Graph.parse(str(graph)) == graph


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -3,
        1.5,
        1e300,
        -1e-7,
        float("inf"),
        float("-inf"),
        float("nan"),
        "",
        'a"\\\n',
        (),
        (1, (2.0, "x")),
    ],
)
def test_attributes_survive(value: Any) -> None:
    graph = one_op(attrs={"a": value})
    assert Graph.parse(str(graph)) == graph


@pytest.mark.parametrize(
    "source",
    [SourceLine("model.py", 1), SourceLine("0.py", 1, "0.up"), SourceLine("/a b/c.py", 12, "in"), SourceLine("", 0)],
)
def test_sources_survive(source: SourceLine) -> None:
    b = GraphBuilder("g")
    x = b.input((2,))
    y = b.op("neg", [x], [(2,)], source=source)
    graph = b.finish([y])
    assert Graph.parse(str(graph)) == graph


def test_shardings_are_shown() -> None:
    mesh = DeviceMesh("dp=2")
    graph = one_op()
    specs = {0: ShardingSpec(mesh, ["dp"]), 1: None}
    assert graph_text(graph, specs, [ShardingSpec(mesh, ["?"])]) == (
        "graph g(%x: f32[2@dp]) {\n  %1 = neg(%x) : f32[2]\n  return %x as [?]\n}"
    )


@pytest.mark.parametrize(
    ("text", "fact", "line"),
    [
        ("", "expected 'graph', the text ends", 1),
        ("graph g {", "expected '.', found '{'", 1),
        ("graph g(x: f32[2]) {", "expected '%', found 'x'", 1),
        ("graph g(%x: f32[2], %x: f32[2]) {", "%x is defined twice", 1),
        ("graph g(%x: f32) {", "expected '.', found '.'", 1),
        ("graph g(%x: f32[2]) {", "expected the name of an op, the text ends", 1),
        ("graph g(%x: f32[2]) {\n  %y = neg(%z) : f32[2]\n  return %y\n}", "%z is not defined yet", 2),
        ("graph g(%x: f32[2]) {\n  %y = neg(%x)\n  return %y\n}", "expected ':', found 'return'", 3),
        ("graph g(%x: f32[2]) {\n  %y neg(%x) : f32[2]\n}", "expected '=', found 'neg'", 2),
        ("graph g(%x: f32[2]) {\n  %y = neg(%x) {a=} : f32[2]\n}", "expected the value of an attribute, found '}'", 2),
        ("graph g(%x: f32[2]) {\n  %y = neg(%x) {a=", "expected the value of an attribute, the text ends", 2),
        ("graph g(%x: f32[2]) {\n  return %x\n", "expected '}', the text ends", 2),
        ("graph g(%x: f32[2]) {\n  return %x\n}\nmore", "nothing should follow here, found 'more'", 4),
        ("graph g(%x: f32[2@dp]) {", "no mesh to read them on", 1),
        ("graph g(%x: f32[2]) {\n  %y = neg(%x) : f32[2]\n  return %y\n  update %y := output 0\n}", "only an input", 4),
    ],
)
def test_bad_text_is_placed(text: str, fact: str, line: int) -> None:
    with pytest.raises(GraphError, match=fact) as caught:
        Graph.parse(text)
    assert ("line", str(line)) in caught.value.rows
    assert caught.value.text == (text.split("\n") or [""])[line - 1]


def test_the_caret_stands_under_the_spot() -> None:
    with pytest.raises(GraphError) as caught:
        Graph.parse("graph g(%x: f32[2]) {\n  %y = neg(%z) : f32[2]\n  return %y\n}")
    error = caught.value
    assert error.text is not None
    assert error.text[error.at :] == "%z) : f32[2]"


def test_what_is_read_is_verified() -> None:
    with pytest.raises(GraphError, match="names no input or no output"):
        Graph.parse("graph g(%x: f32[2]) { return %x update %x := output 3 }")
