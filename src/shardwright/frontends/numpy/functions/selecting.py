"""Functions that choose, order or place elements, and pointwise functions that are not ufuncs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import registry
from ..aliasing import view_of
from ..dtypes import BOOL, INT, DType, tiny
from ..emit import (
    axis_of,
    broadcast,
    broadcast_shape,
    cast,
    full,
    lift,
    node,
    reshaped,
    with_a_dim,
)
from ..recorder import place
from ..registry import implements
from ..tracer import Tracer
from .indexing import taken


def _promoted(*values: Any) -> DType:
    """The dtype of operands together, where Python's numbers are weak."""
    found: DType = np.result_type(*(v if type(v) in (int, float, complex) else tiny(lift(v).dtype) for v in values))
    return found


def _lifted(value: Any, dtype: DType) -> Tracer:
    return full(value, dtype) if type(value) in (int, float, complex) else lift(value)


@implements("where")
def where(condition: Any, x: Any = None, y: Any = None, /) -> Tracer:
    if x is None and y is None:
        raise registry.data_dependent("numpy.where(condition)", "give what to choose from: np.where(condition, x, y)")
    dtype = _promoted(x, y)
    operands = [lift(condition), _lifted(x, dtype), _lifted(y, dtype)]
    made = node("where", operands, broadcast_shape(*(operand.shape for operand in operands)), dtype)
    made.scalar = False
    return made


@implements("select")
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    dtype = _promoted(*choicelist, default)
    made = cast(_lifted(default, dtype), dtype)
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        made = where(condition, cast(_lifted(choice, dtype), dtype), made)
    return made


@implements("clip")
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None) -> Any:
    """Written with ``maximum`` and ``minimum``."""
    x: Any = lift(a)
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if x.dtype.kind in "iu":  # bounds beyond the dtype bound nothing
        info = np.iinfo(x.dtype)
        low = None if type(low) is int and low <= info.min else low
        high = None if type(high) is int and high >= info.max else high
    if low is None and high is None:
        return np.positive(x)
    if low is None or high is None:
        return np.minimum(x, high) if low is None else np.maximum(x, low)
    dtype = _promoted(x, low, high)
    x = cast(x, dtype)
    return np.minimum(np.maximum(x, low), high)


@implements("round", "around")
def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    x: Any = lift(a)
    if x.dtype.kind == "b" and decimals == 0:
        return np.rint(x)
    if x.dtype.kind in "iu" and decimals >= 0:
        return np.copy(x)
    if decimals == 0:
        return np.rint(x)
    if x.dtype.kind == "c":
        return node("complex", [round(x.real, decimals), round(x.imag, decimals)], x.shape, x.dtype)
    scale = float(10 ** abs(decimals))
    made = np.rint(x * scale) / scale if decimals > 0 else np.rint(x / scale) * scale
    return registry.fit_in_place(x, made) if x.dtype.kind == "b" else cast(made, x.dtype)


@implements("fix")
def fix(x: Any, out: Any = None) -> Any:
    return np.trunc(lift(x))


@implements("astype")
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tracer:
    v = lift(x)
    made = cast(v, dtype)
    return made.alias() if made is v and copy else made


@implements("real")
def real(val: Any) -> Any:
    x = lift(val)
    if x.dtype.kind == "c":
        return view_of(x, node("real", [x], x.shape, np.empty(0, x.dtype).real.dtype))
    return view_of(x, _real(x), _real, lambda parent, value: value)


def _real(x: Tracer) -> Tracer:
    return node("real", [x], x.shape, x.dtype)


@implements("imag")
def imag(val: Any) -> Any:
    x = lift(val)
    if x.dtype.kind != "c":
        return full(0, x.dtype, x.shape)
    return view_of(x, node("imag", [x], x.shape, np.empty(0, x.dtype).imag.dtype))


@implements("angle")
def angle(z: Any, deg: bool = False) -> Any:
    x = lift(z)
    made: Any = np.arctan2(imag(x) if x.dtype.kind == "c" else 0, real(x))
    return made * (180 / math.pi) if deg else made


@implements("nan_to_num")
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    v: Any = lift(x)
    if not copy:
        raise place(registry.unsupported_argument("numpy.nan_to_num", "copy"))
    if v.dtype.kind not in "fc":
        return v.alias()
    if v.dtype.kind == "c":
        parts = [nan_to_num(part, copy, nan, posinf, neginf) for part in (v.real, v.imag)]
        return node("complex", parts, v.shape, v.dtype)
    info = np.finfo(v.dtype)
    v = np.where(np.isnan(v), full(nan, v.dtype), v)
    v = np.where(np.equal(v, math.inf), full(info.max if posinf is None else posinf, v.dtype), v)
    return np.where(np.equal(v, -math.inf), full(info.min if neginf is None else neginf, v.dtype), v)


@implements("isposinf")
def isposinf(x: Any, out: Any = None) -> Any:
    return np.isinf(lift(x)) & ~np.signbit(lift(x))


@implements("isneginf")
def isneginf(x: Any, out: Any = None) -> Any:
    return np.isinf(lift(x)) & np.signbit(lift(x))


@implements("isreal")
def isreal(x: Any) -> Any:
    return np.equal(imag(x), 0)


@implements("iscomplex")
def iscomplex(x: Any) -> Any:
    v = lift(x)
    return np.not_equal(imag(v), 0) if v.dtype.kind == "c" else full(False, BOOL, v.shape)


@implements("isclose")
def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    x, y = (v if type(v) in (int, float, complex) else lift(v) for v in (a, b))
    if isinstance(y, Tracer):
        y = cast(y, np.result_type(y.dtype, 1.0))
    elif isinstance(y, int):
        y = float(y)
    made: Any = np.less_equal(np.absolute(np.subtract(x, y)), atol + rtol * np.absolute(y))
    made = made & np.isfinite(y) | np.equal(x, y)
    return made | np.isnan(x) & np.isnan(y) if equal_nan else made


@implements("allclose")
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    return np.all(isclose(a, b, rtol, atol, equal_nan))


@implements("array_equal")
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    x, y = lift(a1), lift(a2)
    if x.shape != y.shape:
        return False
    same: Any = np.equal(x, y)
    if equal_nan:
        same = same | np.isnan(x) & np.isnan(y)
    return np.all(same)


@implements("iscomplexobj")
def iscomplexobj(x: Any) -> bool:
    return lift(x).dtype.kind == "c"


@implements("isrealobj")
def isrealobj(x: Any) -> bool:
    return lift(x).dtype.kind != "c"


@implements("result_type")
def result_type(*arrays_and_dtypes: Any) -> DType:
    found: DType = np.result_type(*(x.dtype if isinstance(x, Tracer) else x for x in arrays_and_dtypes))
    return found


@implements("can_cast")
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype if isinstance(from_, Tracer) else from_, to, casting)


# Indices.


@implements("take")
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    x, index = lift(a), lift(indices)
    if axis is None:
        x, axis = reshaped(x, (x.size,)), 0
    x = with_a_dim(x, axis)
    axis = axis_of(axis, x.ndim)
    if index.dtype.kind not in "biu":
        raise TypeError(f"Cannot cast array data from {index.dtype!r} to {INT!r} according to the rule 'safe'")
    if index.dtype == BOOL:
        index = cast(index, INT)
    if mode == "wrap":
        index = np.remainder(index, x.shape[axis])
    elif mode == "clip":
        index = np.minimum(np.maximum(index, 0), x.shape[axis] - 1)
    elif mode != "raise":
        raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
    return taken(x, index, axis)


@implements("take_along_axis")
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Tracer:
    x, index = lift(arr), lift(indices)
    if index.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if axis is None:
        x, axis = reshaped(x, (x.size,)), 0
    if x.ndim != index.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    axis = axis_of(axis, x.ndim)
    around = broadcast_shape(*((*v.shape[:axis], 1, *v.shape[axis + 1 :]) for v in (x, index)))
    x, index = (broadcast(v, (*around[:axis], v.shape[axis], *around[axis + 1 :])) for v in (x, index))
    return node("take_along_axis", [x, index], index.shape, x.dtype, axis=axis)


# Order.


def _flat(a: Any, axis: Any) -> tuple[Tracer, int]:
    x = lift(a)
    if axis is None:
        return reshaped(x, (x.size,)), 0
    return x, axis_of(axis, x.ndim)


@implements("sort")
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tracer:
    x, axis = _flat(a, axis)
    return node("sort", [x], x.shape, x.dtype, axis=axis)


@implements("argsort")
def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tracer:
    """Which of two equal elements comes first is NumPy's choice, unless the order is to be stable."""
    x, axis = _flat(with_a_dim(lift(a), axis), axis)
    attrs = {"stable": True} if stable or kind in ("stable", "mergesort") else {}
    return node("argsort", [x], x.shape, INT, axis=axis, **attrs)


# Triangles and diagonals.


def _triangle(op: str, m: Any, k: int) -> Tracer:
    x = lift(m)
    if x.ndim == 1:
        x = broadcast(x, (x.size, x.size))
    if x.ndim == 0:
        raise TypeError("an array of at least one dim is needed")
    return node(op, [x], x.shape, x.dtype, k=int(k))


@implements("tril")
def tril(m: Any, k: int = 0) -> Tracer:
    return _triangle("tril", m, k)


@implements("triu")
def triu(m: Any, k: int = 0) -> Tracer:
    return _triangle("triu", m, k)


@implements("diag")
def diag(v: Any, k: int = 0) -> Any:
    x = lift(v)
    if x.ndim == 2:
        return np.diagonal(x, k)
    if x.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    row: Any = np.pad(x, (k, 0) if k >= 0 else (0, -k))
    square = broadcast(lift(row), (row.size, row.size))
    return tril(triu(square, k), k)


@implements("copyto")
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, Tracer):
        np.asarray(src)  # says why a traced value cannot go into an array of numbers
    given = getattr(src, "dtype", None)
    if given is not None and not np.can_cast(given, dst.dtype, casting):
        raise TypeError(f"Cannot cast array data from {given!r} to {dst.dtype!r} according to the rule {casting!r}")
    dst[...] = src if where is True else np.where(where, _lifted(src, dst.dtype), dst)
