"""Ops by name, for those that no NumPy call writes down: traced like any other, computed by their kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from stablehlo_kernels import FORMS

from shardwright.frontends import numpy as frontend
from shardwright.frontends.numpy import Prepared, numpy_dtype
from shardwright.frontends.numpy.dtypes import tensor_type
from shardwright.frontends.numpy.emit import lift, nodes
from shardwright.frontends.numpy.recorder import current
from shardwright.ir.graph import TensorType

Made = tuple[tuple[int, ...], Any]
"""Shape and dtype of a result."""


def prepare(op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Prepared:
    """What the NumPy frontend computes, and StableHLO's forms."""
    make = FORMS.get(op)
    if make is None:
        return frontend.prepare(op, attrs, results)
    kernel = make(attrs, results)

    def run(operands: Sequence[Any]) -> tuple[Any, ...]:
        made = kernel(*operands)
        parts = made if len(results) > 1 else (made,)
        return tuple(np.asarray(part).astype(numpy_dtype(r.dtype), copy=False) for part, r in zip(parts, results))

    return run


def call(op: str, operands: Sequence[Any], results: Sequence[Made], **attrs: Any) -> Any:
    """The result of an op on arrays; while a function is traced, a node of its graph."""
    made = [(tuple(shape), np.dtype(dtype)) for shape, dtype in results]
    if current() is not None:
        found: Sequence[Any] = nodes(op, [lift(operand) for operand in operands], made, **attrs)
    else:
        found = prepare(op, attrs, [tensor_type(*result) for result in made])([np.asarray(x) for x in operands])
    return found[0] if len(found) == 1 else tuple(found)


def alike(*operands: Any) -> list[Made]:
    """One result like the first operand."""
    return [(operands[0].shape, operands[0].dtype)]


def op(name: str, results: Callable[..., Sequence[Made]] = alike, **attrs: Any) -> Callable[..., Any]:
    """A function that is one op; ``results`` says what it makes of its operands."""
    return lambda *operands: call(name, operands, results(*operands), **attrs)
