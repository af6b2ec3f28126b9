"""Which tensors share memory, and what writing to one of them does to the others.

A graph's values never change.  So each tensor has a `Record`: the value it shows, and, if it is a view, the record it
was taken from and how.  All records over the same memory share a `Memory` that counts writes.  Writing through a view
puts the new part back, view by view, into what it was taken from; a record that has missed a write takes its view anew
when it is read next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....errors import TraceError
from ....ir.core import CONSTRAINT
from ....ir.graph import SourceLine, TensorType
from .recorder import Recorder


@dataclass(slots=True)
class Memory:
    writes: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """How a view shows its base: an op with one operand and one result."""

    op: str
    attrs: Mapping[str, Any]
    type: TensorType


class Record:
    """What the program knows of one tensor."""

    __slots__ = ("base", "memory", "seen", "value", "view")

    def __init__(self, value: int, base: Record | None = None, view: View | None = None) -> None:
        self.value = value
        self.base = base
        self.view = view
        self.memory: Memory = base.memory if base else Memory()
        self.seen = self.memory.writes
        """How many writes to the memory the value has in it."""


def read(recorder: Recorder, record: Record, source: SourceLine | None) -> int:
    """The value a tensor shows now."""
    writes = record.memory.writes
    if record.seen != writes:
        base, view = record.base, record.view
        assert base is not None, "the owner of memory sees each write"
        assert view is not None
        whole = read(recorder, base, source)
        shared = [] if view.op == CONSTRAINT else [(0, 0)]
        record.value = recorder.node(view.op, [whole], [view.type], view.attrs, shared, source)[0]
        record.seen = writes
    return record.value


def write(recorder: Recorder, record: Record, value: int, source: SourceLine | None) -> None:
    """From now on the tensor shows ``value``, and so does, in its part, whatever shares its memory."""
    chain = [record]
    while (base := chain[-1].base) is not None:
        chain.append(base)
    before = [read(recorder, part, source) for part in chain[1:]]
    record.memory.writes += 1
    for part, whole in zip(chain, [*before, None]):
        part.value, part.seen = value, part.memory.writes
        if whole is not None:
            assert part.view is not None
            value = _put_back(recorder, part.view, whole, value, source)


def _put_back(recorder: Recorder, view: View, whole: int, part: int, source: SourceLine | None) -> int:
    """``whole`` with ``part`` in the place that the view shows."""
    if view.op == CONSTRAINT:
        return part
    type = recorder.types[whole]
    name = view.op.split(".")[1]
    inverse: tuple[str, list[int], dict[str, Any]]
    if name in ("select", "slice", "diagonal", "as_strided"):
        inverse = (f"aten.{name}_scatter", [whole, part], dict(view.attrs))
    elif name == "transpose":
        inverse = (view.op, [part], dict(view.attrs))
    elif name == "t":
        inverse = (view.op, [part], {})
    elif name == "permute":
        dims = [dim % type.rank for dim in view.attrs["dims"]]
        inverse = (view.op, [part], {"dims": tuple(dims.index(i) for i in range(type.rank))})
    elif type.dtype == view.type.dtype and type.elements == view.type.elements and name in _SAME_ORDER:
        inverse = ("aten.view", [part], {"size": type.shape})
    else:
        raise TraceError(
            f"writing through {view.op} cannot be captured",
            rows=[("at", str(source))] if source else (),
            help="write to the tensor itself, or make a copy with .clone() first",
        )
    op, operands, attrs = inverse
    views = [(0, 0)] if len(operands) == 1 else []
    return recorder.node(op, operands, [type], attrs, views, source)[0]


_SAME_ORDER = ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "expand", "alias")
