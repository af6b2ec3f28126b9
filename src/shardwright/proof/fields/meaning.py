"""An op by the exact meaning that its record carries: `FieldArithmetic` is the `Arithmetic` of a field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.graph import TensorType
from ...spec.op_record import Arithmetic, Function, Meaning
from . import contract, moving, pointwise
from .modular import Field, FieldArray, choose
from .pointwise import Handler, Made, OpCall


def by_meaning(meaning: Meaning) -> Handler:
    """The handler of an op whose record carries this function."""

    def handler(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
        arithmetic: Arithmetic = FieldArithmetic(field)
        made = meaning(arithmetic, *operands, **call.attrs)
        return tuple(made) if isinstance(made, list | tuple) else made

    return handler


def _reduction(name: str) -> Callable[..., FieldArray]:
    def reduce(self: FieldArithmetic, x: Any, axis: Any = None, *, keepdims: bool = False) -> FieldArray:
        return self._call(pointwise.HANDLERS[f"reduce_{name}"], [x], axis=axis, keepdims=keepdims)

    return reduce


def _movement(move: Callable[..., Any]) -> Callable[..., FieldArray]:
    """Elements go elsewhere and stay what they are: NumPy's function, in both parts of the numbers."""

    def moved(self: FieldArithmetic, x: Any, *args: Any, **kwargs: Any) -> FieldArray:
        return self._array(x).map(lambda part: move(part, *args, **kwargs))

    return moved


class FieldArithmetic:
    """Arithmetic modulo a prime; functions are hashes."""

    def __init__(self, field: Field) -> None:
        self._field = field

    def _array(self, x: Any) -> FieldArray:
        return x if isinstance(x, FieldArray) else self._field.full((), x)

    def _call(self, handler: Handler, operands: Sequence[Any], op: str = "", **attrs: Any) -> FieldArray:
        made = handler(self._field, OpCall(op, attrs, (TensorType((), "f64"),)), [self._array(x) for x in operands])
        return made[0] if isinstance(made, tuple) else made

    def add(self, x: Any, y: Any) -> FieldArray:
        return self._field.add(self._array(x), self._array(y))

    def subtract(self, x: Any, y: Any) -> FieldArray:
        return self._field.subtract(self._array(x), self._array(y))

    def multiply(self, x: Any, y: Any) -> FieldArray:
        return self._field.multiply(self._array(x), self._array(y))

    def divide(self, x: Any, y: Any) -> FieldArray:
        return self._call(pointwise.divide, [x, y])

    def negative(self, x: Any) -> FieldArray:
        return self._call(pointwise.negative, [x])

    def maximum(self, x: Any, y: Any) -> FieldArray:
        return self._field.larger(self._array(x), self._array(y))

    def minimum(self, x: Any, y: Any) -> FieldArray:
        return self._field.smaller(self._array(x), self._array(y))

    def where(self, condition: Any, x: Any, y: Any) -> FieldArray:
        return choose(self._array(condition).truth, self._array(x), self._array(y))

    def matmul(self, x: Any, y: Any) -> FieldArray:
        return self._call(contract.matmul, [x, y])

    def einsum(self, equation: str, *operands: Any) -> FieldArray:
        return self._call(contract.einsum, operands, equation=equation)

    sum, prod = _reduction("sum"), _reduction("prod")
    max, min = _reduction("max"), _reduction("min")

    def cumsum(self, x: Any, axis: int) -> FieldArray:
        return self._call(moving.cumsum, [x], axis=axis)

    def full(self, shape: tuple[int, ...], value: Any) -> FieldArray:
        return self._field.full(shape, value)

    reshape, transpose, broadcast_to = _movement(np.reshape), _movement(np.transpose), _movement(np.broadcast_to)
    flip, roll = _movement(np.flip), _movement(np.roll)

    def concatenate(self, parts: Sequence[Any], axis: int = 0) -> FieldArray:
        return moving.join([self._array(part) for part in parts], axis)

    def take(self, x: Any, index: Any, axis: int) -> FieldArray:
        return self._call(moving.take, [x, index], axis=axis)

    def apply(self, function: Function, *operands: Any) -> FieldArray:
        """One that the proof knows to rise does so here, too: it is the op of that name."""
        name = _name(function)
        return self._call(pointwise.rising if name in pointwise.RISING else pointwise.hashed, operands, name)

    def rising(self, function: Function, x: Any) -> FieldArray:
        return self._call(pointwise.rising, [x], _name(function))

    def along(self, function: Function, x: Any, axis: int) -> FieldArray:
        rows = np.moveaxis(self._array(x).residue, axis, -1)
        size = rows.shape[-1]
        state = self._field.hash(self._field.word("along", _name(function), size), [rows[..., i] for i in range(size)])
        low, high = (((state >> np.uint64(shift)) & np.uint64(0xFFFF_FFFF)).astype(np.float64) for shift in (0, 32))
        made = self._field.hash(0, [low[..., None], high[..., None], np.arange(size, dtype=np.float64)])
        return self._field.from_hash(np.moveaxis(made.reshape(rows.shape), -1, axis))


def _name(function: Function) -> str:
    return function if isinstance(function, str) else str(getattr(function, "__name__", function))
