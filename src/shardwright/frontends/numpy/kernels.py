"""How NumPy computes each op.

A kernel is made once for an op's attributes and result types, and then called with the operands.  Where NumPy would
return another dtype than the result's, `evaluate` casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir.graph import TensorType
from .dtypes import Array, DType, number_of, numpy_dtype
from .functions.ufuncs import ELEMENTWISE

Attributes = Mapping[str, Any]
Types = Sequence[TensorType]
Kernel = Callable[..., Any]
Maker = Callable[[Attributes, Types], Kernel]

KERNELS: dict[str, Maker] = {}
"""Op -> what makes its kernel."""


def kernel(*ops: str) -> Callable[[Maker], Maker]:
    """Enter the decorated function as the maker of these ops' kernels."""

    def register(make: Maker) -> Maker:
        KERNELS.update(dict.fromkeys(ops, make))
        return make

    return register


def plain(op: str, function: Kernel) -> None:
    """An op that is one function of its operands."""
    KERNELS[op] = lambda attrs, results: function


for _ufunc, _op in ELEMENTWISE.items():
    plain(_op, _ufunc)
for _op in ("matmul", "dot", "vdot", "outer", "where", "real", "imag"):
    plain(_op, getattr(np, _op))
for _op in ("core.constraint", "core.barrier"):
    plain(_op, lambda x: x)
plain("copy", lambda x: x.copy("K"))
plain("clip", lambda x, low, high: np.clip(x, low, high))
plain("fma", lambda x, y, z: x * y + z)


def _complex(x: Array, y: Array) -> Array:
    made = np.empty(np.broadcast_shapes(x.shape, y.shape), np.result_type(x, y, np.complex64))
    made.real, made.imag = x, y
    return made


plain("complex", _complex)


# Functions that NumPy lacks.


def sigmoid(x: Array) -> Array:
    """Of the negative magnitude, so that nothing overflows."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def leading_zeros(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    left = x.astype(f"u{x.dtype.itemsize}")
    count = np.full(x.shape, bits)
    while left.any():
        count -= left != 0
        left = left >> 1
    return count


plain("sigmoid", sigmoid)
plain("clz", leading_zeros)
plain("relu", lambda x: np.maximum(x, 0))
plain("rsqrt", lambda x: 1 / np.sqrt(x))
plain("silu", lambda x: x * sigmoid(x))


# Contractions.


@kernel("einsum")
def _einsum(attrs: Attributes, results: Types) -> Kernel:
    equation = attrs["equation"]
    return lambda *operands: np.einsum(equation, *operands)


@kernel("tensordot")
def _tensordot(attrs: Attributes, results: Types) -> Kernel:
    axes = attrs["axes"]
    return lambda a, b: np.tensordot(a, b, axes)


@kernel("dot_general")
def _dot_general(attrs: Attributes, results: Types) -> Kernel:
    batch = attrs.get("lhs_batch", ()), attrs.get("rhs_batch", ())
    inner = attrs.get("lhs_contracting", ()), attrs.get("rhs_contracting", ())

    def run(a: Array, b: Array) -> Any:
        names = [list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))]
        for i, j in (*zip(*batch), *zip(*inner)):
            names[1][j] = names[0][i]
        rest = [[n for d, n in enumerate(names[s]) if d not in (*batch[s], *inner[s])] for s in (0, 1)]
        return np.einsum(a, names[0], b, names[1], [names[0][d] for d in batch[0]] + rest[0] + rest[1])

    return run


# Reductions.


def _lowest(dtype: DType) -> Any:
    if dtype.kind == "b":
        return False
    return (
        np.iinfo(dtype).min if dtype.kind in "iu" else complex(-math.inf, -math.inf) if dtype.kind == "c" else -math.inf
    )


def _highest(dtype: DType) -> Any:
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else complex(math.inf, math.inf) if dtype.kind == "c" else math.inf


def _reduction(ufunc: np.ufunc, of_nothing: Callable[[DType], Any] | None = None) -> Maker:
    """``of_nothing`` is the result over no elements, where NumPy has none to offer."""

    def make(attrs: Attributes, results: Types) -> Kernel:
        dtype, axis, keepdims = numpy_dtype(results[0].dtype), attrs.get("axis"), bool(attrs.get("keepdims", False))
        reduce: Kernel = ufunc.reduce
        if of_nothing is None:
            return lambda x: reduce(x, axis, dtype, None, keepdims)
        initial = of_nothing(dtype)
        return lambda x: (
            reduce(x, axis, dtype, None, keepdims) if x.size else reduce(x, axis, dtype, None, keepdims, initial)
        )

    return make


KERNELS["reduce_sum"] = _reduction(np.add)
KERNELS["reduce_prod"] = _reduction(np.multiply)
KERNELS["reduce_any"] = _reduction(np.logical_or)
KERNELS["reduce_all"] = _reduction(np.logical_and)
KERNELS["reduce_max"] = _reduction(np.maximum, _lowest)
KERNELS["reduce_min"] = _reduction(np.minimum, _highest)


def _choice(function: Kernel) -> Maker:
    """Along ``axis``; without one, of all elements in their order."""

    def make(attrs: Attributes, results: Types) -> Kernel:
        axis, keepdims, shape = attrs.get("axis"), bool(attrs.get("keepdims", False)), results[0].shape

        def run(x: Array) -> Any:
            if x.size if axis is None else x.shape[axis]:
                return function(x, axis, keepdims=keepdims)
            # Of no elements there is no first one; 0 loses to any shard that has some, its best being the identity.
            return np.zeros(shape, np.intp)

        return run

    return make


KERNELS["argmax"] = _choice(np.argmax)
KERNELS["argmin"] = _choice(np.argmin)


def _running(ufunc: np.ufunc) -> Maker:
    def make(attrs: Attributes, results: Types) -> Kernel:
        axis, dtype = attrs["axis"], numpy_dtype(results[0].dtype)
        return lambda x: ufunc.accumulate(x, axis, dtype)

    return make


KERNELS["cumsum"] = _running(np.add)
KERNELS["cumprod"] = _running(np.multiply)


# Views and shapes.


@kernel("reshape", "squeeze", "expand_dims", "flatten")
def _reshape(attrs: Attributes, results: Types) -> Kernel:
    shape = results[0].shape
    return lambda x: x.reshape(shape)


@kernel("broadcast_to")
def _broadcast_to(attrs: Attributes, results: Types) -> Kernel:
    shape = results[0].shape
    return lambda x: np.broadcast_to(x, shape)


@kernel("broadcast_in_dim")
def _broadcast_in_dim(attrs: Attributes, results: Types) -> Kernel:
    shape, dims = results[0].shape, attrs.get("broadcast_dimensions")

    def run(x: Array) -> Array:
        aligned = [1] * len(shape)
        for size, d in zip(x.shape, range(len(shape) - x.ndim, len(shape)) if dims is None else dims):
            aligned[d] = size
        return np.broadcast_to(x.reshape(aligned), shape)

    return run


@kernel("transpose")
def _transpose(attrs: Attributes, results: Types) -> Kernel:
    permutation = attrs.get("permutation")
    return lambda x: x.transpose(permutation)


@kernel("flip")
def _flip(attrs: Attributes, results: Types) -> Kernel:
    axes = attrs["axis"]
    key = tuple(slice(None, None, -1) if d in axes else slice(None) for d in range(len(results[0].shape)))
    return lambda x: x[key]


def _window(attrs: Attributes) -> tuple[slice, ...]:
    return tuple(slice(*bounds) for bounds in zip(attrs["start"], attrs["stop"], attrs["step"]))


@kernel("slice")
def _slice(attrs: Attributes, results: Types) -> Kernel:
    key = _window(attrs)
    return lambda x: x[key]


@kernel("update_slice")
def _update_slice(attrs: Attributes, results: Types) -> Kernel:
    key = _window(attrs)

    def run(x: Array, value: Array) -> Array:
        made = x.copy("K")
        made[key] = value
        return made

    return run


@kernel("concatenate")
def _concatenate(attrs: Attributes, results: Types) -> Kernel:
    axis = attrs["axis"]
    return lambda parts: np.concatenate(parts, axis)


@kernel("pad")
def _pad(attrs: Attributes, results: Types) -> Kernel:
    shape, dtype, value = results[0].shape, numpy_dtype(results[0].dtype), number_of(attrs["value"])
    key = tuple(slice(low, size - high) for size, low, high in zip(shape, attrs["low"], attrs["high"]))

    def run(x: Array) -> Array:
        made = np.full(shape, value, dtype)
        made[key] = x
        return made

    return run


@kernel("roll")
def _roll(attrs: Attributes, results: Types) -> Kernel:
    shift, axis = attrs["shift"], attrs["axis"]
    return lambda x: np.roll(x, shift, axis)


@kernel("diagonal")
def _diagonal(attrs: Attributes, results: Types) -> Kernel:
    offset, axis1, axis2 = attrs.get("offset", 0), attrs.get("axis1", 0), attrs.get("axis2", 1)
    return lambda x: x.diagonal(offset, axis1, axis2)


# Indices and order.


@kernel("take")
def _take(attrs: Attributes, results: Types) -> Kernel:
    axis = attrs["axis"]
    return lambda x, index: x.take(index, axis)


@kernel("take_along_axis")
def _take_along_axis(attrs: Attributes, results: Types) -> Kernel:
    axis = attrs["axis"]
    return lambda x, index: np.take_along_axis(x, index, axis)


@kernel("scatter")
def _scatter(attrs: Attributes, results: Types) -> Kernel:
    before = (slice(None),) * attrs.get("axis", 0)

    def run(x: Array, index: Array, value: Array) -> Array:
        made = x.copy("K")
        made[(*before, index)] = value
        return made

    return run


@kernel("sort")
def _sort(attrs: Attributes, results: Types) -> Kernel:
    axis = attrs["axis"]
    return lambda x: np.sort(x, axis)


@kernel("argsort")
def _argsort(attrs: Attributes, results: Types) -> Kernel:
    axis, kind = attrs["axis"], "stable" if attrs.get("stable", False) else None
    return lambda x: x.argsort(axis, kind)


@kernel("tril")
def _tril(attrs: Attributes, results: Types) -> Kernel:
    k = attrs.get("k", 0)
    return lambda x: np.tril(x, k)


@kernel("triu")
def _triu(attrs: Attributes, results: Types) -> Kernel:
    k = attrs.get("k", 0)
    return lambda x: np.triu(x, k)


# Made of nothing.


@kernel("full")
def _full(attrs: Attributes, results: Types) -> Kernel:
    shape, dtype, value = results[0].shape, numpy_dtype(results[0].dtype), number_of(attrs["value"])
    if shape:
        return lambda: np.full(shape, value, dtype)
    number = np.array(value, dtype)
    number.flags.writeable = False  # all calls return this one
    return lambda: number


@kernel("arange")
def _arange(attrs: Attributes, results: Types) -> Kernel:
    (size,), dtype = results[0].shape, numpy_dtype(results[0].dtype)
    start, step = number_of(attrs["start"]), number_of(attrs["step"])
    return lambda: (np.arange(size) * step + start).astype(dtype, copy=False)


@kernel("cast")
def _cast(attrs: Attributes, results: Types) -> Kernel:
    dtype = numpy_dtype(results[0].dtype)
    return lambda x: x.astype(dtype, copy=False)
