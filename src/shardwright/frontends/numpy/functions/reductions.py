"""Functions that reduce dims.

Six of them are ops; the others are written with those and pointwise ops, step by step as NumPy computes them, so
that they split over a mesh by themselves and round as NumPy rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ....spec.sharding import Shape
from ..dtypes import BOOL, FLOAT, INT, DType
from ..emit import axes_of, axis_of, cast, full, lift, node, reshaped
from ..registry import implements
from ..tracer import Tracer


def kept(shape: Shape, axes: tuple[int, ...], keepdims: Any) -> Shape:
    if keepdims:
        return tuple(1 if d in axes else size for d, size in enumerate(shape))
    return tuple(size for d, size in enumerate(shape) if d not in axes)


@lru_cache(maxsize=1024)
def _dtype(function: Callable[..., Any], source: DType, dtype: DType | None) -> DType:
    """NumPy's own answer: integers widen, booleans count."""
    found: DType = function(np.ones(1, source), **({} if dtype is None else {"dtype": dtype})).dtype
    return found


def _reduced(op: str, function: Callable[..., Any], a: Any, axis: Any, dtype: Any = None, keepdims: Any = False) -> Any:
    x = lift(a)
    axes = () if not x.shape and axis in (0, -1) else axes_of(axis, x.ndim)  # NumPy is as lenient
    wanted = _dtype(function, x.dtype, None if dtype is None else np.dtype(dtype))
    return node(op, [x], kept(x.shape, axes, keepdims), wanted, axis=tuple(sorted(axes)), keepdims=bool(keepdims))


@implements("sum")
def sum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return _reduced("reduce_sum", np.sum, a, axis, dtype, keepdims)


@implements("prod")
def prod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return _reduced("reduce_prod", np.prod, a, axis, dtype, keepdims)


@implements("max", "amax")
def max(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    _need_elements(np.max, a, axis)
    return _reduced("reduce_max", np.max, a, axis, None, keepdims)


@implements("min", "amin")
def min(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    _need_elements(np.min, a, axis)
    return _reduced("reduce_min", np.min, a, axis, None, keepdims)


def _need_elements(function: Callable[..., Any], a: Any, axis: Any) -> None:
    """NumPy's own error for nothing to choose from."""
    shape = lift(a).shape
    if 0 in shape:
        function(np.zeros([size if size < 2 else 1 for size in shape]), axis=axis)


@implements("any")
def any(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return _reduced("reduce_any", np.any, a, axis, None, keepdims)


@implements("all")
def all(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return _reduced("reduce_all", np.all, a, axis, None, keepdims)


@implements("ptp")
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return max(a, axis, keepdims=keepdims) - min(a, axis, keepdims=keepdims)


@implements("count_nonzero")
def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    x: Any = lift(a)
    return sum(x if x.dtype == BOOL else x != 0, axis, INT, keepdims=keepdims)


def _chosen(op: str, function: Callable[..., Any], a: Any, axis: Any, keepdims: Any) -> Any:
    x = lift(a)
    if axis is None:
        flat = _chosen(op, function, reshaped(x, (x.size,)), 0, False)
        return reshaped(flat, (1,) * x.ndim) if keepdims else flat
    if not x.shape and axis in (0, -1):
        return full(0, INT)
    axis = axis_of(axis, x.ndim)
    _need_elements(function, x, axis)
    return node(op, [x], kept(x.shape, (axis,), keepdims), INT, axis=axis, keepdims=bool(keepdims))


@implements("argmax")
def argmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    return _chosen("argmax", np.argmax, a, axis, keepdims)


@implements("argmin")
def argmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    return _chosen("argmin", np.argmin, a, axis, keepdims)


def _running(op: str, function: Callable[..., Any], a: Any, axis: Any, dtype: Any) -> Tracer:
    x = lift(a)
    if axis is None or not x.shape:
        x, axis = reshaped(x, (x.size,)), 0
    wanted = _dtype(function, x.dtype, None if dtype is None else np.dtype(dtype))
    return node(op, [x], x.shape, wanted, axis=axis_of(axis, x.ndim))


@implements("cumsum")
def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Tracer:
    return _running("cumsum", np.cumsum, a, axis, dtype)


@implements("cumprod")
def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Tracer:
    return _running("cumprod", np.cumprod, a, axis, dtype)


@implements("cumulative_sum")
def cumulative_sum(x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None) -> Tracer:
    return cumsum(x, axis, dtype)


@implements("cumulative_prod")
def cumulative_prod(x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None) -> Tracer:
    return cumprod(x, axis, dtype)


# Means.


def _count(x: Tracer, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[d] for d in axes)


def _divided(total: Any, count: float, wanted: DType | None = None) -> Tracer:
    """``total / count`` as NumPy's mean does it: with an integer count, hence in double, then cast back.

    Where the count is exact in the total's own float type the quotient is the same without the detour.
    """
    wanted = wanted or total.dtype
    if wanted == total.dtype and wanted.kind == "f" and count <= 2 ** (np.finfo(wanted).nmant + 1):
        return node("divide", [total, full(count, wanted)], total.shape, wanted)
    return cast(total / (np.intp(count) if isinstance(count, int) else np.float64(count)), wanted)


@implements("mean")
def mean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    x = lift(a)
    count = _count(x, axes_of(axis, x.ndim))
    half = dtype is None and x.dtype == np.float16
    if dtype is None:
        dtype = np.float32 if half else FLOAT if x.dtype.kind in "biu" else None
    total = sum(x, axis, dtype, keepdims=keepdims)
    if half and not total.shape:
        return _divided(total, count, x.dtype)
    return cast(_divided(total, count), x.dtype) if half else _divided(total, count)


@implements("average")
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False) -> Any:
    x: Any = lift(a)
    if weights is None:
        made = mean(x, axis, keepdims=keepdims)
        scale = full(x.size / made.size, made.dtype)
    else:
        weight: Any = _fitted_weights(x, lift(weights), axis)
        dtype = np.result_type(x.dtype, weight.dtype, *(["f8"] if x.dtype.kind in "biu" else []))
        scale = sum(weight, axis, dtype, keepdims=keepdims)
        made = sum(np.multiply(x, weight, dtype=dtype), axis, keepdims=keepdims) / scale
    return (made, np.copy(np.broadcast_to(scale, made.shape))) if returned else made


def _fitted_weights(x: Tracer, weight: Tracer, axis: Any) -> Any:
    if weight.shape == x.shape:
        return weight
    if axis is None:
        raise TypeError("Axis must be specified when shapes of a and weights differ.")
    axes = axes_of(axis, x.ndim)
    if weight.shape != tuple(x.shape[d] for d in axes):
        raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
    ordered: Any = np.transpose(weight, np.argsort(axes).tolist())
    return reshaped(ordered, tuple(size if d in axes else 1 for d, size in enumerate(x.shape)))


def squared(x: Any) -> Any:
    """The squared magnitude."""
    return np.square(x.real) + np.square(x.imag) if x.dtype.kind == "c" else np.square(x)


@implements("var")
def var(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False,
    *, mean: Any = None, correction: Any = None,
) -> Any:  # fmt: skip
    x: Any = lift(a)
    count = _count(x, axes_of(axis, x.ndim))
    if dtype is None and x.dtype.kind in "biu":
        dtype = FLOAT
    middle = _divided(sum(x, axis, dtype, keepdims=True), count) if mean is None else mean
    total = sum(squared(x - middle), axis, dtype, keepdims=keepdims)
    left = count - (ddof if correction is None else correction)
    return _divided(total, left if left > 0 else 0)


@implements("std")
def std(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False,
    *, mean: Any = None, correction: Any = None,
) -> Any:  # fmt: skip
    return np.sqrt(var(a, axis, dtype, out, ddof, keepdims, mean=mean, correction=correction))


# Reductions that pass over NaN.


def _without_nan(a: Any, instead: Any) -> tuple[Any, Any]:
    """The array with NaNs replaced, and where they were (None if there can be none)."""
    x: Any = lift(a)
    if x.dtype.kind not in "fc":
        return x, None
    mask = np.isnan(x)
    return np.where(mask, full(instead, x.dtype), x), mask


@implements("nansum")
def nansum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return sum(_without_nan(a, 0)[0], axis, dtype, keepdims=keepdims)


@implements("nanprod")
def nanprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return prod(_without_nan(a, 1)[0], axis, dtype, keepdims=keepdims)


@implements("nancumsum")
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Tracer:
    return cumsum(_without_nan(a, 0)[0], axis, dtype)


@implements("nancumprod")
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Tracer:
    return cumprod(_without_nan(a, 1)[0], axis, dtype)


def _best_number(best: Callable[..., Any], worst: float, a: Any, axis: Any, keepdims: Any) -> Any:
    x, mask = _without_nan(a, worst)
    found = best(x, axis, keepdims=keepdims)
    return found if mask is None else np.where(all(mask, axis, keepdims=keepdims), full(math.nan, x.dtype), found)


@implements("nanmax")
def nanmax(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return _best_number(max, -math.inf, a, axis, keepdims)


@implements("nanmin")
def nanmin(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    return _best_number(min, math.inf, a, axis, keepdims)


@implements("nanargmax")
def nanargmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    return argmax(_without_nan(a, -math.inf)[0], axis, keepdims=keepdims)


@implements("nanargmin")
def nanargmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    return argmin(_without_nan(a, math.inf)[0], axis, keepdims=keepdims)


@implements("nanmean")
def nanmean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    x, mask = _without_nan(a, 0)
    if mask is None:
        return mean(x, axis, dtype, keepdims=keepdims)
    total = sum(x, axis, dtype, keepdims=keepdims)
    return cast(total / sum(~mask, axis, INT, keepdims=keepdims), total.dtype)


@implements("nanvar")
def nanvar(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False,
    *, correction: Any = None,
) -> Any:  # fmt: skip
    x, mask = _without_nan(a, 0)
    ddof = ddof if correction is None else correction
    if mask is None:
        return var(x, axis, dtype, ddof=ddof, keepdims=keepdims)
    count = sum(~mask, axis, INT, keepdims=True)
    total = sum(x, axis, dtype, keepdims=True)
    away: Any = cast(x - cast(total / count, total.dtype), x.dtype)
    away = np.where(mask, full(0, x.dtype), away)
    square = (away * np.conjugate(away)).real if x.dtype.kind == "c" else np.multiply(away, away)
    spread = sum(square, axis, dtype, keepdims=keepdims)
    left = reshaped(count, spread.shape) - ddof
    made = cast(spread / left, spread.dtype)
    return np.where(left <= 0, full(math.nan, made.dtype), made)


@implements("nanstd")
def nanstd(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False,
    *, correction: Any = None,
) -> Any:  # fmt: skip
    return np.sqrt(nanvar(a, axis, dtype, ddof=ddof, keepdims=keepdims, correction=correction))
