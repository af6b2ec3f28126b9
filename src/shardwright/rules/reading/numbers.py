"""Numbers that are known when a program is written, in as little space as they need.

`Known` is stored once along dims where it is the same everywhere, so positions take a row however far they are spread.
Of two dims a value is kept as what it is made of: `Sum`, of a number for each row and one for each column; or `Runs`,
of two values only, where for each row the columns are listed at which one gives way to the other.  So a mask of a
million by a million takes a few million numbers, and what is said of it is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ...spec.sharding import Shape

MOST_RUNS = 16
"""Changes in a row beyond which a mask is taken for data."""
EXACT = {"f64": 1 << 53, "f32": 1 << 24, "f16": 1 << 11, "bf16": 1 << 8}
"""Up to here all whole numbers are numbers of the type."""
_INTEGERS: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64,
}  # fmt: skip
Array = np.ndarray[Any, Any]


def is_float(dtype: str) -> bool:
    return dtype in EXACT


def is_readable(dtype: str) -> bool:
    return dtype == "bool" or dtype in _INTEGERS or is_float(dtype)


def typed(numbers: Array, dtype: str) -> Array:
    """Rounded, or wrapped, as an element type does; whole numbers are held in 64 bits, floats too."""
    if dtype == "bool":
        return np.asarray(numbers != 0)
    with np.errstate(all="ignore"):
        if not is_float(dtype):
            return numbers.astype(_INTEGERS[dtype]).astype(np.int64)
        if dtype == "f64":
            return numbers.astype(np.float64)
        single = numbers.astype(np.float32)
        if dtype == "f16":
            return single.astype(np.float16).astype(np.float64)
        return (_bfloat(single) if dtype == "bf16" else single).astype(np.float64)


def _bfloat(single: Array) -> Array:
    """To the nearest with 8 bits, ties to even."""
    bits = np.atleast_1d(single).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(single), rounded.reshape(np.shape(single)), single)


@dataclass(frozen=True, eq=False)
class Known:
    """One number for each place; along a dim of which the size is not stored they are the same."""

    shape: Shape
    dtype: str
    numbers: Array

    @staticmethod
    def of(shape: Sequence[int], dtype: str, numbers: Any) -> Known:
        """Stored once along each dim where nothing changes."""
        held = typed(np.asarray(numbers), dtype)
        held = held.reshape((1,) * (len(shape) - held.ndim) + held.shape)
        for d in range(held.ndim):
            first = held[(slice(None),) * d + (slice(0, 1),)]
            if held.shape[d] > 1 and bool(np.all(held == first)):
                held = first
        return Known(tuple(shape), dtype, held)

    @property
    def dims(self) -> tuple[int, ...]:
        """Along which it changes."""
        return tuple(d for d, size in enumerate(self.numbers.shape) if size > 1)

    @property
    def is_constant(self) -> bool:
        return self.numbers.size == 1

    @property
    def constant(self) -> Any:
        return self.numbers.reshape(-1)[0].item()

    @property
    def full(self) -> Array:
        return np.broadcast_to(self.numbers, self.shape)


@dataclass(frozen=True, eq=False)
class Sum:
    """Whole numbers, of each row and each column one, added; where it is ``absolute``, the sign is taken off."""

    shape: Shape
    dtype: str
    row: int
    column: int
    rows: Array
    columns: Array
    absolute: bool = False

    @property
    def dims(self) -> tuple[int, ...]:
        return self.row, self.column


@dataclass(frozen=True, eq=False)
class Runs:
    """One value inside of runs of columns, another outside: ``edges[i]`` are begin and end of each run of row i."""

    shape: Shape
    dtype: str
    row: int
    column: int
    edges: Array
    inside: Any
    outside: Any

    @property
    def dims(self) -> tuple[int, ...]:
        return self.row, self.column


Number = Known | Sum | Runs


def exact_sum(rows: Array, columns: Array, dtype: str) -> tuple[Array, Array] | None:
    """The same whole numbers, if all of them are whole and no sum of two leaves the type."""
    parts = [np.atleast_1d(part).reshape(-1) for part in (rows, columns)]
    if not all(
        part.size and bool(np.all(np.isfinite(part))) and bool(np.all(part == np.trunc(part))) for part in parts
    ):
        return None
    low, high = (sum(int(edge(part)) for part in parts) for edge in (np.min, np.max))
    if is_float(dtype):
        within = max(abs(low), abs(high)) <= EXACT[dtype]
    else:
        limits = np.iinfo(_INTEGERS[dtype]) if dtype in _INTEGERS else None
        within = limits is not None and limits.min <= low and high <= limits.max
    return (parts[0].astype(np.int64), parts[1].astype(np.int64)) if within else None


# -- runs -----------------------------------------------------------------------------------------------


def merged(truths: Sequence[Array], columns: int, of: Callable[[Sequence[Array]], Array]) -> Array | None:
    """The runs of a condition on several runs; None if there are too many."""
    rows = truths[0].shape[0]
    ends = [np.zeros((rows, 1), np.int64), np.full((rows, 1), columns, np.int64)]
    points = np.sort(np.concatenate([*truths, *ends], axis=1), axis=1)
    if points.shape[1] > 4 * MOST_RUNS:
        return None
    edges = np.full((rows, points.shape[1] + 1), columns, np.int64)
    count = np.zeros(rows, np.int64)
    before = np.zeros(rows, np.bool_)
    for begin, end in zip(points.T[:-1], points.T[1:]):
        here = [np.sum(one <= begin[:, None], axis=1) % 2 == 1 for one in truths]
        now = of(here)
        change = np.flatnonzero((end > begin) & (now != before))
        edges[change, count[change]] = begin[change]
        count[change] += 1
        before[change] = now[change]
    width = int(count.max(initial=0))
    width += width % 2
    return None if width > 2 * MOST_RUNS else edges[:, :width]


def compared(name: str, rows: Array, columns: Array) -> Array | None:
    """The runs of columns that stand so to each row's number; None if columns do not rise or fall."""
    if not (np.all(rows == rows) and np.all(columns == columns)):  # NaN
        return None
    if bool(np.all(columns[1:] <= columns[:-1])) and columns.size > 1 and columns[0] != columns[-1]:
        turned = compared(name, rows, columns[::-1])
        return None if turned is None else columns.size - turned[:, ::-1]
    if not bool(np.all(columns[1:] >= columns[:-1])):
        return None
    left, right = (np.searchsorted(columns, rows, side=side) for side in ("left", "right"))
    nothing, all_of = np.zeros_like(left), np.full_like(left, columns.size)
    runs = {
        "le": (left, all_of), "lt": (right, all_of), "ge": (nothing, right), "gt": (nothing, left),
        "eq": (left, right), "ne": (nothing, left, right, all_of),
    }[name]  # fmt: skip
    return merged([np.stack(runs, axis=1).astype(np.int64)], columns.size, lambda here: here[0])


def as_runs(value: Number, rank: int, dims: tuple[int, int], sizes: tuple[int, int]) -> Runs | None:
    """A value with two dims at these places; None if it has more than two values, or others."""
    shift = rank - len(value.shape)
    shape = (1,) * shift + value.shape
    if isinstance(value, Sum):
        return None
    if isinstance(value, Runs):
        same = (value.row + shift, value.column + shift) == dims
        return replace(value, shape=shape, row=dims[0], column=dims[1]) if same else None
    along = tuple(d + shift for d in value.dims)
    numbers = value.numbers.reshape(-1)
    if not along:
        nothing = np.zeros((sizes[0], 0), np.int64)
        return Runs(shape, value.dtype, *dims, nothing, value.constant, value.constant)
    if len(along) > 1 or along[0] not in dims:
        return None
    values = list(dict.fromkeys(numbers[np.r_[0, 1 + np.flatnonzero(np.diff(numbers))]].tolist()))
    if len(values) != 2:
        return None
    if along[0] == dims[0]:
        begin = np.where(numbers == values[0], 0, sizes[1])
        edges = np.stack([begin, np.full_like(begin, sizes[1])], axis=1).astype(np.int64)
    else:
        flips = np.r_[0, 1 + np.flatnonzero(np.diff(numbers == values[0]))]
        if len(flips) > 2 * MOST_RUNS:
            return None
        flips = np.r_[flips, [sizes[1]] * (len(flips) % 2)]
        edges = np.broadcast_to(flips, (sizes[0], len(flips))).astype(np.int64)
    return Runs(shape, value.dtype, *dims, edges, *values)


def pointwise_runs(
    parts: Sequence[Runs], shape: Shape, dtype: str, of: Callable[..., Any], columns: int
) -> Number | None:
    """A function of values that are two each: by the values it has, of which there may be two again."""
    results: list[Any] = [True, False] if dtype == "bool" else []  # runs of what is true
    kinds: dict[tuple[bool, ...], int] = {}
    for choice in product((False, True), repeat=len(parts)):
        given = [part.inside if inside else part.outside for part, inside in zip(parts, choice)]
        made = typed(np.asarray(of(*map(np.asarray, given))), dtype).item()
        if made != made:
            return None
        if made not in results:
            results.append(made)
        kinds[choice] = results.index(made)
    if len(set(kinds.values())) == 1:
        return Known.of(shape, dtype, results[next(iter(kinds.values()))])
    if len(results) > 2:
        return None  # though a combination may never occur
    wanted = [choice for choice, kind in kinds.items() if kind == 0]

    def here(truths: Sequence[Array]) -> Array:
        found = np.zeros(truths[0].shape, np.bool_)
        for choice in wanted:
            found |= np.logical_and.reduce([t == inside for t, inside in zip(truths, choice)])
        return found

    edges = merged([part.edges for part in parts], columns, here)
    first = parts[0]
    return None if edges is None else Runs(shape, dtype, first.row, first.column, edges, *results)
