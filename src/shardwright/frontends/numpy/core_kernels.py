"""NumPy kernels of the ``core.*`` ops that local forms are written in."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import Array, numpy_dtype
from .kernels import Attributes, Kernel, Types, kernel


@kernel("core.take")
def take(attrs: Attributes, results: Types) -> Kernel:
    """Rows of a table of which this device holds a part, beginning at ``offset``; zero for rows it lacks."""
    axis, size = attrs["axis"], attrs["size"]

    def run(table: Array, index: Array, offset: Array) -> Any:
        if index.size and (index.min() < -size or index.max() >= size):
            wrong = index[(index < -size) | (index >= size)].flat[0]
            raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {size}")
        local = np.where(index < 0, index + size, index) - offset
        rows = table.shape[axis]
        mine = (local >= 0) & (local < rows)
        if rows == 0:
            return np.zeros(results[0].shape, table.dtype)
        found = np.take(table, np.where(mine, local, 0), axis=axis)
        after = (1,) * (table.ndim - axis - 1)
        return np.where(mine.reshape(mine.shape + after), found, np.zeros((), table.dtype))

    return run


@kernel("core.arange")
def arange(attrs: Attributes, results: Types) -> Kernel:
    """Numbers counted from where this device's part begins."""
    start, step = attrs["start"], attrs["step"]
    (size,), dtype = results[0].shape, numpy_dtype(results[0].dtype)
    return lambda offset: (start + (offset + np.arange(size)) * step).astype(dtype)


@kernel("core.triangle")
def triangle(attrs: Attributes, results: Types) -> Kernel:
    """A part of a matrix with one of its triangles set to zero, by global indices."""
    k, lower = attrs["k"], attrs["lower"]

    def run(x: Array, first_row: Array, first_column: Array) -> Any:
        rows = first_row + np.arange(x.shape[-2])[:, None]
        columns = first_column + np.arange(x.shape[-1])
        keep = columns - rows <= k if lower else columns - rows >= k
        return np.where(keep, x, np.zeros((), x.dtype))

    return run
