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

from ...ir.graph import TensorType
from . import arithmetic, aten, byrule, moving
from .handlers import HANDLERS, MEANINGS, evaluate
from .modular import PRIMES, Field, FieldArray, Floats, choose
from .pointwise import OpCall

for _family in (byrule, aten):
    # These two look other ops up while they compute, so they enter the table from outside.
    HANDLERS.update(_family.HANDLERS)
    MEANINGS.update(_family.MEANINGS)
HANDLERS.update(arithmetic.handlers(MEANINGS.__getitem__))

Call = Callable[[Sequence[Any]], tuple[FieldArray, ...]]


def prepare_field(key: int, p: int) -> Callable[[str, Mapping[str, Any], Sequence[TensorType]], Call]:
    """A ``prepare`` over the field of ``p`` elements; ``key`` chooses the hash functions, the same on every device."""
    return prepare_in(Field(p, key))


def prepare_in(field: Field) -> Callable[[str, Mapping[str, Any], Sequence[TensorType]], Call]:
    """The same for a field that there is."""

    def prepare(op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Call:
        return partial(evaluate, field, OpCall(op, attrs, tuple(results)))

    return prepare


def apart(field: Field, kind: str, whole: FieldArray, ways: int, generator: np.random.Generator) -> list[FieldArray]:
    """Random parts that combine to a number by a reduction: all but one are arbitrary."""
    with np.errstate(all="ignore"):
        if kind in ("max", "min"):
            return _beaten(field, whole, ways, 1 if kind == "max" else -1, generator)
        parts = [field.random(generator, whole.shape) for _ in range(ways - 1)]
        if kind == "prod":
            parts = [FieldArray(np.maximum(part.residue, 1), np.exp(part.height / 8)) for part in parts]
            last = reduce(field.multiply, map(field.reciprocal, parts), whole)
        else:
            total = field.scale(whole, float(ways), float(ways)) if kind == "avg" else whole
            last = reduce(field.subtract, parts, total)
    at = int(generator.integers(ways))
    return [*parts[:at], last, *parts[at:]]


def _beaten(field: Field, whole: FieldArray, ways: int, sign: int, generator: np.random.Generator) -> list[FieldArray]:
    """Every element is on one of the devices, and something lower (sign 1) or higher (-1) on the others."""
    holder = generator.integers(ways, size=whole.shape)
    made = []
    for i in range(ways):
        other = field.random(generator, whole.shape)
        beaten = FieldArray(other.residue, whole.height - sign * (np.abs(other.height) + 0.01))
        made.append(choose(holder == i, whole, beaten))
    return made


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


__all__ = ["PRIMES", "Field", "FieldArray", "FieldArrays", "Floats", "apart", "prepare_field", "prepare_in"]
