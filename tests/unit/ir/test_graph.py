"""Graphs: building, asking, and what is not well-formed."""

from __future__ import annotations

import random
from dataclasses import replace
from enum import IntEnum
from math import nan
from typing import Any

import numpy as np
import pytest

from shardwright.errors import GraphError
from shardwright.ir.graph import Graph, GraphBuilder, Node, Source, TensorType, Value
from shardwright.ir.nodes import freeze_attr
from shardwright.ir.verify import _are_sound, _nodes, verify


def diamond() -> Graph:
    """x -> neg -> (a, b) = split; out = add(a, x), b."""
    b = GraphBuilder("diamond")
    x = b.input((4,), name="x")
    y = b.op("neg", [x], [(4,)], names=["y"])
    v, w = b.op("halves", [y], [(4,), (4,)], names=["v", "w"], views=[(0, 0)])
    z = b.op("add", [v, x], [(4,)], names=["z"])
    return b.finish([z, w, z])


# -- types ----------------------------------------------------------------------------------------------


def test_type() -> None:
    type = TensorType((2, 3), "bf16")
    assert (type.rank, type.elements, type.item_bytes, type.bytes, str(type)) == (2, 6, 2, 12, "bf16[2, 3]")


@pytest.mark.parametrize(("shape", "elements"), [((), 1), ((0, 5), 0)])
def test_elements_of_scalars_and_empty_tensors(shape: tuple[int, ...], elements: int) -> None:
    assert TensorType(shape).elements == elements


def test_unknown_dtype() -> None:
    with pytest.raises(GraphError, match="no element type is called 'float32'"):
        _ = TensorType((2,), "float32").bytes


# -- building -------------------------------------------------------------------------------------------


def test_results_come_one_by_one_or_as_a_tuple() -> None:
    b = GraphBuilder()
    x = b.input((2,))
    assert b.op("one", [x], [(2,)]) == 1
    assert b.op("two", [x], [(2,), (3,)]) == (2, 3)
    assert b.op("none", [x], []) == ()


def test_names_are_made_unique() -> None:
    b = GraphBuilder()
    for _ in range(3):
        b.input((2,), name="x")
    assert [value.name for value in b.values] == ["x", "x_1", "x_2"]


def test_types_may_be_given_as_such() -> None:
    b = GraphBuilder()
    assert b.values[b.input(TensorType((2,), "i32"))].type == TensorType((2,), "i32")
    assert b.values[b.input((2,), "i32")].type == TensorType((2,), "i32")


def test_optional_and_list_operands() -> None:
    b = GraphBuilder()
    x, y = b.input((2,)), b.input((2,))
    b.op("concat", [[x, y], None, x], [(6,)])
    assert b.nodes[0].operands == ((0, 1), None, 0)
    assert b.nodes[0].inputs == (0, 1, 0)


def test_attributes_are_sorted_and_frozen() -> None:
    b = GraphBuilder()
    b.op("op", [], [], attrs={"b": [1, [2.5, None]], "a": True})
    assert b.nodes[0].attrs == (("a", True), ("b", (1, (2.5, None))))
    assert b.nodes[0].attr("b") == (1, (2.5, None))
    assert b.nodes[0].attr("c", "default") == "default"


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.float64(1.5), 1.5), (Colour.RED, 1), ([np.float64(2)], (2.0,)), (True, True), (np.str_("a"), "a")],
)
def test_attributes_become_plain(value: Any, plain: Any) -> None:
    """A subclass prints in its own way, which would not parse."""
    found = freeze_attr(value)
    assert repr(found) == repr(plain)


def test_every_nan_is_the_same() -> None:
    assert freeze_attr(float("nan")) is freeze_attr(-nan)


@pytest.mark.parametrize("value", [{}, {1}, 1j, object(), b"x", np.int64(1)])
def test_attributes_without_a_text_form(value: object) -> None:
    with pytest.raises(GraphError, match="an attribute cannot be of type"):
        freeze_attr(value)


# -- asking ---------------------------------------------------------------------------------------------


def test_uses() -> None:
    graph = diamond()
    assert graph.uses == ((0, 2), (1,), (2,), (), ())
    assert graph.output_uses == (0, 0, 0, 1, 2)


def test_a_value_read_twice_by_one_node_is_used_twice() -> None:
    b = GraphBuilder()
    x = b.input((2,))
    y = b.op("add", [x, x], [(2,)])
    assert b.finish([y]).uses[x] == (0, 0)


def test_who_makes_a_value() -> None:
    graph = diamond()
    assert [graph.node_of(value.id) for value in graph.values] == [None, 0, 1, 1, 2]


def test_by_name() -> None:
    graph = diamond()
    assert graph.by_name["w"] == 3
    assert graph.types([graph.by_name["w"]]) == [TensorType((4,))]


def test_a_view_shows_the_bytes_of_its_base() -> None:
    b = GraphBuilder()
    x = b.input((4,))
    y = b.op("view", [x], [(2, 2)], views=[(0, 0)])
    z = b.op("view", [y], [(4,)], views=[(0, 0)])
    c = b.op("copy", [z], [(4,)])
    graph = b.finish([c])
    assert [graph.base_of(value) for value in (x, y, z, c)] == [x, x, x, c]


def test_equal_graphs_are_equal() -> None:
    assert diamond() == diamond()
    assert diamond() != replace(diamond(), name="other")


def test_source() -> None:
    assert str(Source("model.py", 3)) == "model.py:3"
    assert str(Source("model.py", 3, "mlp.up")) == "model.py:3 in mlp.up"


# -- what is not well-formed ----------------------------------------------------------------------------

X = Value(0, TensorType((2,)), "x")
Y = Value(1, TensorType((2,)), "y", (0, 0))
NEG = Node("neg", (0,), (1,))
GOOD = Graph("g", (X, Y), (NEG,), (0,), (1,))


def test_the_graph_below_is_good() -> None:
    assert verify(GOOD) is GOOD


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"values": (X, replace(Y, id=2))}, "value 1 is numbered 2"),
        ({"values": (X, replace(Y, name="x"))}, "two values are called 'x'"),
        ({"values": (replace(X, type=TensorType((2,), "float")), Y)}, "no element type is called 'float'"),
        ({"values": (replace(X, type=TensorType((-2,))), Y)}, "%x has a negative size"),
        ({"nodes": (replace(NEG, op=""),)}, "a node without an op"),
        ({"nodes": (replace(NEG, operands=(7,)),)}, "reads value 7, which does not exist"),
        ({"nodes": (replace(NEG, operands=(1,)),)}, "reads %y before it is made"),
        ({"nodes": (replace(NEG, results=(0,)),)}, "says it comes from elsewhere"),
        ({"nodes": (replace(NEG, results=(1, 1)),)}, "result 1 is value 1"),
        ({"nodes": (replace(NEG, views=((1, 0),)),)}, "view 1<-0 names no result or no operand"),
        ({"nodes": (replace(NEG, views=((0, 1),)),)}, "view 0<-1 names no result or no operand"),
        ({"nodes": (replace(NEG, attrs=(("a", 1), ("a", 2))),)}, "an attribute stands twice"),
        ({"nodes": ()}, "%y is neither an input nor made by a node"),
        ({"inputs": (0, 0)}, "a value stands twice among the inputs"),
        ({"inputs": (0, 1)}, "input 1 is made by a node"),
        ({"inputs": (0, 5)}, "input 5 does not exist"),
        ({"inputs": ()}, "reads %x before it is made"),
        ({"outputs": (4,)}, "returns value 4, which does not exist"),
        ({"updates": ((0, 0), (0, 0))}, "an input is updated twice"),
        ({"updates": ((1, 0),)}, "update 1 := 0 names no input or no output"),
        ({"updates": ((0, 1),)}, "update 0 := 1 names no input or no output"),
        ({"values": (X, replace(Y, type=TensorType((3,)))), "updates": ((0, 0),)}, "the update of %x changes its type"),
    ],
)
def test_not_well_formed(changes: dict[str, Any], fact: str) -> None:
    with pytest.raises(GraphError, match=fact):
        verify(replace(GOOD, **changes))


def test_the_error_names_the_node_and_its_source() -> None:
    bad = replace(NEG, operands=(7,), source=Source("model.py", 12))
    with pytest.raises(GraphError) as caught:
        verify(replace(GOOD, nodes=(bad,)))
    assert caught.value.rows == [("node", "0: neg"), ("at", "model.py:12")]


def test_all_nodes_at_once_say_what_one_by_one_do() -> None:
    """Any number of a graph is changed: arrays call it sound just where nothing is found."""
    graph = GraphBuilder()
    x, y = graph.input((4,)), graph.input((2, 2))
    a = graph.op("split", [x, None, [x, y]], [(2,), (2,)], attrs={"at": 1})
    b = graph.op("view", [a[0]], [(2, 1)], views=[(0, 0)])
    c = graph.op("cat", [[a[1], b], y], [(4,)])
    good = graph.finish([c])
    rng = random.Random(0)
    wrong = 0
    for _ in range(3000):
        n, v = rng.randrange(3), rng.randrange(len(good.values))
        new = rng.choice([-1, 0, 1, 2, 3, 4, 5, 6, 2**70])
        node, value = good.nodes[n], good.values[v]
        bad = rng.choice(
            [
                replace(node, operands=(*node.operands[:-1], new)),
                replace(node, operands=(*node.operands, (0, new))),
                replace(node, results=(*node.results[:-1], new)),
                replace(node, results=(new, *node.results)),
                replace(node, views=((0, new),)),
                replace(node, attrs=(("at", 1), ("at", new))),
                replace(node, op=rng.choice(["", "other"])),
                replace(value, producer=(new, 0)),
                replace(value, producer=None),
                None,
            ]
        )
        nodes = tuple(bad if isinstance(bad, Node) and i == n else one for i, one in enumerate(good.nodes))
        values = tuple(bad if isinstance(bad, Value) and i == v else one for i, one in enumerate(good.values))
        inputs = good.inputs if bad is not None else tuple(i for i in good.inputs if i != new)
        changed = replace(good, nodes=nodes, values=values, inputs=inputs)
        try:
            _nodes(changed)
        except GraphError:
            wrong += 1
            assert not _are_sound(changed), changed
        else:
            # Numbers that no array holds are looked at one by one.
            assert _are_sound(changed) or new == 2**70, changed
    assert 1000 < wrong < 2900


def test_a_builder_verifies() -> None:
    b = GraphBuilder()
    with pytest.raises(GraphError, match="returns value 3"):
        b.finish([3])
