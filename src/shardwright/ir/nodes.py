"""What graphs are made of: tensor types, values, nodes and their attributes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan, nan, prod
from typing import Any

from ..errors import GraphError
from ..spec.sharding import Shape

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
