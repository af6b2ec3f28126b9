"""Movement and lookup in ATen's words (``dim``, ``pad``), over a field: what ``gather``, ``split``, ... mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...spec.band import ATTRIBUTE, CAUSAL_FLAG, Band
from .byrule import by_rule
from .modular import Field, FieldArray, choose
from .moving import count_of, join, pad, places
from .pointwise import Handler, Made, OpCall, cast


def attention(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Some function of each query and of all keys; and where its place says which keys it sees, of its place.

    Behind the op's own operands there may be one that says where the queries here begin.
    """
    band = Band.of(call.attrs)
    query, mask, count = (1, 4, 7) if len(call.results) > 2 else (0, 3, 4)
    given = list(operands[:count])
    if not band.sees_all:
        begin = count_of(operands[count]) if len(operands) > count else 0
        place = begin + np.arange(given[query].shape[-2], dtype=np.float64).reshape(-1, 1)
        told = [] if given[mask] is None else [field.told(given[mask])]
        given[mask] = field.from_hash(field.hash(field.word("sees", str(band)), [place, *told]))
    attrs = {name: value for name, value in call.attrs.items() if name not in (CAUSAL_FLAG, ATTRIBUTE)}
    return by_rule(field, OpCall(call.op, attrs, call.results), given)


def gather(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    x, index = operands
    if not x.shape:
        return x  # type: ignore[no-any-return]
    axis = call.attrs["dim"] % len(x.shape)
    at = places(index, x.shape[axis])
    return _looked_up(x, at, axis)


def _looked_up(x: FieldArray, at: Any, axis: int) -> FieldArray:
    """One element for each place; beside the axis the table may be larger."""
    used = tuple(slice(0, n) if d != axis else slice(None) for d, n in enumerate(at.shape))
    return x.map(lambda part: np.take_along_axis(part[used], at, axis))


def split_gather(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """A lookup in rows [offset, offset + n) of ``size``: those that are here, and zero for the others."""
    x, index, offset = operands
    axis = call.attrs["axis"]
    here = places(index, call.attrs["size"]) - count_of(offset)
    rows = x.shape[axis]
    if rows == 0:
        return field.full(call.shape, 0)
    at = np.clip(here, 0, rows - 1)
    found = _looked_up(x, at, axis)
    return choose((here >= 0) & (here < rows), found, field.full((), 0))


def take_grad(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Rows summed where the index points, in a table of ``size`` rows of which a part may be here."""
    grad, index, *offset = operands
    rows, width = call.shape
    size = call.attrs.get("size", rows)
    begin = count_of(offset[0]) if offset else 0
    at = places(index, size).reshape(-1) - begin
    inside = (at >= 0) & (at < rows)
    made = np.zeros((2, rows, width))
    for part, numbers in zip(made, (grad.residue, grad.height)):
        np.add.at(part, at[inside], numbers.reshape(len(at), width)[inside])
    return FieldArray(field.mod(made[0]), made[1])


def select(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    (x,) = operands
    return x.map(lambda part: np.take(part, call.attrs["index"], call.attrs["dim"]))  # type: ignore[no-any-return]


def split(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Parts one after the other along ``dim``; a dim of their own each, if they lack it."""
    (x,) = operands
    axis = call.attrs.get("dim", 0) % len(x.shape)
    made, at = [], 0
    for type in call.results:
        gone = len(type.shape) < len(x.shape)
        size = 1 if gone else type.shape[axis]
        cut = (slice(None),) * axis + (slice(at, at + size),)
        made.append(x.map(lambda part, cut=cut, shape=type.shape: part[cut].reshape(shape)))
        at += size
    return tuple(made)


def stack(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    axis = call.attrs["dim"] % len(call.shape)
    return join([x.map(lambda part: np.expand_dims(part, axis)) for x in operands[0]], axis)


def constant_pad(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    rank, given = len(operands[0].shape), call.attrs["pad"]
    low, high = [0] * rank, [0] * rank
    for i in range(len(given) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = given[2 * i], given[2 * i + 1]
    attrs = {"low": low, "high": high, "value": call.attrs.get("value", 0)}
    return pad(field, OpCall("pad", attrs, call.results), operands)


def like(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """Filled with one number, whatever it is made like."""
    number = call.attrs.get("fill_value", 1 if "ones" in call.op else 0)
    return field.full(call.shape, number)


def random(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """A hash of the state, of which draw it is, and of the place of each element in the whole."""
    state, *offsets = operands
    index = np.zeros((), np.float64)
    for d, size in enumerate(call.shape):
        begin = count_of(offsets[d]) if offsets else 0
        index = index[..., None] * call.attrs["size"][d] + (begin + np.arange(size))
    word = field.word(call.op, call.attrs["draw"], *map(float, state.residue))
    return field.from_hash(field.hash(word, [index]))


HANDLERS: dict[str, Handler] = {"core.take_along": split_gather, "core.take_grad": take_grad}
MEANINGS: dict[str, Handler] = {
    "attention": attention,
    "gather": gather,
    "take_grad": take_grad,
    "select": select,
    "split": split,
    "stack": stack,
    "constant pad": constant_pad,
    "like": like,
    "cast": cast,
    "random": random,
}
