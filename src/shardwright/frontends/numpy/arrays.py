"""The array operations behind collectives, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import dtype_name

Array = NDArray[Any]

_COMBINE = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


class NumpyArrays:
    """NaN is kept in max and min, as NumPy's maximum and minimum do."""

    def concatenate(self, parts: Sequence[Array], dim: int) -> Array:
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=dim)

    def combine(self, kind: str, parts: Sequence[Array]) -> Array:
        ufunc = _COMBINE[kind]
        if parts[0].dtype == bool and kind in ("sum", "avg"):
            raise TypeError("a pending sum of booleans has no meaning")
        total = parts[0]
        for part in parts[1:]:
            total = ufunc(total, part)
        if kind == "avg":
            total = (total / len(parts)).astype(parts[0].dtype, copy=False)
        return total

    def part(self, array: Array, dim: int, start: int, stop: int) -> Array:
        return array[(slice(None),) * dim + (slice(start, stop),)]

    def neutral_like(self, kind: str, array: Array) -> Array:
        return np.ones_like(array) if kind == "prod" else np.zeros_like(array)

    def number(self, value: int) -> Array:
        return np.asarray(value, np.int64)

    def shape(self, array: Array) -> tuple[int, ...]:
        return array.shape

    def item_bytes(self, array: Array) -> int:
        return array.dtype.itemsize

    def dtype(self, array: Array) -> str:
        return dtype_name(array.dtype)

    def copy(self, array: Array) -> Array:
        return array.copy()

    def at(self, array: Array, slices: tuple[slice, ...]) -> Array:
        return array[slices] if slices else array

    def joined(self, like: Array, shape: Sequence[int], parts: Sequence[tuple[tuple[slice, ...], Array]]) -> Array:
        whole = np.empty(tuple(shape), like.dtype)
        for where, part in parts:
            whole[where] = part
        return whole
