"""Graphs as text, printed and parsed back.

    graph mlp(%x: f32[8, 16], %w: f32[16, 4]) {
      %h = matmul(%x, %w) : f32[8, 4]  # model.py:12 in MLP.forward
      %a, %b = split(%h) {axis=0, sections=2} view[0<-0, 1<-0] : f32[4, 4], f32[4, 4]
      %c = concat([%a, %b], none) {axis=0} : f32[8, 4]
      return %c
      update %x := output 0
    }

With shardings, a tensor prints as ``f32[8@dp, 16]``; a name that is not a plain word is quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from ..errors import GraphError
from ..spec.notation import Reader, read_tensor
from ..spec.sharding import ShardingSpec
from ..spec.tensors import tensor_text
from .graph_data import GraphData, Parts
from .nodes import Attr, Attrs, Node, Operand, SourceLine, TensorType, Value, freeze_attr

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*\Z")
_LEADING = frozenset({"return", "update", "view", "in"})  # words that mean something else where a node begins

Specs = Mapping[int, ShardingSpec | None]


def quoted(name: str) -> str:
    return name if _WORD.match(name) else json.dumps(name)


def attr_text(value: Attr) -> str:
    """One attribute: words for None and booleans, JSON for strings, repr for numbers."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(attr_text, value)) + "]"
    return repr(value)


def attrs_text(attrs: Attrs) -> str:
    return " {" + ", ".join(f"{quoted(key)}={attr_text(value)}" for key, value in attrs) + "}" if attrs else ""


def source_text(source: SourceLine | None) -> str:
    if source is None:
        return ""
    scope = f" in {quoted(source.scope)}" if source.scope else ""
    return f"  # {quoted(source.file)}:{source.line}{scope}"


def node_text(node: Node, name: Callable[[int], str], type_text: Callable[[int], str], sources: bool = True) -> str:
    def operand_text(operand: Operand) -> str:
        if operand is None:
            return "none"
        if isinstance(operand, tuple):
            return "[" + ", ".join(map(name, operand)) + "]"
        return name(operand)

    left = ", ".join(map(name, node.results)) + " = " if node.results else ""
    views = " view[" + ", ".join(f"{r}<-{o}" for r, o in node.views) + "]" if node.views else ""
    types = " : " + ", ".join(map(type_text, node.results)) if node.results else ""
    op = json.dumps(node.op) if not left and node.op in _LEADING else quoted(node.op)
    call = f"{op}({', '.join(map(operand_text, node.operands))})"
    return f"{left}{call}{attrs_text(node.attrs)}{views}{types}{source_text(node.source) if sources else ''}"


def graph_text(graph: GraphData, specs: Specs | None = None, out_specs: Sequence[ShardingSpec | None] = ()) -> str:
    """The whole program; with ``specs`` every tensor shows its sharding."""

    def name(value: int) -> str:
        return "%" + quoted(graph.values[value].name)

    def type_text(value: int) -> str:
        type = graph.type(value)
        return tensor_text(type.dtype, type.shape, specs.get(value) if specs else None)

    inputs = ", ".join(f"{name(value)}: {type_text(value)}" for value in graph.inputs)
    lines = [f"graph {quoted(graph.name)}({inputs}) {{"]
    lines += ["  " + node_text(node, name, type_text) for node in graph.nodes]
    returned = []
    for i, value in enumerate(graph.outputs):
        spec = out_specs[i] if i < len(out_specs) else None
        returned.append(name(value) + (f" as {spec}" if spec is not None else ""))
    lines.append(f"  return {', '.join(returned)}".rstrip())
    for i, output in graph.updates:
        lines.append(f"  update {name(graph.inputs[i])} := output {output}")
    return "\n".join([*lines, "}"])


class GraphReader(Reader):
    pattern = re.compile(
        r"\s*(?:(?P<string>\"(?:[^\"\\]|\\.)*\")"
        r"|(?P<float>-?(?:\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|inf|nan))(?![A-Za-z0-9_.])"
        r"|(?P<int>-?\d+)(?![A-Za-z0-9_.])"
        r"|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.]*)"
        r"|(?P<punct>->|<-|:=|//|\S))"
    )

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values: list[Value] = []
        self.names: dict[str, int] = {}

    def fail(self, fact: str, at: int | None = None, help: str | None = None) -> GraphError:  # type: ignore[override]
        at = self.token.at if at is None else at
        start = self.text.rfind("\n", 0, at) + 1
        line = self.text[start:].split("\n", 1)[0]
        number = self.text.count("\n", 0, at) + 1
        raise GraphError(fact, text=line, at=at - start, rows=[("line", str(number))], help=help)

    def word(self, what: str) -> str:
        token = self.take()
        if token.kind == "string":
            return str(json.loads(token.text))
        if token.kind not in ("name", "int", "float"):
            self.next -= 1
            self.fail(f"expected {what}{self._found()}")
        return token.text

    def new_value(self, type: TensorType, name: str, at: int, producer: tuple[int, int] | None) -> int:
        if name in self.names:
            self.fail(f"%{name} is defined twice", at)
        self.names[name] = len(self.values)
        self.values.append(Value(len(self.values), type, name, producer))
        return self.names[name]

    def value(self) -> int:
        at = self.expect("%").at
        name = self.word("the name of a value")
        if name not in self.names:
            self.fail(f"%{name} is not defined yet", at)
        return self.names[name]

    def tensor_type(self) -> TensorType:
        dtype, shape, _, _ = read_tensor(self, None)
        return TensorType(shape, dtype)

    def graph(self) -> Parts:
        self.expect("graph")
        name = self.word("the name of the graph")
        self.expect("(")
        inputs: list[int] = []
        while not self.peek(")"):
            at = self.expect("%").at
            value_name = self.word("the name of an input")
            self.expect(":")
            inputs.append(self.new_value(self.tensor_type(), value_name, at, None))
            self.skip(",")
        self.expect(")")
        self.expect("{")
        nodes: list[Node] = []
        while not self.peek("return"):
            nodes.append(self.node(len(nodes)))
        self.expect("return")
        outputs: list[int] = []
        while self.peek("%"):
            outputs.append(self.value())
            self.skip(",")
        updates: list[tuple[int, int]] = []
        while self.skip("update"):
            at = self.token.at
            value = self.value()
            if value not in inputs:
                self.fail("only an input can be updated", at)
            self.expect(":=")
            self.expect("output")
            updates.append((inputs.index(value), self.integer("the position of an output")))
        self.expect("}")
        self.end()
        return name, tuple(self.values), tuple(nodes), tuple(inputs), tuple(outputs), tuple(updates)

    def node(self, number: int) -> Node:
        names: list[tuple[str, int]] = []
        while self.peek("%"):
            at = self.take().at
            names.append((self.word("the name of a result"), at))
            self.skip(",")
        if names:
            self.expect("=")
        op = self.word("the name of an op")
        self.expect("(")
        operands: list[Operand] = []
        while not self.peek(")"):
            operands.append(self.operand())
            self.skip(",")
        self.expect(")")
        attrs = self.attrs() if self.skip("{") else ()
        views = self.views() if self.skip("view") else ()
        results: list[int] = []
        if names:
            self.expect(":")
        for r, (name, at) in enumerate(names):
            results.append(self.new_value(self.tensor_type(), name, at, (number, r)))
            self.skip(",")
        source = self.source() if self.skip("#") else None
        return Node(op, tuple(operands), tuple(results), attrs, views, source)

    def operand(self) -> Operand:
        if self.skip("none"):
            return None
        if not self.skip("["):
            return self.value()
        items: list[int] = []
        while not self.peek("]"):
            items.append(self.value())
            self.skip(",")
        self.expect("]")
        return tuple(items)

    def attrs(self) -> Attrs:
        found: list[tuple[str, Attr]] = []
        while not self.peek("}"):
            key = self.word("the name of an attribute")
            self.expect("=")
            found.append((key, self.attr()))
            self.skip(",")
        self.expect("}")
        return tuple(found)

    def attr(self) -> Attr:
        token = self.take()
        if token.kind == "string":
            return str(json.loads(token.text))
        if token.kind == "int":
            return int(token.text)
        if token.kind == "float":
            return freeze_attr(float(token.text))
        if token.text in ("none", "true", "false"):
            return {"none": None, "true": True, "false": False}[token.text]
        if token.text != "[":
            self.next -= 1
            self.fail(f"expected the value of an attribute{self._found()}")
        items: list[Attr] = []
        while not self.peek("]"):
            items.append(self.attr())
            self.skip(",")
        self.expect("]")
        return tuple(items)

    def views(self) -> tuple[tuple[int, int], ...]:
        self.expect("[")
        found: list[tuple[int, int]] = []
        while not self.peek("]"):
            result = self.integer("a result")
            self.expect("<-")
            found.append((result, self.integer("an operand")))
            self.skip(",")
        self.expect("]")
        return tuple(found)

    def source(self) -> SourceLine:
        file = self.word("a file")
        self.expect(":")
        line = self.integer("a line")
        scope = self.word("a scope") if self.skip("in") else ""
        return SourceLine(file, line, scope)


def read_graph(text: str) -> Parts:
    """The parts of the graph that prints so; nothing says yet that they fit together."""
    return GraphReader(text).graph()
