"""Graphs as JSON: plain data with a schema version, read strictly.

NaN and infinities are spelled ``{"float": "nan"}``; duplicate keys, unknown fields and bare NaN are refused, and so is
what readers stumble over: deep nesting, numbers of very many digits, halves of characters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ..errors import GraphError
from .graph_data import GraphData, Parts
from .nodes import Attr, Node, Operand, SourceLine, TensorType, Value, freeze_attr

FORMAT = "shardwright.graph"
VERSION = 1
MOST_NESTED = 64
"""Lists and objects inside each other: what is written is far from that, and who walks it may recurse."""
MOST_DIGITS = 100
"""Of a number; Python itself refuses some thousands, with an error of its own."""


def strict_loads(text: str) -> Any:
    """JSON without the liberties that Python's reader takes."""

    def refuse_constant(word: str) -> Any:
        raise GraphError(f"{word} is not JSON")

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            raise GraphError(f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
        return found

    def read_int(digits: str) -> int:
        if len(digits) > MOST_DIGITS:
            raise GraphError(f"a number of {len(digits)} digits", rows=[("begins", digits[:20])])
        return int(digits)

    def read_float(digits: str) -> float:
        found = float(digits)
        if not math.isfinite(found):
            raise GraphError(f"a number that is too large: {digits[:20]}")
        return found

    try:
        found = json.loads(
            text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates, parse_int=read_int,
            parse_float=read_float,
        )  # fmt: skip
    except json.JSONDecodeError as error:
        raise GraphError(
            f"not JSON: {error.msg}", rows=[("at", f"line {error.lineno}, column {error.colno}")]
        ) from None
    except RecursionError:
        raise _nested() from None
    _look_through(found)
    return found


def _nested() -> GraphError:
    return GraphError(f"lists and objects stand more than {MOST_NESTED} deep inside each other")


def _look_through(data: Any) -> None:
    """Refuse what is nested too deep, and text that cannot be written."""
    level = [data]
    for _ in range(MOST_NESTED):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
                raise GraphError(f"a text holds half a character: {item[:40]!r}")
        level = below
        if not level:
            return
    raise _nested()


def take(record: Any, what: str, needed: Mapping[str, type | tuple[type, ...]], optional: tuple[str, ...] = ()) -> Any:
    """Check that ``record`` is an object with these fields and no others."""
    if not isinstance(record, dict):
        raise GraphError(f"{what} is not an object")
    for key, kind in needed.items():
        if key not in record:
            raise GraphError(f"{what} has no field {key!r}")
        if not isinstance(record[key], kind) or (kind is int and isinstance(record[key], bool)):
            raise GraphError(f"field {key!r} of {what} is a {type(record[key]).__name__}")
    for key in record:
        if key not in needed and key not in optional:
            raise GraphError(f"{what} has an unknown field {key!r}")
    return record


def attr_to_json(value: Attr) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, tuple):
        return [attr_to_json(item) for item in value]
    return value


def attr_from_json(value: Any) -> Attr:
    if isinstance(value, list):
        return tuple(attr_from_json(item) for item in value)
    if isinstance(value, dict):
        word = take(value, "an attribute", {"float": str})["float"]
        if word not in ("nan", "inf", "-inf"):
            raise GraphError(f"an attribute cannot be the float {word!r}")
        return freeze_attr(float(word))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise GraphError(f"an attribute cannot be a {type(value).__name__}")


def graph_to_json(graph: GraphData) -> dict[str, Any]:
    """A graph as an object that ``json.dumps`` takes."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "values": [{"name": v.name, "shape": list(v.shape), "dtype": v.type.dtype} for v in graph.values],
        "inputs": list(graph.inputs),
        "nodes": [node_to_json(node) for node in graph.nodes],
        "outputs": list(graph.outputs),
        "updates": [list(pair) for pair in graph.updates],
    }


def node_to_json(node: Node) -> dict[str, Any]:
    record: dict[str, Any] = {
        "op": node.op,
        "operands": [list(o) if isinstance(o, tuple) else o for o in node.operands],
        "results": list(node.results),
    }
    if node.attrs:
        record["attrs"] = {key: attr_to_json(value) for key, value in node.attrs}
    if node.views:
        record["views"] = [list(pair) for pair in node.views]
    if node.source is not None:
        record["source"] = {"file": node.source.file, "line": node.source.line, "scope": node.source.scope}
    return record


def read_json(data: Any) -> Parts:
    """The parts of the graph that `graph_to_json` gives so; also takes the text."""
    record = strict_loads(data) if isinstance(data, str) else data
    lists = dict.fromkeys(("values", "inputs", "nodes", "outputs", "updates"), list)
    take(record, "a graph", {"format": str, "version": int, "name": str, **lists})
    if record["format"] != FORMAT or record["version"] != VERSION:
        raise GraphError(
            f"{record['format']} version {record['version']} where {FORMAT} version {VERSION} is expected",
            help="write the graph again with this version of Shardwright",
        )
    nodes = tuple(_node(item, n) for n, item in enumerate(record["nodes"]))
    producers = {value: (n, r) for n, node in enumerate(nodes) for r, value in enumerate(node.results)}
    values = tuple(_value(item, i, producers.get(i)) for i, item in enumerate(record["values"]))
    inputs, outputs = _ints(record["inputs"], "inputs"), _ints(record["outputs"], "outputs")
    return record["name"], values, nodes, inputs, outputs, tuple(_pair(item, "updates") for item in record["updates"])


def _value(item: Any, id: int, producer: tuple[int, int] | None) -> Value:
    take(item, f"value {id}", {"name": str, "shape": list, "dtype": str})
    return Value(
        id, TensorType(_ints(item["shape"], f"the shape of value {id}"), item["dtype"]), item["name"], producer
    )


def _node(item: Any, n: int) -> Node:
    what = f"node {n}"
    take(item, what, {"op": str, "operands": list, "results": list}, ("attrs", "views", "source", "rule"))
    operands: tuple[Operand, ...] = tuple(
        _ints(o, f"a list operand of {what}") if isinstance(o, list) else None if o is None else _int(o, what)
        for o in item["operands"]
    )
    attrs = take({"attrs": item.get("attrs", {})}, what, {"attrs": dict})["attrs"]
    source = None
    if item.get("source") is not None:
        take(item["source"], f"the source of {what}", {"file": str, "line": int, "scope": str})
        source = SourceLine(**item["source"])
    return Node(
        item["op"],
        operands,
        _ints(item["results"], f"the results of {what}"),
        tuple((key, attr_from_json(value)) for key, value in attrs.items()),
        tuple(_pair(pair, f"the views of {what}") for pair in item.get("views", ())),
        source,
    )


def _int(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise GraphError(f"{what} holds {value!r} where a whole number is expected")
    return value


def _ints(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise GraphError(f"{what} is not a list")
    return tuple(_int(value, what) for value in values)


def _pair(value: Any, what: str) -> tuple[int, int]:
    pair = _ints(value, what)
    if len(pair) != 2:
        raise GraphError(f"{what} holds {value!r} where a pair is expected")
    return pair[0], pair[1]
