"""Arrays made inside a traced function after the model of a traced one: ``zeros_like(x)``, ``zeros(n, like=x)``.

``np.zeros(n)`` alone never meets a tracer and gives a plain array, which becomes ``full`` where it is used.  It cannot
be written into with traced values; these can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..emit import cast, full, lift, node
from ..registry import implements
from ..tracer import Tracer
from .shaping import broadcast_to


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in shape) if np.iterable(shape) else (int(shape),)


def _filled(value: Any, dtype: Any, shape: tuple[int, ...]) -> Tracer:
    if isinstance(value, Tracer) or np.ndim(value):
        return broadcast_to(cast(lift(value), dtype), shape).alias()
    made = full(value, np.dtype(dtype), shape)
    made.scalar = False
    return made


def _like(value: Any) -> Callable[..., Tracer]:
    def handler(
        a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
    ) -> Tracer:
        x = lift(a)
        return _filled(value, x.dtype if dtype is None else dtype, x.shape if shape is None else _shape(shape))

    return handler


implements("zeros_like", "empty_like")(_like(0))
implements("ones_like")(_like(1))


@implements("full_like")
def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None,
    *, device: Any = None,
) -> Tracer:  # fmt: skip
    x = lift(a)
    return _filled(fill_value, x.dtype if dtype is None else dtype, x.shape if shape is None else _shape(shape))


def _of_shape(value: Any) -> Callable[..., Tracer]:
    def handler(shape: Any, dtype: Any = np.float64, order: str = "C", *, device: Any = None) -> Tracer:
        return _filled(value, np.float64 if dtype is None else dtype, _shape(shape))

    return handler


# These come with ``like=``, which NumPy takes away before it calls.
implements("zeros", "empty")(_of_shape(0))
implements("ones")(_of_shape(1))


@implements("full")
def full_of(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, device: Any = None) -> Tracer:
    given = fill_value.dtype if isinstance(fill_value, Tracer) else np.asarray(fill_value).dtype
    return _filled(fill_value, given if dtype is None else dtype, _shape(shape))


@implements("arange")
def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None) -> Tracer:
    made = np.arange(start, stop, step, dtype=dtype)
    if made.dtype.kind not in "iu" or made.size < 2:
        return _const(made)
    return node("arange", [], made.shape, made.dtype, start=int(made[0]), step=int(made[1]) - int(made[0]))


@implements("array", "asarray", "asanyarray", "ascontiguousarray")
def array(object: Any, dtype: Any = None, **options: Any) -> Tracer:
    if _holds_tracer(object):
        object = np.stack([array(item) for item in object])
    made = lift(object)
    return (made if dtype is None else cast(made, dtype)).alias()


def _holds_tracer(item: Any) -> bool:
    return isinstance(item, list | tuple) and any(isinstance(part, Tracer) or _holds_tracer(part) for part in item)


def _const(made: Any) -> Tracer:
    found = lift(made)
    found.scalar = False
    return found
