"""`Graph`: the captured program, before any sharding.

Values and nodes are frozen and numbered; an op is a name plus attributes.  A node may have several results,
optional operands (None) and list operands (a tuple of values).  Nothing is ever changed in place: state is
*updates*, pairs (input i := output j).  A view owns no bytes; it names the operand whose bytes it shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan, nan, prod
from typing import Any

from ..errors import GraphError
from ..spec.sharding import Shape
from .wiring import Wiring

Attr = None | bool | int | float | str | tuple["Attr", ...]
"""What an attribute may be; lists become tuples, so that nodes can be hashed and compared."""
Attrs = tuple[tuple[str, Attr], ...]
Operand = int | None | tuple[int, ...]

ITEM_BYTES = {
    "bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8,
    "f8e4m3": 1, "f8e5m2": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16,
    "index": 8, "token": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type.

    >>> print(TensorType((16, 2048), "f32"), TensorType((), "bool").bytes)
    f32[16, 2048] 1
    """

    shape: Shape
    dtype: str = "f32"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        size = ITEM_BYTES.get(self.dtype)
        if size is None:
            known = ", ".join(ITEM_BYTES)
            raise GraphError(f"no element type is called {self.dtype!r}", rows=[("known", known)])
        return size

    @property
    def bytes(self) -> int:
        return self.elements * self.item_bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Source:
    """Where in the user's program a node comes from."""

    file: str
    line: int
    scope: str = ""
    """The module path or function, e.g. ``layers.3.attn.wq``."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.scope}" if self.scope else "")


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the program.  ``producer`` is (node, result), or None for an input."""

    id: int
    type: TensorType
    name: str
    producer: tuple[int, int] | None = None

    @property
    def shape(self) -> Shape:
        return self.type.shape


_PLAIN: frozenset[type] = frozenset({int})


def flat_operands(operands: Iterable[Operand]) -> tuple[int, ...]:
    """Lists flattened, absent ones left out."""
    if isinstance(operands, tuple) and _PLAIN.issuperset(map(type, operands)):
        return operands
    flat: list[int] = []
    for operand in operands:
        if isinstance(operand, tuple):
            flat.extend(operand)
        elif operand is not None:
            flat.append(operand)
    return tuple(flat)


@dataclass(frozen=True, slots=True)
class Node:
    """One op.  ``views`` are pairs (result, flat operand): that result shows that operand's bytes."""

    op: str
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    attrs: Attrs = ()
    views: tuple[tuple[int, int], ...] = ()
    source: Source | None = None
    inputs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The tensors that go in, lists flattened and absent ones left out: what a rule speaks of."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", flat_operands(self.operands))

    def attr(self, name: str, default: Any = None) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        return default


@dataclass(frozen=True)
class Graph:
    """A program.  Build one with `GraphBuilder`, or parse its text."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    updates: tuple[tuple[int, int], ...] = ()
    """Pairs (position in inputs, position in outputs): that output is the input's next state."""

    def type(self, value: int) -> TensorType:
        return self.values[value].type

    def types(self, values: Iterable[int]) -> list[TensorType]:
        return [self.values[value].type for value in values]

    def node_of(self, value: int) -> int | None:
        producer = self.values[value].producer
        return None if producer is None else producer[0]

    @cached_property
    def wiring(self) -> Wiring:
        """The graph as arrays."""
        return Wiring.of(self)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each value the nodes that read it, in program order, one entry a use."""
        found: list[list[int]] = [[] for _ in self.values]
        for n, node in enumerate(self.nodes):
            for value in node.inputs:
                found[value].append(n)
        return tuple(map(tuple, found))

    @cached_property
    def output_uses(self) -> tuple[int, ...]:
        """For each value how often it is returned."""
        counts = [0] * len(self.values)
        for value in self.outputs:
            counts[value] += 1
        return tuple(counts)

    @cached_property
    def by_name(self) -> Mapping[str, int]:
        return {value.name: value.id for value in self.values}

    def base_of(self, value: int) -> int:
        """The value that owns the bytes shown by a view (itself, if it owns them)."""
        while (producer := self.values[value].producer) is not None:
            node = self.nodes[producer[0]]
            shown = next((operand for result, operand in node.views if result == producer[1]), None)
            if shown is None:
                return value
            value = node.inputs[shown]
        return value

    def __str__(self) -> str:
        from .text import graph_text

        return graph_text(self)

    @staticmethod
    def parse(text: str) -> Graph:
        from .text import parse_graph

        return parse_graph(text)


def freeze_attr(value: Any) -> Attr:
    """Make an attribute hashable and plain; refuse what has no text form."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return nan if isnan(value) else float(value)  # one NaN for all, so that it equals itself in tuples
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple):
        return tuple(freeze_attr(item) for item in value)
    raise GraphError(
        f"an attribute cannot be of type {type(value).__name__}",
        help="use None, bool, int, float, str, or tuples of them",
    )


@dataclass
class GraphBuilder:
    """Adds values and nodes one by one.

    >>> b = GraphBuilder("mlp")
    >>> x, w = b.input((8, 16), name="x"), b.input((16, 4), name="w")
    >>> h = b.op("matmul", [x, w], [(8, 4)])
    >>> print(b.finish([h]))
    graph mlp(%x: f32[8, 16], %w: f32[16, 4]) {
      %2 = matmul(%x, %w) : f32[8, 4]
      return %2
    }
    """

    name: str = "main"
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _types: dict[TensorType, TensorType] = field(default_factory=dict)
    _attrs: dict[str, Attrs] = field(default_factory=dict)
    """Equal ones are one object: ten thousand values have some sixty types."""

    def input(self, shape: Sequence[int] | TensorType, dtype: str = "f32", name: str | None = None) -> int:
        value = self._value(_type(shape, dtype), name or f"arg{len(self.inputs)}", None)
        self.inputs.append(value)
        return value

    def op(
        self,
        op: str,
        operands: Sequence[Operand | list[int]],
        results: Sequence[Sequence[int] | TensorType],
        *,
        dtype: str = "f32",
        names: Sequence[str] = (),
        attrs: Mapping[str, Any] | None = None,
        views: Iterable[tuple[int, int]] = (),
        source: Source | None = None,
    ) -> Any:
        """Add a node; returns its result, or a tuple of them when there is not exactly one."""
        n = len(self.nodes)
        made = tuple(
            self._value(_type(result, dtype), names[r] if r < len(names) else None, (n, r))
            for r, result in enumerate(results)
        )
        frozen = tuple((key, freeze_attr(value)) for key, value in sorted((attrs or {}).items()))
        reads: tuple[Operand, ...] = tuple(
            tuple(operand) if isinstance(operand, list | tuple) else operand for operand in operands
        )
        # By their text: numbers that are equal need not be of one type.
        same = self._attrs.setdefault(repr(frozen), frozen)
        self.nodes.append(Node(op, reads, made, same, tuple(views), source))
        return made[0] if len(made) == 1 else made

    def finish(self, outputs: Sequence[int], updates: Iterable[tuple[int, int]] = ()) -> Graph:
        graph = Graph(
            self.name,
            tuple(self.values),
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(outputs),
            tuple(updates),
        )
        from .verify import verify

        return verify(graph)

    def _value(self, type: TensorType, name: str | None, producer: tuple[int, int] | None) -> int:
        id = len(self.values)
        base = name = name if name else str(id)
        suffix = 1
        while name in self._names:
            name, suffix = f"{base}_{suffix}", suffix + 1
        self._names.add(name)
        self.values.append(Value(id, self._types.setdefault(type, type), name, producer))
        return id


def _type(shape: Sequence[int] | TensorType, dtype: str) -> TensorType:
    return shape if isinstance(shape, TensorType) else TensorType(tuple(shape), dtype)
