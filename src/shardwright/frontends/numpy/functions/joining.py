"""Functions that join, cut and repeat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....spec.sharding import Shape
from .. import registry
from ..dtypes import Array, number_attr, stand_in, tiny
from ..emit import axes_of, axis_of, broadcast, cast, lift, node, reshaped, with_a_dim
from ..recorder import place
from ..registry import implements
from ..tracer import Tracer
from .indexing import taken
from .shaping import copied, moveaxis, ravel


@implements("concatenate", "concat")
def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind"
) -> Tracer:
    parts = [lift(array) for array in arrays]
    if axis is None:
        parts, axis = [reshaped(part, (part.size,)) for part in parts], 0
    if not parts:
        raise ValueError("need at least one array to concatenate")
    axis = axis_of(axis, parts[0].ndim) if parts[0].ndim else 0
    # NumPy checks shapes on arrays that have no elements along the axis.
    hollow = [stand_in((*part.shape[:axis], 0, *part.shape[axis + 1 :]), part.dtype) for part in parts]
    hollow = [array if part.ndim else stand_in((), part.dtype) for array, part in zip(hollow, parts)]
    shape = list(np.concatenate(hollow, axis).shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    found = np.concatenate([tiny(part.dtype) for part in parts], dtype=dtype, casting=casting).dtype
    if dtype is not None:
        parts = [cast(part, found) for part in parts]
    return node("concatenate", [parts], tuple(shape), found, axis=axis)


@implements("stack")
def stack(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind") -> Tracer:
    parts = [lift(array) for array in arrays]
    if not parts:
        raise ValueError("need at least one array to stack")
    if len({part.shape for part in parts}) != 1:
        raise ValueError("all input arrays must have the same shape")
    axis = axis_of(axis, parts[0].ndim + 1)
    columns = [reshaped(part, (*part.shape[:axis], 1, *part.shape[axis:])) for part in parts]
    return concatenate(columns, axis, dtype=dtype, casting=casting)


@implements("vstack")
def vstack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Tracer:
    return concatenate([np.atleast_2d(lift(part)) for part in tup], 0, dtype=dtype, casting=casting)


@implements("hstack")
def hstack(tup: Any, *, dtype: Any = None, casting: Any = "same_kind") -> Tracer:
    parts: list[Any] = [np.atleast_1d(lift(part)) for part in tup]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@implements("dstack")
def dstack(tup: Any) -> Tracer:
    return concatenate([np.atleast_3d(lift(part)) for part in tup], 2)


@implements("column_stack")
def column_stack(tup: Any) -> Tracer:
    parts = [lift(part) for part in tup]
    return concatenate([part if part.ndim >= 2 else reshaped(part, (part.size, 1)) for part in parts], 1)


@implements("append")
def append(arr: Any, values: Any, axis: Any = None) -> Tracer:
    return concatenate((arr, values), axis)


@implements("array_split")
def array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]:
    x = lift(ary)
    axis = axis_of(axis, x.ndim)
    parts = np.array_split(np.arange(x.shape[axis]), _known("array_split", indices_or_sections))
    return _slices(x, axis, parts)


@implements("split")
def split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]:
    x = lift(ary)
    axis = axis_of(axis, x.ndim)
    parts = np.split(np.arange(x.shape[axis]), _known("split", indices_or_sections))
    return _slices(x, axis, parts)


def _slices(x: Tracer, axis: int, parts: Sequence[Array]) -> list[Any]:
    """Views of consecutive parts; ``parts`` hold the places that go into each."""
    before = (slice(None),) * axis
    bounds = [(int(part[0]), int(part[-1]) + 1) if part.size else (0, 0) for part in parts]
    return [x[(*before, slice(start, stop))] for start, stop in bounds]


def _known(name: str, value: Any) -> Any:
    if isinstance(value, Tracer):
        raise registry.data_dependent(f"numpy.{name}")
    return value


@implements("hsplit")
def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    return split(ary, indices_or_sections, 1 if lift(ary).ndim > 1 else 0)


@implements("vsplit")
def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    if lift(ary).ndim < 2:
        raise ValueError("vsplit only works on arrays of 2 or more dimensions")
    return split(ary, indices_or_sections, 0)


@implements("dsplit")
def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    if lift(ary).ndim < 3:
        raise ValueError("dsplit only works on arrays of 3 or more dimensions")
    return split(ary, indices_or_sections, 2)


@implements("unstack")
def unstack(x: Any, /, *, axis: Any = 0) -> tuple[Any, ...]:
    if lift(x).ndim == 0:
        raise ValueError("Input array must be at least 1-d.")
    return tuple(moveaxis(x, axis, 0))


@implements("repeat")
def repeat(a: Any, repeats: Any, axis: Any = None) -> Tracer:
    x, counts = lift(a), np.asarray(_known("repeat", repeats))
    if not counts.size:
        counts = counts.astype(np.int64)  # NumPy takes an empty list, too
    if axis is None:
        x, axis = ravel(x), 0
    x = with_a_dim(x, axis)
    axis = axis_of(axis, x.ndim)
    size, before, after = x.shape[axis], x.shape[:axis], x.shape[axis + 1 :]
    if counts.size != 1:  # each element its own count: known here, so the places are known too
        return taken(x, lift(np.repeat(np.arange(size), counts)), axis)
    count = int(counts.flat[0])
    if count < 0:
        raise ValueError("repeats may not contain negative values.")
    spread = broadcast(reshaped(x, (*before, size, 1, *after)), (*before, size, count, *after))
    return _merged(spread, (*before, size * count, *after))


@implements("tile")
def tile(A: Any, reps: Any) -> Tracer:
    x, counts = lift(A), tuple(int(n) for n in np.atleast_1d(np.asarray(_known("tile", reps))))
    rank = max(x.ndim, len(counts))
    shape = (1,) * (rank - x.ndim) + x.shape
    counts = (1,) * (rank - len(counts)) + counts
    apart = tuple(size for dim in shape for size in (1, dim))
    spread = tuple(size for pair in zip(counts, shape) for size in pair)
    made = broadcast(reshaped(x, apart), spread)
    return _merged(made, tuple(count * dim for count, dim in zip(counts, shape)))


def _merged(x: Tracer, shape: Shape) -> Tracer:
    """A reshape that NumPy does by copying."""
    made = reshaped(x, shape)
    return copied(made) if made is x else made


@implements("roll")
def roll(a: Any, shift: Any, axis: Any = None) -> Tracer:
    x = lift(a)
    _known("roll", shift)
    if axis is None:
        return reshaped(roll(reshaped(x, (x.size,)), shift, 0), x.shape)
    axes = axes_of(axis, x.ndim) if not isinstance(axis, tuple | list) else tuple(axis_of(d, x.ndim) for d in axis)
    pairs = [(int(by), int(d)) for by, d in np.broadcast(np.asarray(shift), np.asarray(axes))]
    return node("roll", [x], x.shape, x.dtype, shift=tuple(by for by, _ in pairs), axis=tuple(d for _, d in pairs))


@implements("pad")
def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Tracer:
    x = lift(array)
    if mode != "constant":
        error = registry.unsupported_argument("numpy.pad", "mode")
        error.help = f"mode={mode!r}: only 'constant' is traced; concatenate slices of x for the others"
        raise place(error)
    if isinstance(pad_width, dict):
        widths: Any = np.zeros((x.ndim, 2), int)
        for axis, width in pad_width.items():
            widths[axis_of(axis, x.ndim)] = width
    else:
        widths = np.broadcast_to(np.asarray(_known("pad", pad_width)).astype(int), (x.ndim, 2))
    if (widths < 0).any():
        raise ValueError("index can't contain negative values")
    values = np.asarray(_known("pad", constant_values))
    if values.size != 1 and not (values == values.flat[0]).all():
        error = registry.unsupported_argument("numpy.pad", "constant_values")
        error.help = "one number for all sides; pad one side after the other for several"
        raise place(error)
    low, high = (tuple(int(width) for width in side) for side in widths.T)
    shape = tuple(size + a + b for size, a, b in zip(x.shape, low, high))
    value = number_attr(values.flat[0].astype(x.dtype), x.dtype)
    return node("pad", [x], shape, x.dtype, low=low, high=high, value=value)


@implements("diff")
def diff(a: Any, n: int = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Any:
    x: Any = lift(a)
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    if n == 0:
        return x
    if x.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    axis = axis_of(axis, x.ndim)
    ends = [None if end is None else lift(end) for end in (prepend, append)]
    line = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    sides = [[] if end is None else [end if end.ndim else broadcast(end, line)] for end in ends]
    if any(sides):
        x = concatenate([*sides[0], x, *sides[1]], axis)
    before = (slice(None),) * axis
    for _ in range(n):
        operator = np.not_equal if x.dtype == np.bool_ else np.subtract
        x = operator(x[(*before, slice(1, None))], x[(*before, slice(None, -1))])
    return x
