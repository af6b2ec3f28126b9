"""Functions that move no data: reshape, transpose and their kin.  All of them make views; see `aliasing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....spec.sharding import Shape
from .. import registry
from ..aliasing import read_only, view_of
from ..dtypes import stand_in
from ..emit import axes_of, axis_of, broadcast, lift, node, only_ones_differ, reshaped, view_node
from ..recorder import place
from ..registry import implements
from ..tracer import Tracer
from .indexing import flipped


def regrouped(x: Tracer, shape: Shape) -> Tracer:
    """A reshape as NumPy's: surely a view if only dims of 1 come and go, otherwise perhaps a copy."""
    made = reshaped(x, shape)
    if only_ones_differ(x.shape, shape):
        return view_of(x, made, lambda parent: reshaped(parent, shape), lambda p, v: reshaped(v, p.shape))
    return view_of(x, made)


@implements("reshape")
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None) -> Tracer:
    x, shape = lift(a), newshape if shape is None else shape
    if order == "F":
        reverse = shape[::-1] if isinstance(shape, tuple | list) else shape
        return transposed(reshape(transposed(x), reverse))
    _check_order("reshape", order)
    made = regrouped(x, stand_in(x.shape, x.dtype).reshape(shape).shape)
    return copied(made) if copy else made


def _check_order(name: str, order: str) -> None:
    if order != "C":
        error = registry.unsupported_argument(f"numpy.{name}", "order")
        error.help = f"order={order!r} depends on how memory is laid out; say order='C' or 'F'"
        raise place(error)


@implements("ravel")
def ravel(a: Any, order: str = "C") -> Tracer:
    if order in "KA" and lift(a).ndim < 2:
        order = "C"
    if order != "F":
        _check_order("ravel", order)
    made = reshape(a, -1, order=order)
    return view_of(lift(a), made)  # of an array with gaps it is a copy, even if the shape stays


@implements("expand_dims")
def expand_dims(a: Any, axis: Any) -> Tracer:
    x = lift(a)
    return regrouped(x, np.expand_dims(stand_in(x.shape, x.dtype), axis).shape)


@implements("squeeze")
def squeeze(a: Any, axis: Any = None) -> Tracer:
    x = lift(a)
    return regrouped(x, np.squeeze(stand_in(x.shape, x.dtype), axis).shape)


def _at_least(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(*arys: Any) -> Any:
        made = tuple(
            regrouped(x, function(stand_in(x.shape, x.dtype)).shape) if x.ndim < function_dims else x
            for x in map(lift, arys)
        )
        return made[0] if len(made) == 1 else made

    function_dims = int(function.__name__[-2])
    return handler


for _function in (np.atleast_1d, np.atleast_2d, np.atleast_3d):
    implements(_function.__name__)(_at_least(_function))


def permuted(x: Tracer, order: tuple[int, ...]) -> Tracer:
    """A transpose without regard to memory."""
    if order == tuple(range(x.ndim)):
        return x
    return view_node("transpose", x, tuple(x.shape[d] for d in order), permutation=order)


@implements("transpose", "permute_dims")
def transposed(a: Any, axes: Any = None) -> Tracer:
    x = lift(a)
    order = tuple(range(x.ndim))[::-1] if axes is None else axes_of(tuple(axes), x.ndim)
    if len(order) != x.ndim:
        raise ValueError("axes don't match array")
    back = tuple(order.index(d) for d in range(x.ndim))
    return view_of(x, permuted(x, order), lambda parent: permuted(parent, order), lambda p, v: permuted(v, back))


@implements("matrix_transpose", "linalg.matrix_transpose")
def matrix_transpose(x: Any, /) -> Tracer:
    if lift(x).ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {lift(x).ndim}")
    return swapaxes(x, -1, -2)


@implements("swapaxes")
def swapaxes(a: Any, axis1: Any, axis2: Any) -> Tracer:
    x = lift(a)
    order = list(range(x.ndim))
    i, j = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    order[i], order[j] = order[j], order[i]
    return transposed(x, order)


@implements("moveaxis")
def moveaxis(a: Any, source: Any, destination: Any) -> Tracer:
    x = lift(a)
    source, destination = (tuple(axes) if np.iterable(axes) else axes for axes in (source, destination))
    leaving, arriving = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    if len(leaving) != len(arriving):
        raise ValueError("`source` and `destination` arguments must have the same number of elements")
    order = [d for d in range(x.ndim) if d not in leaving]
    for to, d in sorted(zip(arriving, leaving)):
        order.insert(to, d)
    return transposed(x, order)


@implements("rollaxis")
def rollaxis(a: Any, axis: Any, start: Any = 0) -> Tracer:
    x = lift(a)
    axis, start = axis_of(axis, x.ndim), axis_of(start, x.ndim + 1) if start != x.ndim else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


@implements("broadcast_to")
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Tracer:
    x = lift(array)
    wanted = np.broadcast_to(stand_in(x.shape, x.dtype), shape).shape
    return view_of(x, broadcast(x, wanted), lambda parent: broadcast(parent, wanted), read_only)


@implements("broadcast_arrays")
def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Tracer, ...]:
    arrays = [lift(arg) for arg in args]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return tuple(array if array.shape == shape else broadcast_to(array, shape) for array in arrays)


@implements("flip")
def flip(m: Any, axis: Any = None) -> Tracer:
    x = lift(m)
    axes = tuple(sorted(axes_of(axis, x.ndim)))
    return view_of(x, flipped(x, axes), lambda parent: flipped(parent, axes), lambda p, v: flipped(v, axes))


@implements("flipud")
def flipud(m: Any) -> Tracer:
    return flip(m, 0)


@implements("fliplr")
def fliplr(m: Any) -> Tracer:
    return flip(m, 1)


@implements("rot90")
def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Tracer:
    x = lift(m)
    i, j = axes_of(tuple(axes), x.ndim)
    turns = k % 4
    if turns == 0:
        return flip(x, ())
    if turns == 2:
        return flip(x, (i, j))
    return swapaxes(flip(x, j), i, j) if turns == 1 else flip(swapaxes(x, i, j), j)


@implements("diagonal")
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tracer:
    x = lift(a)
    shape = np.diagonal(stand_in(x.shape, x.dtype), offset, axis1, axis2).shape
    attrs = {"offset": int(offset), "axis1": axis_of(axis1, x.ndim), "axis2": axis_of(axis2, x.ndim)}
    return view_of(
        x, view_node("diagonal", x, shape, **attrs), lambda p: view_node("diagonal", p, shape, **attrs), read_only
    )


@implements("linalg.diagonal")
def matrix_diagonal(x: Any, /, *, offset: int = 0) -> Tracer:
    return diagonal(x, offset, -2, -1)


@implements("copy")
def copy(a: Any, order: str = "K", subok: bool = False) -> Tracer:
    return copied(lift(a))


def copied(x: Tracer) -> Tracer:
    made = node("copy", [x], x.shape, x.dtype)
    made.scalar = False
    return made


@implements("shape")
def shape_of(a: Any) -> Shape:
    return lift(a).shape


@implements("ndim")
def ndim_of(a: Any) -> int:
    return lift(a).ndim


@implements("size")
def size_of(a: Any, axis: Any = None) -> int:
    x = lift(a)
    return int(np.prod([x.shape[d] for d in axes_of(axis, x.ndim)], dtype=int))
