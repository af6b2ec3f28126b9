"""Other forms of a tensor: one dim more or less, all in one, its own numbers in another shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..operator import Array


def resized(array: Array, shape: tuple[int, ...]) -> Array:
    """The array's own numbers, again and again, in another shape."""
    return np.ascontiguousarray(np.resize(array, shape)) if array.size else np.zeros(shape, array.dtype)


FORMS: tuple[Callable[[Array], Array], ...] = (
    lambda a: a[None],
    lambda a: resized(a, (2, *a.shape)),
    lambda a: resized(a, (*a.shape, 3)),
    lambda a: a[..., None],
    lambda a: np.array(a[0] if a.ndim and a.shape[0] else a),
    lambda a: np.array(a[..., 0] if a.ndim and a.shape[-1] else a),
    lambda a: a.reshape(-1),
    lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)) if a.ndim > 1 else a,
)
"""One more dim, one less, all in one, the last two exchanged: as many elements or not, as a kernel may ask."""


FEWER: tuple[Callable[[Array], Array], ...] = (
    lambda a: a.reshape(-1)[0],
    lambda a: a.reshape(-1)[-1],
    lambda a: a[0] if a.ndim else a,
)
"""One element, one slice."""

FOLDS: tuple[Callable[[Array], Array], ...] = (
    lambda a: a,
    lambda a: a[None],
    lambda a: resized(a, (*a.shape, 3)),
    lambda a: a[0] if a.ndim else a,
    lambda a: a[..., 0] if a.ndim else a,
    lambda a: a.reshape(-1),
)
"""As it is, one dim more, one less, all in one."""
