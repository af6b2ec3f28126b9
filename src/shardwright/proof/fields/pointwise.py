"""Pointwise ops and reductions over a field.

Linear and bilinear ones are what they are, modulo p.  Any other function is a keyed hash of its operands: it keeps
nothing but "equal in, equal out", so a program that takes it for linear is found out.  Functions known to rise keep
the order of their operand.  What is rising stands here and is not taken from the rule book, whose word is on trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ...ir.graph import TensorType
from .modular import Field, FieldArray, choose


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op as a device runs it: its results have local shapes."""

    op: str
    attrs: Mapping[str, Any]
    results: Sequence[TensorType]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.results[0].shape

    def name(self, result: int = 0) -> tuple[Any, ...]:
        """What a hash that stands for this op is keyed with: never a shape, since those are local."""
        return (self.op, tuple(sorted(self.attrs.items(), key=lambda item: item[0])), result)


Made = FieldArray | tuple[FieldArray, ...]
Handler = Callable[[Field, OpCall, Sequence[Any]], Made]

RISING = (
    "exp", "exp2", "expm1", "cbrt", "tanh", "sinh", "arcsinh", "arctan", "floor", "ceil", "trunc", "rint", "sign",
    "sigmoid", "relu",
)  # fmt: skip
"""Rising everywhere.  A logarithm or a root is not: outside its domain it gives NaN, which a maximum keeps."""
IDENTITY = ("copy", "positive", "core.constraint", "core.barrier")
SCALING = ("conj", "real", "imag", "deg2rad", "rad2deg")
"""Linear, and nothing else is asked of them: each multiplies by a number of its own."""


def hashed(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Each result is a hash of the operands, element by element."""
    residues = [field.told(operand) for operand in operands if operand is not None]
    words = [field.word(*call.name(r)) for r in range(len(call.results))]
    return tuple(field.from_hash(field.hash(word, residues)) for word in words)


def monotone(sign: int) -> Handler:
    """A hash whose order is that of its operand, or the reverse."""

    def handler(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
        (x,) = operands
        state = field.hash(field.word(*call.name()), [field.told(x)])
        # Heights grow with depth; this keeps them in bounds.  Each function has its own slope and its own value
        # at zero, so that results of two of them are not level, nor are shares in a sum of two (h / (0 + h)).
        slope = sign * (1.0 + field.word("slope", call.op) * 2.0**-64)
        start = 0.5 + field.word("start", call.op) * 2.0**-64
        return FieldArray(field.from_hash(state).residue, np.arcsinh(x.height) * slope + start)

    return handler


rising, falling = monotone(1), monotone(-1)


def identity(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return operands[0]  # type: ignore[no-any-return]


def scaling(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return field.scale(operands[0], float(1 + field.word(*call.name()) % (field.p - 1)))


def negative(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return field.scale(operands[0], float(field.p - 1), -1.0)


def cast(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """To whole numbers it rises and is not linear; to booleans it is not even that."""
    dtype = call.results[0].dtype
    if dtype == "bool":
        return hashed(field, call, operands)
    return rising(field, call, operands) if dtype[0] in "iu" else operands[0]


def divide(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Of whole numbers it is rounded, and any function."""
    if call.results[0].dtype[:1] in ("i", "u"):
        return hashed(field, call, operands)
    return field.multiply(operands[0], field.reciprocal(operands[1]))


def clip(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    x, low, high = operands
    x = x if low is None else field.larger(x, low)
    return x if high is None else field.smaller(x, high)


def where(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    condition, left, right = operands
    return choose(condition.truth, left, right)


# -- reductions -----------------------------------------------------------------------------------------


def axes_of(call: OpCall, rank: int) -> tuple[int, ...]:
    """The dims that attribute ``axis`` names, all if it is None."""
    axis = call.attrs.get("axis")
    named = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(sorted({a % rank for a in named}))


def keep_dims(array: FieldArray, call: OpCall, axes: tuple[int, ...]) -> FieldArray:
    """Put back dims of size 1 where they are kept."""
    return array.map(lambda part: np.expand_dims(part, axes)) if call.attrs.get("keepdims") else array


def reduction(reduce: Callable[[Field, FieldArray, tuple[int, ...]], FieldArray]) -> Handler:
    def handler(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
        (x,) = operands
        axes = axes_of(call, len(x.shape))
        return keep_dims(reduce(field, x, axes), call, axes)

    return handler


def flattened(array: FieldArray, axes: tuple[int, ...]) -> FieldArray:
    """The dims that go, as one last dim."""
    kept = [d for d in range(len(array.shape)) if d not in axes]
    count = int(np.prod([array.shape[d] for d in axes], dtype=np.int64))
    shape = (*(array.shape[d] for d in kept), count)
    return array.map(lambda part: part.transpose([*kept, *axes]).reshape(shape))


def total_product(field: Field, array: FieldArray, axes: tuple[int, ...]) -> FieldArray:
    return field.prod(flattened(array, axes), -1)


def extreme(sign: int) -> Callable[[Field, FieldArray, tuple[int, ...]], FieldArray]:
    """The highest (sign 1) or lowest (-1); of nothing at all, something that every number beats."""

    def reduce(field: Field, array: FieldArray, axes: tuple[int, ...]) -> FieldArray:
        rows = flattened(array, axes)
        if not rows.shape[-1]:
            shape = rows.shape[:-1]
            return FieldArray(np.zeros(shape), np.full(shape, -sign * inf))
        at = np.argmax(sign * rows.height, axis=-1)[..., None]
        return rows.map(lambda part: np.take_along_axis(part, at, -1)[..., 0])

    return reduce


highest, lowest = reduction(extreme(1)), reduction(extreme(-1))

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(RISING, rising),
    **dict.fromkeys(IDENTITY, identity),
    **dict.fromkeys(SCALING, scaling),
    "negative": negative,
    "cast": cast,
    "add": lambda field, call, operands: field.add(*operands),
    "subtract": lambda field, call, operands: field.subtract(*operands),
    "multiply": lambda field, call, operands: field.multiply(*operands),
    "divide": divide,
    "reciprocal": lambda field, call, operands: field.reciprocal(*operands),
    **dict.fromkeys(("maximum", "fmax"), lambda field, call, operands: field.larger(*operands)),
    **dict.fromkeys(("minimum", "fmin"), lambda field, call, operands: field.smaller(*operands)),
    "clip": clip,
    "where": where,
    "reduce_sum": reduction(Field.sum),
    "reduce_prod": reduction(total_product),
    **dict.fromkeys(("reduce_max", "reduce_any"), highest),
    **dict.fromkeys(("reduce_min", "reduce_all"), lowest),
}

MEANINGS: dict[str, Handler] = {
    "pointwise": hashed,
    "pointwise rising": rising,
    "pointwise falling": falling,
    "pointwise linear": scaling,
    "reduce sum": HANDLERS["reduce_sum"],
    "reduce prod": HANDLERS["reduce_prod"],
    "reduce max": highest,
    "reduce min": lowest,
}
"""What a record may say of an op that has no line above."""
