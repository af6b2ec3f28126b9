"""Ops that move elements, look them up, count or sort them, over a field.

An index is any number of the field, folded to the size of what it points into: the same place in every run, and
always one that exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .modular import Field, FieldArray, choose
from .pointwise import Handler, Made, OpCall, keep_dims

Places = NDArray[np.int64]


def transpose(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return operands[0].map(lambda part: np.transpose(part, call.attrs.get("permutation")))  # type: ignore[no-any-return]


def reshape(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return operands[0].map(lambda part: part.reshape(call.shape))  # type: ignore[no-any-return]


def broadcast_to(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return operands[0].map(lambda part: np.broadcast_to(part, call.shape))  # type: ignore[no-any-return]


def broadcast_in_dim(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    (x,) = operands
    dims = call.attrs.get("broadcast_dimensions")
    if dims is None:
        return broadcast_to(field, call, operands)
    shape = [1] * len(call.shape)
    for d, size in zip(dims, x.shape):
        shape[d] = size
    return x.map(lambda part: np.broadcast_to(part.reshape(shape), call.shape))  # type: ignore[no-any-return]


def concatenate(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    parts = operands[0] if isinstance(operands[0], list) else operands
    return join(parts, call.attrs["axis"])


def join(parts: Sequence[FieldArray], axis: int) -> FieldArray:
    return FieldArray(
        np.concatenate([x.residue for x in parts], axis=axis),
        np.concatenate([x.height for x in parts], axis=axis),
        parts[0].dtype,
    )


def window(call: OpCall, rank: int) -> tuple[slice, ...]:
    """The part that ``start``, ``stop`` and ``step`` name; None where a dim is not cut."""
    said = [call.attrs.get(name) or (None,) * rank for name in ("start", "stop", "step")]
    return tuple(slice(*bounds) for bounds in zip(*said))


def slice_(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    (x,) = operands
    return x.map(lambda part: part[window(call, len(x.shape))])  # type: ignore[no-any-return]


def update_slice(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return replaced(operands[0], window(call, len(operands[0].shape)), operands[1])


def replaced(array: FieldArray, where: tuple[Any, ...], new: FieldArray) -> FieldArray:
    made = array.map(np.copy)
    made.residue[where] = new.residue
    made.height[where] = new.height
    return made


def flip(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return operands[0].map(lambda part: np.flip(part, call.attrs["axis"]))  # type: ignore[no-any-return]


def diagonal_dims(attrs: Mapping[str, Any]) -> tuple[int, int]:
    return attrs.get("axis1", 0), attrs.get("axis2", 1)


def diagonal(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    one, two = diagonal_dims(call.attrs)
    offset = call.attrs.get("offset", 0)
    return operands[0].map(lambda part: np.diagonal(part, offset, one, two))  # type: ignore[no-any-return]


def reverse(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return operands[0].map(lambda part: np.flip(part, call.attrs["dimensions"]))  # type: ignore[no-any-return]


def roll(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return operands[0].map(lambda part: np.roll(part, call.attrs["shift"], call.attrs["axis"]))  # type: ignore[no-any-return]


def pad(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Negative amounts cut; ``interior`` goes between elements; the value is an attribute or a second operand."""
    x = operands[0]
    rank = len(x.shape)
    low, high, interior = (call.attrs.get(name) or (0,) * rank for name in ("low", "high", "interior"))
    shape, places, taken = [], [], []
    for size, before, after, between in zip(x.shape, low, high, interior):
        shape.append(before + after + size + max(size - 1, 0) * between)
        at = before + np.arange(size) * (between + 1)
        inside = np.flatnonzero((at >= 0) & (at < shape[-1]))
        places.append(at[inside])
        taken.append(inside)
    if len(operands) > 1:
        made = operands[1].map(lambda part: np.broadcast_to(part, shape))
    else:
        made = field.full(tuple(shape), call.attrs.get("value", 0))
    if not rank:
        return x  # type: ignore[no-any-return]
    return replaced(made, np.ix_(*places), x.map(lambda part: part[np.ix_(*taken)]))


# -- lookup ---------------------------------------------------------------------------------------------


def places(index: FieldArray, size: int) -> Places:
    return np.asarray(index.residue, np.int64) % max(size, 1)


def take(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    x, index = operands
    if not x.shape and not call.shape:
        return (x,)  # PyTorch's only row of a 0-d tensor
    axis = call.attrs.get("axis")
    if axis is None:
        x, axis = x.map(np.ravel), 0
    at = places(index, x.shape[axis])
    return x.map(lambda part: np.take(part, at, axis=axis))  # type: ignore[no-any-return]


def take_along_axis(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    x, index = operands
    axis = call.attrs["axis"]
    at = places(index, x.shape[axis])
    return x.map(lambda part: np.take_along_axis(part, at, axis))  # type: ignore[no-any-return]


def scatter(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """``x[..., index, ...] = new``; of several rows for one place the last stays."""
    x, index, new = operands
    axis = call.attrs["axis"]
    return replaced(x, (slice(None),) * axis + (places(index, x.shape[axis]),), new)


def split_take(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Rows [offset, offset + n) of a table with ``size`` rows: those that are here, and zero for the others."""
    x, index, offset = operands
    axis = call.attrs["axis"]
    here = places(index, call.attrs["size"]) - count_of(offset)
    rows = x.shape[axis]
    inside = (here >= 0) & (here < rows)
    inside = inside.reshape(inside.shape + (1,) * (len(x.shape) - 1 - axis))
    if rows == 0:
        return field.full(call.shape, 0)
    at = np.clip(here, 0, rows - 1)
    return choose(inside, x.map(lambda part: np.take(part, at, axis=axis)), field.full((), 0))


# -- places as numbers ----------------------------------------------------------------------------------


def count_of(number: FieldArray) -> int:
    """A whole number that `Field.counting` made."""
    return int(number.height)


def arange(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Counted from the shard's offset, if there is one."""
    begin = count_of(operands[0]) if operands else 0
    count = field.counting(begin + np.arange(call.shape[0]))
    start, step = (field.full((), call.attrs.get(name, default)) for name, default in (("start", 0), ("step", 1)))
    return field.add(start, field.multiply(step, count))


def triangle(lower: bool | None = None) -> Handler:
    """Zero above the diagonal ``k`` (lower) or below it; operands after the first say where the shard begins."""

    def handler(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
        x, *offsets = operands
        row, column = (count_of(offset) for offset in offsets) if offsets else (0, 0)
        rows, columns = x.shape[-2:]
        beyond = (column + np.arange(columns)) - (row + np.arange(rows))[:, None] - call.attrs.get("k", 0)
        keep = beyond <= 0 if (call.attrs["lower"] if lower is None else lower) else beyond >= 0
        return choose(keep, x, field.full((), 0))

    return handler


def full(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return field.full(call.shape, call.attrs["value"])


# -- scans and sorting ----------------------------------------------------------------------------------


def cumsum(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    (x,) = operands
    if not x.shape:
        return (x,)  # PyTorch scans 0-d tensors, too
    axis = call.attrs["axis"]
    return FieldArray(field.mod(np.cumsum(x.residue, axis=axis)), np.cumsum(x.height, axis=axis))


def cumprod(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    (x,) = operands
    if not x.shape:
        return (x,)
    axis = call.attrs["axis"]
    rows = np.moveaxis(x.residue.copy(), axis, 0)
    for i in range(1, len(rows)):
        rows[i] = field.mod(rows[i - 1] * rows[i])
    return FieldArray(np.moveaxis(rows, 0, axis), np.cumprod(x.height, axis=axis))


def rank_of(field: Field, array: FieldArray) -> NDArray[np.uint64]:
    """What elements are put in order by: a hash, so that no function keeps the order but the one that changes nothing.

    (Rounding keeps the order of numbers, but not which of two is the larger.)
    """
    return np.asarray(field.hash(field.word("order"), [array.residue]), np.uint64).reshape(array.shape)


def in_order(field: Field, array: FieldArray, axis: int) -> Places:
    return np.asarray(np.argsort(rank_of(field, array), axis=axis, kind="stable"), np.int64)


def sort(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Operands beyond the first are put into the same order."""
    axis = call.attrs.get("axis", -1)
    order = in_order(field, operands[0], axis)
    return tuple(x.map(lambda part: np.take_along_axis(part, order, axis)) for x in operands)


def argsort(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return field.counting(in_order(field, operands[0], call.attrs.get("axis", -1)))


def arg_extreme(sign: int) -> Handler:
    """Where the highest (sign 1) or lowest (-1) stands first; without an axis, in the flattened operand."""

    def handler(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
        (x,) = operands
        rank, axis = len(x.shape), call.attrs.get("axis")
        if axis is None:
            x = x.map(np.ravel)
        axes = tuple(range(rank)) if axis is None else (axis if isinstance(axis, int) else axis[0],)
        along = 0 if axis is None else axes[0]
        ranks = rank_of(field, x)
        at = np.argmax(ranks, axis=along) if sign > 0 else np.argmin(ranks, axis=along)
        return keep_dims(field.counting(np.asarray(at)), call, axes)

    return handler


HANDLERS: dict[str, Handler] = {
    "transpose": transpose,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims", "flatten"), reshape),
    "broadcast_to": broadcast_to,
    "broadcast_in_dim": broadcast_in_dim,
    "concatenate": concatenate,
    "slice": slice_,
    "update_slice": update_slice,
    "flip": flip,
    "reverse": reverse,
    "diagonal": diagonal,
    "roll": roll,
    "pad": pad,
    "take": take,
    "take_along_axis": take_along_axis,
    "scatter": scatter,
    "core.take": split_take,
    **dict.fromkeys(("arange", "core.arange"), arange),
    "tril": triangle(lower=True),
    "triu": triangle(lower=False),
    "core.triangle": triangle(),
    "full": full,
    "cumsum": cumsum,
    "cumprod": cumprod,
    "sort": sort,
    "argsort": argsort,
    "argmax": arg_extreme(1),
    "argmin": arg_extreme(-1),
}
MEANINGS: dict[str, Handler] = {}
