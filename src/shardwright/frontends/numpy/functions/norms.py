"""Norms of vectors and matrices, written with reductions; those that need singular values are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....errors import TraceError
from ..dtypes import FLOAT
from ..emit import axes_of, cast, full, lift, reshaped
from ..recorder import place
from ..registry import implements
from .reductions import kept, max, min, squared, sum


@implements("linalg.norm")
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """NumPy's, but for those that need singular values."""
    v: Any = lift(x)
    if v.dtype.kind in "biu":
        v = cast(v, FLOAT)
    if axis is None and (ord is None or (ord in ("f", "fro") and v.ndim == 2) or (ord == 2 and v.ndim == 1)):
        return _euclidean(v, keepdims)
    axes = tuple(range(v.ndim)) if axis is None else axis if isinstance(axis, tuple) else (int(axis),)
    if len(axes) == 1:
        return _vector_norm(v, ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix_norm(v, ord, axes_of(axes, v.ndim), keepdims)
    raise ValueError("Improper number of dimensions to norm.")


def _euclidean(v: Any, keepdims: Any) -> Any:
    """Of all elements.  NumPy flattens and takes a dot product; the sum of squares splits over any dim."""
    if v.ndim == 1:
        parts = [v.real, v.imag] if v.dtype.kind == "c" else [v]
        dots: list[Any] = [np.dot(part, part) for part in parts]
        total = dots[0] + dots[1] if len(dots) == 2 else dots[0]
    else:
        total = sum(squared(v))
    made = np.sqrt(total)
    return reshaped(made, (1,) * v.ndim) if keepdims else made


def _max_or_zero(v: Any, axis: Any, keepdims: Any) -> Any:
    """The greatest magnitude; that of nothing is 0."""
    axes = axes_of(axis, v.ndim)
    if 0 in (v.shape[d] for d in axes):
        return full(0, v.dtype, kept(v.shape, axes, keepdims))
    return max(v, axis, keepdims=keepdims)


def _conjugate_square(v: Any) -> Any:
    return (np.conjugate(v) * v).real if v.dtype.kind == "c" else v * v


def _vector_norm(v: Any, ord: Any, axis: Any, keepdims: Any) -> Any:
    if isinstance(ord, str):
        raise ValueError(f"Invalid norm order '{ord}' for vectors")
    if ord is None or ord == 2:
        return np.sqrt(sum(_conjugate_square(v), axis, keepdims=keepdims))
    if ord == 0:
        return sum(cast(v != 0, np.empty(0, v.dtype).real.dtype), axis, keepdims=keepdims)
    if ord in (math.inf, -math.inf):
        return (_max_or_zero if ord > 0 else min)(np.absolute(v), axis, keepdims=keepdims)
    if ord == 1:
        return sum(np.absolute(v), axis, keepdims=keepdims)
    total = sum(np.absolute(v) ** ord, axis, keepdims=keepdims)
    return total ** np.reciprocal(ord, dtype=total.dtype)


def _matrix_norm(v: Any, ord: Any, axes: tuple[int, ...], keepdims: Any) -> Any:
    if ord in (None, "fro", "f"):
        return np.sqrt(sum(_conjugate_square(v), axes, keepdims=keepdims))
    if ord not in (1, -1, math.inf, -math.inf):
        raise place(
            TraceError(
                f"ord={ord!r} of numpy.linalg.norm is not supported in a traced function",
                help="supported for matrices: None, 'fro', 1, -1, inf, -inf; the others need singular values",
            )
        )
    summed, chosen = axes if ord in (1, -1) else axes[::-1]
    best = _max_or_zero if ord > 0 else min
    made = best(sum(np.absolute(v), summed, keepdims=True), chosen, keepdims=True)
    return made if keepdims else reshaped(made, kept(v.shape, axes, False))


@implements("linalg.vector_norm")
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: Any = False, ord: Any = 2) -> Any:
    v = lift(x)
    if axis is None:
        made = norm(reshaped(v, (v.size,)), ord, 0)
        return reshaped(made, (1,) * v.ndim) if keepdims else made
    return norm(v, ord, axis, keepdims)


@implements("linalg.matrix_norm")
def matrix_norm(x: Any, /, *, keepdims: Any = False, ord: Any = "fro") -> Any:
    return norm(x, ord, (-2, -1), keepdims)
