"""One op on numbers that are known, by the name that it has here.

Movements have the core vocabulary's names (an op that is `same_as` one of them is read as that one), arithmetic and
comparisons their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.graph import Graph, Node, TensorType
from ...spec.sharding import Shape
from ..registry import find
from .numbers import Known, Number


@dataclass(frozen=True)
class Call:
    """One op on numbers that are known."""

    name: str
    attrs: Mapping[str, Any]
    operands: Sequence[Any]
    result: TensorType

    @property
    def shape(self) -> Shape:
        return self.result.shape

    @property
    def dtype(self) -> str:
        return self.result.dtype

    def known(self, numbers: Any) -> Known:
        return Known.of(self.shape, self.dtype, numbers)


Op = Callable[[Call], Number | None]


def call_name(node: Node, graph: Graph | None = None) -> tuple[str | None, Mapping[str, Any]]:
    """The name that an op has here, with its attributes in that vocabulary."""
    attrs = dict(node.attrs)
    short = node.op.split(".")[1] if node.op.startswith("aten.") else node.op
    if short.startswith("empty"):
        return None, attrs
    record = find(node.op)
    if record is None or record.same_as is None:
        return short, attrs
    if graph is None:
        ranks = 4, 4
    else:
        first = graph.type(node.inputs[0]).rank if node.inputs else 0
        ranks = first, graph.type(node.results[0]).rank
    try:
        op, said = record.same_as(attrs, *ranks)
    except (LookupError, TypeError, ValueError):
        return short, attrs
    return op, said if node.inputs else {**attrs, **said}
