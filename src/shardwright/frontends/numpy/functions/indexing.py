"""``x[key]`` and ``x[key] = value``.

A key of ints, slices, None and Ellipsis is *basic*: it becomes ``slice`` (positive steps), ``flip`` for negative steps
and ``reshape`` for dims that come or go, and the result is a view.  One integer array becomes ``take``; integer arrays
on all dims of which all but one merely count (``x[np.arange(n), labels]``) become ``take_along_axis``.  What would
give a shape that depends on numbers is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import TraceError
from ....spec.sharding import Shape
from .. import registry
from ..aliasing import view_of
from ..dtypes import INT, Array, stand_in
from ..emit import broadcast, cast, full, lift, node, reshaped, view_node
from ..recorder import place
from ..tracer import Tracer, write

MASK_HELP = "keep the shape: np.where(mask, x, 0); x[mask] = number writes where the mask holds"


@dataclass(frozen=True, slots=True)
class Window:
    """The part of an array that a basic key names, in a normal form; None for dims taken whole."""

    start: tuple[int | None, ...]
    stop: tuple[int | None, ...]
    step: tuple[int | None, ...]
    flips: tuple[int, ...]
    kept: Shape
    """Its shape with a dim of 1 for every int in the key."""
    shape: Shape

    @property
    def whole(self) -> bool:
        return all(start is None for start in self.start)

    @property
    def bounds(self) -> dict[str, tuple[int | None, ...]]:
        return {"start": self.start, "stop": self.stop, "step": self.step}


def window(shape: Shape, key: tuple[Any, ...]) -> Window:
    """``key`` is basic, with Ellipsis written out as slices."""
    final = stand_in(shape, INT)[key].shape  # raises NumPy's own error for what does not fit
    bounds: list[tuple[int | None, int | None, int | None]] = []
    flips: list[int] = []
    kept: list[int] = []
    for entry in key:
        if entry is None:
            continue
        d = len(bounds)
        if isinstance(entry, slice):
            start, stop, step = entry.indices(shape[d])
            count = len(range(start, stop, step))
            if step < 0:
                start, stop, step = start + (count - 1) * step, start + 1, -step
                if count > 1:
                    flips.append(d)
            if count == 0:
                start, stop, step = 0, 0, 1
        else:
            start, count, step = entry % shape[d], 1, 1
            stop = start + 1
        untouched = count == shape[d]
        bounds.append((None, None, None) if untouched else (start, stop, step))
        kept.append(count)
    starts, stops, steps = zip(*bounds) if bounds else ((), (), ())
    return Window(starts, stops, steps, tuple(flips), tuple(kept), final)


def look(x: Tracer, part: Window) -> Tracer:
    """What stands in a window."""
    made = x if part.whole else view_node("slice", x, part.kept, **part.bounds)
    return reshaped(flipped(made, part.flips), part.shape)


def replaced(x: Tracer, part: Window, value: Tracer) -> Tracer:
    """``x`` with ``value``, of the window's shape, in the window."""
    value = flipped(reshaped(value, part.kept), part.flips)
    return value if part.whole else node("update_slice", [x, value], x.shape, x.dtype, **part.bounds)


def flipped(x: Tracer, axes: tuple[int, ...]) -> Tracer:
    return view_node("flip", x, x.shape, axis=axes) if axes else x


@registry.hook("getitem")
def getitem(x: Tracer, key: Any) -> Tracer:
    mask = _mask(key)
    if isinstance(mask, np.ndarray) and mask.ndim > 1:
        check_mask(mask, x.shape)
        return taken(_rows(x, mask), lift(np.flatnonzero(mask)), 0)
    entries = _entries(key, x.shape)
    arrays = [i for i, entry in enumerate(entries) if _is_array(entry)]
    if not arrays:
        part = window(x.shape, entries)
        made = look(x, part)
        if all(isinstance(entry, int) for entry in entries) and not _has_dots(key):
            return made.number()  # which is no view
        return view_of(x, made, lambda parent: look(parent, part), lambda p, v: replaced(p, part, v), part)
    if len(arrays) == 1:
        return _take(x, entries, arrays[0])
    return _along(x, _counted(x, entries, arrays))


@registry.hook("setitem")
def setitem(x: Tracer, key: Any, value: Any) -> None:
    mask = _mask(key)
    if mask is not None and (isinstance(mask, Tracer) or np.ndim(value) <= x.ndim - mask.ndim):
        write(x, _where_mask(x, mask, value))
        return
    if isinstance(mask, np.ndarray) and mask.ndim > 1:
        check_mask(mask, x.shape)
        rows = _rows(x, mask)
        write(x, reshaped(_scattered(rows, _entries(np.flatnonzero(mask), rows.shape), 0, value), x.shape))
        return
    entries = _entries(key, x.shape)
    arrays = [i for i, entry in enumerate(entries) if _is_array(entry)]
    if not arrays:
        part = window(x.shape, entries)
        if isinstance(value, Tracer) and value.link and value.link.parent is x and value.link.key == part:
            return  # the end of ``x[key] += y``, which wrote through the view already
        write(x, replaced(x, part, _fitted(value, part.shape, x)))
    elif len(arrays) == 1:
        write(x, _scattered(x, entries, arrays[0], value))
    else:
        write(x, _put_along(x, _counted(x, entries, arrays), value))


def _fitted(value: Any, shape: Shape, target: Tracer) -> Tracer:
    """A value as it is stored: cast to the target's dtype and broadcast, extra leading ones dropped."""
    if isinstance(value, Tracer | np.ndarray | np.generic | list | tuple):
        made = cast(lift(value), target.dtype)
    else:
        made = full(value, target.dtype)
    extra = made.ndim - len(shape)
    if extra > 0 and made.shape[:extra] == (1,) * extra:
        made = reshaped(made, made.shape[extra:])
    try:
        fits = np.broadcast_shapes(made.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        shapes = [str(s).replace(" ", "") for s in (made.shape, shape)]
        raise ValueError(f"could not broadcast input array from shape {shapes[0]} into shape {shapes[1]}")
    return broadcast(made, shape)


# Keys.


def _entries(key: Any, shape: Shape) -> tuple[Any, ...]:
    """The key with one entry a dim, besides None; ints are Python's, arrays hold integers."""
    parts = [_entry(part) for part in (key if isinstance(key, tuple) else (key,))]
    taken = sum(_dims_taken(part) for part in parts)
    if taken > len(shape):
        raise IndexError(f"too many indices for array: array is {len(shape)}-dimensional, but {taken} were indexed")
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(parts)
    rest = [slice(None)] * (len(shape) - taken)
    found: list[Any] = []
    dim = 0
    for part in (*parts[:at], *rest, *parts[at + 1 :]):
        if _is_mask(part):
            check_mask(part, shape[dim:])
        dim += _dims_taken(part)
        found += part.nonzero() if _is_mask(part) else [part]  # numbers are known, so is the shape
    return tuple(found)


def _dims_taken(part: Any) -> int:
    return 0 if part is None or part is Ellipsis else part.ndim if _is_mask(part) else 1


def _is_mask(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.dtype.kind == "b"


def check_mask(mask: Any, shape: Shape) -> None:
    if mask.shape != shape[: mask.ndim]:
        raise IndexError(f"boolean index did not match indexed array: mask {mask.shape}, array {shape}")


def _entry(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, bool | np.bool_) or (_is_mask(part) and not part.ndim):
        raise place(TraceError("a boolean cannot be an index in a traced function", help="say x[None] or x[:0]"))
    if isinstance(part, Tracer):
        if part.dtype.kind == "b":
            raise registry.data_dependent("x[mask]", MASK_HELP)
        if part.dtype.kind not in "iu":
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        return part
    if isinstance(part, np.ndarray | list):
        array = np.asarray(part)
        if array.size == 0 and isinstance(part, list):
            array = array.astype(INT)
        if array.dtype.kind not in "iub":
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        return array if array.ndim or array.dtype.kind == "b" else int(array)
    try:
        return part.__index__()
    except AttributeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are "
            "valid indices"
        ) from None


def _is_array(entry: Any) -> bool:
    return isinstance(entry, Tracer | np.ndarray)


def _has_dots(key: Any) -> bool:
    return any(part is Ellipsis for part in (key if isinstance(key, tuple) else (key,)))


# One integer array.


def _split(x: Tracer, entries: tuple[Any, ...], at: int) -> tuple[Window, int, bool]:
    """The window around the array's dim (taken whole), that dim in the window, and whether its dims go first."""
    basic = (*entries[:at], slice(None), *entries[at + 1 :])
    axis = sum(1 for entry in entries[:at] if not isinstance(entry, int))
    # Ints are index arrays too, once there is one; index arrays that do not stand together put their dims first.
    places = [i for i, entry in enumerate(entries) if isinstance(entry, int) or _is_array(entry)]
    apart = places[-1] - places[0] + 1 != len(places)
    dim = sum(1 for entry in entries[:at] if entry is not None)
    if isinstance(entries[at], np.ndarray) and entries[at].size:
        _ = stand_in(x.shape[dim : dim + 1], INT)[[entries[at].min(), entries[at].max()]]  # NumPy's error if outside
    return window(x.shape, basic), axis, apart


def _take(x: Tracer, entries: tuple[Any, ...], at: int) -> Tracer:
    part, axis, apart = _split(x, entries, at)
    index = entries[at]
    made = taken(look(x, part), lift(index), axis)
    if apart:
        order = (*range(axis, axis + index.ndim), *range(axis), *range(axis + index.ndim, made.ndim))
        made = view_node("transpose", made, tuple(made.shape[d] for d in order), permutation=order)
    return made


def taken(x: Tracer, index: Tracer, axis: int) -> Tracer:
    shape = x.shape[:axis] + index.shape + x.shape[axis + 1 :]
    return node("take", [x, index], shape, x.dtype, axis=axis)


def _scattered(x: Tracer, entries: tuple[Any, ...], at: int, value: Any) -> Tracer:
    part, axis, apart = _split(x, entries, at)
    index, old = lift(entries[at]), look(x, part)
    inner = old.shape[:axis] + old.shape[axis + 1 :]
    new = _fitted(value, index.shape + inner if apart else inner[:axis] + index.shape + inner[axis:], x)
    if apart:
        order = (*range(index.ndim, index.ndim + axis), *range(index.ndim), *range(index.ndim + axis, new.ndim))
        new = view_node("transpose", new, tuple(new.shape[d] for d in order), permutation=order)
    return replaced(x, part, node("scatter", [old, index, new], old.shape, x.dtype, axis=axis))


# Integer arrays on all dims, of which all but one count.


@dataclass(frozen=True, slots=True)
class Counted:
    """``x[i, j, index]`` where i and j run over their dims: one element for each place along them."""

    axis: int
    index: Tracer


def _counted(x: Tracer, entries: tuple[Any, ...], arrays: list[int]) -> Counted:
    shape = np.broadcast_shapes(*(entries[i].shape for i in arrays))
    if len(arrays) == len(entries) == x.ndim and len(shape) == x.ndim - 1:
        for axis in reversed(range(x.ndim)):
            others = [d for d in range(x.ndim) if d != axis]
            if all(_counts(entries[d], x.shape[d], k, len(shape)) for k, d in enumerate(others)):
                index = lift(entries[axis])
                full_shape = tuple(x.shape[d] for d in others)
                return Counted(axis, broadcast(index, full_shape))
    raise place(
        TraceError(
            "integer arrays on several dims are supported in a traced function only as x[np.arange(n), index]",
            help="say np.take_along_axis(x, index, axis), or index one dim after the other",
        )
    )


def _counts(entry: Any, size: int, k: int, ndim: int) -> bool:
    """Whether an index array is 0, 1, ... along dim k of the result."""
    if not isinstance(entry, np.ndarray):
        return False
    shape = [1] * ndim
    shape[k] = size
    aligned = (1,) * (ndim - entry.ndim) + entry.shape
    return aligned == tuple(shape) and bool((entry.ravel() == np.arange(size)).all())


def _along(x: Tracer, at: Counted) -> Tracer:
    column = (*at.index.shape[: at.axis], 1, *at.index.shape[at.axis :])
    made = node("take_along_axis", [x, reshaped(at.index, column)], column, x.dtype, axis=at.axis)
    return reshaped(made, at.index.shape)


def _put_along(x: Tracer, at: Counted, value: Any) -> Tracer:
    """Where the dim's own count equals the index: pointwise, so that it splits over every dim."""
    column = (*at.index.shape[: at.axis], 1, *at.index.shape[at.axis :])
    size = x.shape[at.axis]
    count = node("arange", [], (size,), INT, start=0, step=1)
    count = reshaped(count, (size,) + (1,) * (x.ndim - 1 - at.axis))
    index: Any = cast(reshaped(at.index, column), INT)
    if at.index.dtype.kind == "i":
        index = np.where(index < 0, index + size, index)
    new = reshaped(_fitted(value, at.index.shape, x), column)
    return node("where", [np.equal(count, index), new, x], x.shape, x.dtype)


# Masks that are written through.


def _mask(key: Any) -> Tracer | Array | None:
    """The mask of ``x[mask] = value`` or ``x[mask, ...] = value``."""
    first, *rest = key if isinstance(key, tuple) and key else (key,)
    mask = np.asarray(first) if isinstance(first, list) else first
    whole = all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in rest)
    if whole and isinstance(mask, Tracer | np.ndarray) and mask.dtype.kind == "b" and mask.ndim:
        return mask
    return None


def _rows(x: Tracer, mask: Array) -> Tracer:
    """The dims of a mask as one."""
    return reshaped(x, (mask.size, *x.shape[mask.ndim :]))


def _where_mask(x: Tracer, mask: Tracer | Array, value: Any) -> Tracer:
    check_mask(mask, x.shape)
    rest = x.shape[mask.ndim :]
    new = value if isinstance(value, Tracer) else np.asarray(value)
    if new.ndim > len(rest):
        raise registry.data_dependent(
            "x[mask] = values", "write a number, or values for all of x: x[...] = np.where(mask, values, x)"
        )
    selected = reshaped(lift(mask), mask.shape + (1,) * len(rest))
    return node("where", [selected, _fitted(value, rest, x), x], x.shape, x.dtype)
