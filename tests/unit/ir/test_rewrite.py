"""New graphs from old ones."""

from __future__ import annotations

from shardwright.ir.graph import Graph
from shardwright.ir.rewrite import Rewriter, split_constants

GRAPH = Graph.parse(
    """graph g(%x: f32[2], %s: f32[2]) {
  %y = neg(%x) {a=1} view[0<-0] : f32[2]  # model.py:3
  %z = add([%x, %y], none) : f32[2]
  return %z
  update %s := output 0
}"""
)


def test_a_copy_is_the_same_graph() -> None:
    rewriter = Rewriter(GRAPH)
    for node in GRAPH.nodes:
        rewriter.copy(node)
    assert rewriter.finish() == GRAPH
    assert rewriter.new == {value.id: value.id for value in GRAPH.values}


def test_a_node_put_in_is_read_by_those_that_follow() -> None:
    rewriter = Rewriter(GRAPH)
    rewriter.copy(GRAPH.nodes[0])
    y = GRAPH.by_name["y"]
    rewriter.instead[y] = rewriter.insert("mark", y, {"n": 1})
    rewriter.copy(GRAPH.nodes[1])
    assert str(rewriter.finish()).splitlines()[1:4] == [
        "  %y = neg(%x) {a=1} view[0<-0] : f32[2]  # model.py:3",
        "  %y_1 = mark(%y) {n=1} : f32[2]",
        "  %z = add([%x, %y_1], none) : f32[2]",
    ]


def test_outputs_read_what_stands_instead() -> None:
    rewriter = Rewriter(GRAPH)
    for node in GRAPH.nodes:
        rewriter.copy(node)
    z = GRAPH.by_name["z"]
    rewriter.instead[z] = rewriter.insert("mark", z)
    made = rewriter.finish()
    assert [made.values[value].name for value in made.outputs] == ["z_1"]
    assert made.updates == GRAPH.updates


def test_operands_may_be_given() -> None:
    rewriter = Rewriter(GRAPH)
    rewriter.copy(GRAPH.nodes[0], (1,))
    rewriter.copy(GRAPH.nodes[1])
    assert rewriter.finish().nodes[0].operands == (1,)


# -- constants ------------------------------------------------------------------------------------------


def test_every_use_of_a_constant_gets_its_own() -> None:
    graph = Graph.parse(
        """graph g(%x: f32[2]) {
  %c = core.constant() {v=1.0} : f32[2]
  %y = add(%x, %c) : f32[2]
  %z = sum([%y, %c], none) : f32[2]
  return %z, %c
}"""
    )
    made, images = split_constants(graph, "core.constant")
    assert str(made) == (
        "graph g(%x: f32[2]) {\n"
        "  %c = core.constant() {v=1.0} : f32[2]\n"
        "  %y = add(%x, %c) : f32[2]\n"
        "  %c_1 = core.constant() {v=1.0} : f32[2]\n"
        "  %z = sum([%y, %c_1], none) : f32[2]\n"
        "  %c_2 = core.constant() {v=1.0} : f32[2]\n"
        "  return %z, %c_2\n"
        "}"
    )
    assert {made.values[images[value.id]].name for value in graph.values} == {"x", "y", "z", "c_2"}


def test_a_constant_that_nobody_reads_stays() -> None:
    graph = Graph.parse("graph g() { %c = k() : f32[2] return }")
    made, images = split_constants(graph, "k")
    assert [node.op for node in made.nodes] == ["k"]
    assert images == {0: 0}


def test_other_ops_are_left_alone() -> None:
    assert split_constants(GRAPH, "core.constant")[0] == GRAPH
