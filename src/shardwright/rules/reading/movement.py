"""Creation and movement of numbers that are known: views, slices, joins, lookups, running sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...spec.sharding import Shape
from .calls import Call, Op
from .numbers import EXACT, Known, Number, Runs, Sum, exact_sum, is_float, pointwise_runs

LARGEST = 1 << 22
"""Numbers that are written out at most, to look at them."""
CREATED = ("new_ones", "new_zeros", "new_full", "ones_like", "zeros_like", "full_like", "fill")


# -- creation -------------------------------------------------------------------------------------------


def _arange(call: Call) -> Number | None:
    size, start, step = call.shape[0], call.attrs["start"], call.attrs["step"]
    if not all(isinstance(number, int) for number in (start, step)):
        return None
    most = max(abs(start), abs(start + size * step))
    if most > (EXACT["f64"] if not is_float(call.dtype) or call.dtype == "f64" else EXACT["f32"]):
        return None  # counted in float32, and rounded
    return call.known(start + step * np.arange(size, dtype=np.int64))


def _full(call: Call) -> Number | None:
    return call.known(call.attrs["value"])


def _created(call: Call) -> Number | None:
    number = call.attrs.get("fill_value", call.attrs.get("value", 1 if "ones" in call.name else 0))
    return call.known(number)


# -- movement -------------------------------------------------------------------------------------------


def _copy(call: Call) -> Number | None:
    (x,) = call.operands[:1]
    return x if x.dtype == call.dtype else cast(call)


def cast(call: Call) -> Number | None:
    x = call.operands[0]
    if isinstance(x, Known):
        return call.known(x.numbers) if not (is_float(x.dtype) and not is_float(call.dtype)) else _to_whole(call, x)
    if isinstance(x, Sum):
        exact = None if call.dtype == "bool" or x.absolute else exact_sum(x.rows, x.columns, call.dtype)
        return None if exact is None else replace(x, dtype=call.dtype, rows=exact[0], columns=exact[1])
    if is_float(x.dtype) and not is_float(call.dtype) and call.dtype != "bool":
        return None
    return pointwise_runs([x], call.shape, call.dtype, lambda a: a, call.shape[x.column])


def _to_whole(call: Call, x: Known) -> Number | None:
    fits = call.dtype == "bool" or bool(np.all(np.abs(x.numbers) < EXACT["f32"]))
    return call.known(x.numbers if call.dtype == "bool" else np.trunc(x.numbers)) if fits else None


def _placed(x: Number, shape: Shape, place: Mapping[int, int]) -> Number | None:
    """The same numbers where dims go to other places: ``place`` of every dim along which they change."""
    if isinstance(x, Known):
        held = [1] * len(shape)
        for d in x.dims:
            held[place[d]] = x.numbers.shape[d]
        order = sorted(x.dims, key=lambda d: place[d])
        numbers = x.numbers.reshape([x.numbers.shape[d] for d in x.dims])
        numbers = numbers.transpose([x.dims.index(d) for d in order])
        return Known(shape, x.dtype, numbers.reshape(held))
    row, column = place[x.row], place[x.column]
    if row < column:
        return replace(x, shape=shape, row=row, column=column)
    if isinstance(x, Runs):
        return None
    return replace(x, shape=shape, row=column, column=row, rows=x.columns, columns=x.rows)


def _reshape(call: Call) -> Number | None:
    x = call.operands[0]
    before, after = ([d for d, size in enumerate(shape) if size != 1] for shape in (x.shape, call.shape))
    if [x.shape[d] for d in before] == [call.shape[d] for d in after]:
        return _placed(x, call.shape, dict(zip(before, after)))
    if not isinstance(x, Known) or (not x.is_constant and int(np.prod(x.shape)) > LARGEST):
        return None
    return call.known(x.numbers.reshape(-1)[0] if x.is_constant else x.full.reshape(call.shape))


def _transpose(call: Call) -> Number | None:
    x = call.operands[0]
    order = call.attrs.get("permutation") or tuple(reversed(range(len(x.shape))))
    return _placed(x, call.shape, {old: new for new, old in enumerate(order)})


def _broadcast(call: Call) -> Number | None:
    x = call.operands[0]
    shift = len(call.shape) - len(x.shape)
    return _placed(x, call.shape, {d: d + shift for d in range(len(x.shape))})


def _repeat(call: Call) -> Number | None:
    times = call.attrs["repeats"]
    x = call.operands[0]
    shift = len(times) - len(x.shape)
    if any(times[d + shift] != 1 for d in x.dims):
        return None
    return _broadcast(call)


def _slice(call: Call) -> Number | None:
    x: Number = call.operands[0]
    start, stop, step = (call.attrs.get(name) or (None,) * len(x.shape) for name in ("start", "stop", "step"))
    cuts = [slice(a, b, c) for a, b, c in zip(start, stop, step)]
    if isinstance(x, Known):
        return call.known(x.numbers[tuple(cut if d in x.dims else slice(None) for d, cut in enumerate(cuts))])
    row, column = cuts[x.row], cuts[x.column]
    if isinstance(x, Sum):
        return replace(x, shape=call.shape, rows=x.rows[row], columns=x.columns[column])
    begin, end, by = column.indices(x.shape[x.column])
    if by != 1:
        return None
    return replace(x, shape=call.shape, edges=np.clip(x.edges[row], begin, end) - begin)


def _select(call: Call) -> Number | None:
    x: Number = call.operands[0]
    at = call.attrs["dim"] % len(x.shape)
    if isinstance(x, Known):
        index = call.attrs["index"] if at in x.dims else 0
        return call.known(np.take(x.numbers, index, at))
    if at in x.dims:
        return None
    return replace(x, shape=call.shape, row=x.row - (at < x.row), column=x.column - (at < x.column))


def _concatenate(call: Call) -> Number | None:
    axis = call.attrs["axis"] % len(call.shape)
    parts = call.operands[0]
    if not all(isinstance(x, Known) for x in parts):
        return None
    held = [max(sizes) for sizes in zip(*(x.numbers.shape for x in parts))]
    shapes = [[*held[:axis], x.shape[axis], *held[axis + 1 :]] for x in parts]
    if sum(int(np.prod(shape)) for shape in shapes) > LARGEST:
        return None
    return call.known(np.concatenate([np.broadcast_to(x.numbers, s) for x, s in zip(parts, shapes)], axis))


def _cumsum(call: Call) -> Number | None:
    x, axis = call.operands[0], call.attrs["axis"] % max(len(call.shape), 1)
    if not isinstance(x, Known) or is_float(call.dtype):
        return None
    held = list(x.numbers.shape)
    held[axis] = x.shape[axis]
    if int(np.prod(held)) > LARGEST:
        return None
    return call.known(np.cumsum(np.broadcast_to(x.numbers, held).astype(np.int64), axis))


def _flip(call: Call) -> Number | None:
    x, axes = call.operands[0], call.attrs["axis"]
    return call.known(np.flip(x.numbers, axes)) if isinstance(x, Known) else None


def _index(call: Call) -> Number | None:
    """A lookup by positions; where the table is the same all along a dim, any position will do."""
    x, given = call.operands
    if not isinstance(x, Known) or not all(isinstance(i, Known) and not is_float(i.dtype) for i in given):
        return None
    present = call.attrs["indices_present"]
    if not all(present) or len(given) != len(x.shape) or any(i.dtype == "bool" for i in given):
        return None
    places = [np.zeros((1,) * len(i.shape), np.int64) if d not in x.dims else i.numbers for d, i in enumerate(given)]
    if any(np.any(p < -n) or np.any(p >= n) for p, n in zip(places, x.shape)):
        return None
    return call.known(x.numbers[tuple(places)])


CREATION: dict[str, Op] = {"arange": _arange, "full": _full, **dict.fromkeys(CREATED, _created)}
MOVEMENT: dict[str, Op] = {
    "copy": _copy,
    "_to_copy": cast,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast,
    "repeat": _repeat,
    "slice": _slice,
    "select": _select,
    "concatenate": _concatenate,
    "cumsum": _cumsum,
    "flip": _flip,
    "index": _index,
}
