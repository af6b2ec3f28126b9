"""Ops over a prime field, in the form in which an engine takes them from a frontend.

`prepare_field` stands in for a frontend's ``prepare`` and `FieldArrays` for the array operations behind collectives,
so the virtual mesh runs a Program over the field as it would over NumPy.

>>> field = Field(PRIMES[0])
>>> add = prepare_field(0, PRIMES[0])("add", {}, [TensorType((), "f32")])
>>> int(add([field.full((), -1), field.full((), 3)])[0].residue)
2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from ..ir.graph import TensorType
from . import aten, byrule, moving
from .handlers import HANDLERS, MEANINGS, handler_of, opaque
from .modular import PRIMES, Field, FieldArray, Floats
from .pointwise import Handler, OpCall

for _family in (byrule, aten):
    # These two look other ops up while they compute, so they enter the table from outside.
    HANDLERS.update(_family.HANDLERS)
    MEANINGS.update(_family.MEANINGS)

Call = Callable[[Sequence[Any]], tuple[FieldArray, ...]]


def prepare_field(key: int, p: int) -> Callable[[str, Mapping[str, Any], Sequence[TensorType]], Call]:
    """A ``prepare`` over the field of ``p`` elements; ``key`` chooses the hash functions, the same on every device."""
    field = Field(p, key)

    def prepare(op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Call:
        return partial(_run, field, handler_of(op) or opaque, OpCall(op, attrs, tuple(results)))

    return prepare


def _run(field: Field, handler: Handler, call: OpCall, operands: Sequence[Any]) -> tuple[FieldArray, ...]:
    # Heights may overflow, and nothing may come of the heights of empty maxima.
    with np.errstate(all="ignore"):
        made = handler(field, call, operands)
    results = made if isinstance(made, tuple) else (made,)
    return tuple(replace(array, dtype=type.dtype) for array, type in zip(results, call.results))


class FieldArrays:
    """The array operations behind collectives, over a field."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def concatenate(self, parts: Sequence[FieldArray], dim: int) -> FieldArray:
        return moving.join(parts, dim)

    def combine(self, kind: str, parts: Sequence[FieldArray]) -> FieldArray:
        field = self.field
        with np.errstate(all="ignore"):
            if kind == "avg":
                total = reduce(field.add, parts)
                total = field.scale(total, float(pow(len(parts), -1, field.p)), 1.0 / len(parts))
            else:
                ways = {"sum": field.add, "prod": field.multiply, "max": field.larger, "min": field.smaller}
                total = reduce(ways[kind], parts)
            return replace(total, dtype=parts[0].dtype)

    def part(self, array: FieldArray, dim: int, start: int, stop: int) -> FieldArray:
        where = (slice(None),) * dim + (slice(start, stop),)
        return array.map(lambda numbers: numbers[where])

    def neutral_like(self, kind: str, array: FieldArray) -> FieldArray:
        return self.field.full(array.shape, 1 if kind == "prod" else 0)

    def number(self, value: int) -> FieldArray:
        return self.field.counting(np.asarray(value, np.int64))

    def shape(self, array: FieldArray) -> tuple[int, ...]:
        return array.shape

    def item_bytes(self, array: FieldArray) -> int:
        return array.residue.itemsize


__all__ = ["PRIMES", "Field", "FieldArray", "FieldArrays", "Floats", "prepare_field"]
