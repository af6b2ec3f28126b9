"""What a well-formed graph is.  Run between passes; errors name the node.

Graphs are large and mostly well-formed: arrays say that of all nodes at once, and only if they do not, nodes are gone
through one by one for what is wrong.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ..errors import GraphError
from .graph_data import GraphData
from .nodes import Node

G = TypeVar("G", bound=GraphData)


def verify(graph: G) -> G:
    """Return the graph, or say what is wrong with it."""
    _values(graph)
    _inputs(graph)
    if not _are_sound(graph):
        _nodes(graph)
    _ends(graph)
    return graph


def _values(graph: GraphData) -> None:
    names: dict[str, int] = {}
    for i, value in enumerate(graph.values):
        if value.id != i:
            raise GraphError(f"value {i} is numbered {value.id}")
        if names.setdefault(value.name, i) != i:
            both = f"{names[value.name]}, {i}"
            raise GraphError(f"two values are called {value.name!r}", rows=[("values", both)])
        _ = value.type.item_bytes  # an unknown dtype is an error here, not at the first cost
        if any(size < 0 for size in value.shape):
            raise GraphError(f"%{value.name} has a negative size", rows=[("type", str(value.type))])


def _inputs(graph: GraphData) -> None:
    if len(set(graph.inputs)) != len(graph.inputs):
        raise GraphError("a value stands twice among the inputs")
    for value in graph.inputs:
        if not 0 <= value < len(graph.values):
            raise GraphError(f"input {value} does not exist")
        if graph.values[value].producer is not None:
            raise GraphError(f"input {value} is made by a node")


def _are_sound(graph: GraphData) -> bool:
    """Whether `_nodes` finds nothing."""
    try:
        wiring = graph.wiring
        said = np.array([value.producer or (-1, -1) for value in graph.values], np.int64).reshape(-1, 2)
    except OverflowError:
        return False
    reads, made, count = wiring.reads, wiring.made, len(graph.values)
    for values in (reads, made):
        if values.size and not (values.min() >= 0 and values.max() < count):
            return False
    if not all(_is_plain(graph.nodes[n]) for n in np.unique(wiring.kind, return_index=True)[1].tolist()):
        return False
    place = np.arange(made.size) - np.repeat(wiring.first_made[:-1], np.diff(wiring.first_made))
    if not (said[made] == np.stack([wiring.making, place], 1)).all():
        return False
    known = np.zeros(count, np.bool_)
    known[list(graph.inputs)] = True
    early = known[reads] | ((wiring.maker[reads] >= 0) & (wiring.maker[reads] < wiring.reader))
    return bool(early.all() and (known | (wiring.maker >= 0)).all())


def _is_plain(node: Node) -> bool:
    """Whether there is nothing wrong with a node that is wrong with all of its kind."""
    keys = [key for key, _ in node.attrs]
    ends = len(node.results), len(node.inputs)
    views = all(0 <= result < ends[0] and 0 <= operand < ends[1] for result, operand in node.views)
    return bool(node.op) and views and len(set(keys)) == len(keys)


def _nodes(graph: GraphData) -> None:
    known = set(graph.inputs)
    count = len(graph.values)
    for n, node in enumerate(graph.nodes):
        where = [("node", f"{n}: {node.op}")] + ([("at", str(node.source))] if node.source else [])
        if not node.op:
            raise GraphError("a node without an op", rows=where)
        for value in node.inputs:
            if not 0 <= value < count:
                raise GraphError(f"reads value {value}, which does not exist", rows=where)
            if value not in known:
                raise GraphError(f"reads %{graph.values[value].name} before it is made", rows=where)
        for r, value in enumerate(node.results):
            if not 0 <= value < count or graph.values[value].producer != (n, r):
                fact = f"result {r} is value {value}, which says it comes from elsewhere"
                raise GraphError(fact, rows=where)
            known.add(value)
        for result, operand in node.views:
            if not (0 <= result < len(node.results) and 0 <= operand < len(node.inputs)):
                raise GraphError(f"view {result}<-{operand} names no result or no operand", rows=where)
        keys = [key for key, _ in node.attrs]
        if len(set(keys)) != len(keys):
            raise GraphError("an attribute stands twice", rows=where)
    if len(known) != count:
        lost = next(value for value in graph.values if value.id not in known)
        raise GraphError(f"%{lost.name} is neither an input nor made by a node")


def _ends(graph: GraphData) -> None:
    for value in graph.outputs:
        if not 0 <= value < len(graph.values):
            raise GraphError(f"returns value {value}, which does not exist")
    targets = [i for i, _ in graph.updates]
    if len(set(targets)) != len(targets):
        raise GraphError("an input is updated twice")
    for i, o in graph.updates:
        if not (0 <= i < len(graph.inputs) and 0 <= o < len(graph.outputs)):
            raise GraphError(f"update {i} := {o} names no input or no output")
        new, old = graph.type(graph.outputs[o]), graph.type(graph.inputs[i])
        if new != old:
            name = graph.values[graph.inputs[i]].name
            rows = [("from", str(old)), ("to", str(new))]
            raise GraphError(f"the update of %{name} changes its type", rows=rows)
