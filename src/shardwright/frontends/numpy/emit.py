"""Writing down ops: what every family of functions uses.

`node` writes an op and returns its result as a tracer; `lift` makes a tracer of whatever meets one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import TraceError
from ...spec.sharding import Shape
from .dtypes import Array, DType, number_attr, tensor_type
from .recorder import Recorder, check_current, current, same_content
from .tracer import Tracer

Operands = Sequence[Tracer | list[Tracer] | None]


def recorder() -> Recorder:
    now = current()
    assert now is not None  # whoever calls this was called with a tracer of the current trace
    return now


def nodes(op: str, operands: Operands, results: Sequence[tuple[Shape, DType]], /, **attrs: Any) -> tuple[Tracer, ...]:
    """Write down an op with any number of results."""
    to = recorder()
    reads = [
        [_read(item) for item in operand] if isinstance(operand, list) else None if operand is None else _read(operand)
        for operand in operands
    ]
    made = to.op(op, reads, [tensor_type(shape, dtype) for shape, dtype in results], attrs, False)
    return tuple(Tracer(to, value, shape, dtype, not shape) for value, (shape, dtype) in zip(made, results))


def node(op: str, operands: Operands, shape: Shape, dtype: DType, /, **attrs: Any) -> Tracer:
    """Write down an op with one result.  A result without dims counts as a number, as with NumPy."""
    return nodes(op, operands, [(shape, dtype)], **attrs)[0]


def view_node(op: str, operand: Tracer, shape: Shape, /, **attrs: Any) -> Tracer:
    """Write down an op whose result shows its operand's bytes, in another order or not all of them."""
    to = recorder()
    (made,) = to.op(op, [_read(operand)], [tensor_type(shape, operand.dtype)], attrs, True)
    to.strided.add(made)
    return Tracer(to, made, shape, operand.dtype, not shape)


def _read(tracer: Tracer) -> int:
    check_current(tracer.recorder)
    return tracer.value


def full(value: Any, dtype: DType, shape: Shape = ()) -> Tracer:
    """All elements alike."""
    return node("full", [], shape, dtype, value=number_attr(value, dtype))


def lift(value: Any, dtype: DType | None = None) -> Tracer:
    """A tracer of anything that NumPy takes for an array; ``dtype`` is for plain Python numbers."""
    if isinstance(value, Tracer):
        return value
    array: Array = np.asarray(value, dtype=dtype if isinstance(value, int | float | complex) else None)
    if array.dtype.kind not in "biufc":
        raise TraceError(
            f"{type(value).__name__} of element type {array.dtype} meets a traced array",
            help="arrays of numbers and booleans can be traced",
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.size and uniform(array):
        made = full(array.flat[0], array.dtype, array.shape)
    else:
        to = recorder()
        made = Tracer(to, to.const(array), array.shape, array.dtype)
    made.scalar = not isinstance(value, np.ndarray) and not array.shape
    return made


def uniform(array: Array) -> bool:
    """Whether all elements are alike, bit by bit."""
    if array.size <= 1:
        return True
    first = array.flat[0]
    # Most arrays that are not uniform differ soon; look there before reading all of it.
    if not same_content(np.asarray(array.flat[-1]), np.asarray(first)):
        return False
    return same_content(array, np.broadcast_to(first, array.shape))


def cast(value: Tracer, dtype: Any) -> Tracer:
    """``value`` as this dtype; itself if it has it."""
    dtype = np.dtype(dtype)
    if value.dtype == dtype:
        return value
    made = node("cast", [value], value.shape, dtype, dtype=tensor_type((), dtype).dtype)
    made.scalar = value.scalar
    return made


def reshaped(value: Tracer, shape: Shape) -> Tracer:
    """A reshape without regard to who else sees the memory; nothing is written if the shape is the same.

    It shows its operand's bytes, unless those do not stand in order and dims are merged: then it has to copy.
    """
    if value.shape == shape:
        return value
    to, read = recorder(), _read(value)
    strided = read in to.strided
    same = only_ones_differ(value.shape, shape)
    (made,) = to.op("reshape", [read], [tensor_type(shape, value.dtype)], {}, same or not strided)
    if strided and same:
        to.strided.add(made)
    return Tracer(to, made, shape, value.dtype, not shape)


def only_ones_differ(left: Shape, right: Shape) -> bool:
    """Whether two shapes are the same but for dims of 1."""
    return [size for size in left if size != 1] == [size for size in right if size != 1]


def broadcast(value: Tracer, shape: Shape) -> Tracer:
    return value if value.shape == shape else view_node("broadcast_to", value, shape)


def axis_of(axis: Any, ndim: int) -> int:
    """A dim as a number from 0, or NumPy's error."""
    place = operator.index(axis)
    if not -ndim <= place < ndim:
        raise np.exceptions.AxisError(place, ndim)
    return place % ndim


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Dims as numbers from 0, in the order given; None means all."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis_of(a, ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ValueError("duplicate value in 'axis'")
    return axes


def with_a_dim(value: Tracer, axis: Any) -> Tracer:
    """Some functions take an array without dims for one of one element, if the axis is 0 or -1."""
    return reshaped(value, (1,)) if not value.shape and axis in (0, -1) else value


def broadcast_shape(*shapes: Shape) -> Shape:
    """The common shape, or NumPy's error of ufuncs."""
    distinct = {shape for shape in shapes if shape}
    if len(distinct) <= 1:
        return distinct.pop() if distinct else ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " ".join(str(shape).replace(" ", "") for shape in shapes)
        raise ValueError(f"operands could not be broadcast together with shapes {shown} ") from None
