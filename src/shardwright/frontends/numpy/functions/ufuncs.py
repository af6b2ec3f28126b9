"""NumPy's ufuncs as ops.

Shapes broadcast; dtypes are NumPy's own answer for the operands' dtypes (kept, since programs repeat themselves).
A Python number is weak: it takes the dtype that the ufunc's loop asks of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ....errors import TraceError, near_misses
from .. import registry
from ..dtypes import BOOL, DType, tiny
from ..emit import broadcast_shape, cast, full, lift, node, nodes, reshaped
from ..recorder import place
from ..tracer import Tracer

RENAMED = {
    "absolute": "abs",
    "bitwise_count": "popcount",
    "conjugate": "conj",
    "degrees": "rad2deg",
    "radians": "deg2rad",
    "true_divide": "divide",
}
_NO_OP = {"fabs", "isnat"}


def _elementwise() -> dict[np.ufunc, str]:
    found = {ufunc for name in dir(np) if isinstance(ufunc := getattr(np, name), np.ufunc)}
    named = {ufunc.__name__: ufunc for ufunc in found if ufunc.signature is None and ufunc.__name__ not in _NO_OP}
    return {named[name]: RENAMED.get(name, name) for name in sorted(named)}


ELEMENTWISE = _elementwise()
"""Each ufunc that works element by element, and its op."""
REDUCTIONS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min,
    np.logical_or: np.any, np.logical_and: np.all,
}  # fmt: skip
ACCUMULATIONS: dict[np.ufunc, Callable[..., Any]] = {np.add: np.cumsum, np.multiply: np.cumprod}
COMPARISONS: set[np.ufunc] = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
_WEAK = {int: 1, float: 1.0, complex: 1j}
_DEFAULTS = {"out": (None,), "where": (True,), "order": ("K",), "subok": (True,), "casting": ("same_kind",)}

special: dict[np.ufunc, Callable[..., Any]] = {}
"""Ufuncs that are not a single op, entered by the families."""


@registry.hook("ufunc")
def call(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What NumPy does when a ufunc meets a tracer."""
    dtype = kwargs.get("dtype")
    name = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    _refuse(name, kwargs, method)
    if method == "__call__" and ufunc in special:
        if dtype is not None:
            raise place(registry.unsupported_argument(name, "dtype"))
        return special[ufunc](*inputs)
    if method == "__call__" and ufunc in ELEMENTWISE:
        return elementwise(ufunc, inputs, dtype)
    if method == "reduce" and ufunc in REDUCTIONS:
        return _reduce(ufunc, *inputs, **kwargs)
    if method == "accumulate" and ufunc in ACCUMULATIONS:
        return _accumulate(ufunc, *inputs, **kwargs)
    if method == "outer" and ufunc in ELEMENTWISE:
        left, right = map(lift, inputs)
        return ufunc(reshaped(left, left.shape + (1,) * right.ndim), right, dtype=dtype)
    near = near_misses(ufunc.__name__, [known.__name__ for known in ELEMENTWISE]) if method == "__call__" else None
    help = f"{near} {registry.INSTEAD}" if near else registry.INSTEAD
    raise place(TraceError(f"{name} is not supported in a traced function", help=help))


def _refuse(name: str, kwargs: dict[str, Any], method: str) -> None:
    taken = {"dtype"} | ({"axis", "keepdims"} if method in ("reduce", "accumulate") else set())
    for key, value in kwargs.items():
        plain = any(value is default for default in _DEFAULTS.get(key, ()))
        if key not in taken and not plain:
            raise place(registry.unsupported_argument(name, key))


def elementwise(ufunc: np.ufunc, inputs: tuple[Any, ...], dtype: Any = None) -> Any:
    kinds = tuple(_kind(value) for value in inputs)
    loop = _loop(ufunc, kinds, None if dtype is None else np.dtype(dtype))
    operands = []
    for value, kind, wanted in zip(inputs, kinds, loop):
        if isinstance(kind, np.dtype):
            operands.append(lift(value) if dtype is None else cast(lift(value), wanted))
        elif kind is int and ufunc in COMPARISONS and not _fits(value, wanted):
            return _out_of_range(ufunc, inputs)
        else:
            operands.append(full(value, wanted))
    shape = broadcast_shape(*(operand.shape for operand in operands))
    made = nodes(ELEMENTWISE[ufunc], operands, [(shape, out) for out in loop[ufunc.nin :]])
    return made[0] if len(made) == 1 else made


def _kind(value: Any) -> DType | type:
    """What an operand contributes to promotion: a dtype, or the type of a weak Python number."""
    if type(value) in _WEAK:
        return type(value)
    found = getattr(value, "dtype", None)
    return found if isinstance(found, np.dtype) else np.asarray(value).dtype


@lru_cache(maxsize=4096)
def _loop(ufunc: np.ufunc, kinds: tuple[DType | type, ...], dtype: DType | None) -> tuple[DType, ...]:
    """The dtypes with which the ufunc computes: operands, then results."""
    samples = [tiny(kind) if isinstance(kind, np.dtype) else _WEAK[kind] for kind in kinds]
    made = ufunc(*samples) if dtype is None else ufunc(*samples, dtype=dtype)  # raises what NumPy would raise
    asked: dict[str, Any] = {} if dtype is None else {"signature": (None,) * ufunc.nin + (dtype,) * ufunc.nout}
    found = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout), casting="same_kind", **asked)
    results = made if isinstance(made, tuple) else (made,)
    return (*found[: ufunc.nin], *(result.dtype for result in results))


def _fits(value: int, dtype: DType) -> bool:
    if dtype.kind not in "iu":
        return True
    info = np.iinfo(dtype)
    return bool(info.min <= value <= info.max)


def _out_of_range(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Tracer:
    """An integer beyond what the array can hold compares the same way with every element."""
    (array,) = (lift(value) for value in inputs if type(value) is not int)
    samples = [value if type(value) is int else np.zeros(1, array.dtype) for value in inputs]
    return full(ufunc(*samples)[0], BOOL, array.shape)


def _reduce(
    ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: Any = False, **rest: Any
) -> Any:
    if dtype is None:
        return REDUCTIONS[ufunc](array, axis=axis, keepdims=keepdims)
    if ufunc not in ACCUMULATIONS:
        raise place(registry.unsupported_argument(f"numpy.{ufunc.__name__}.reduce", "dtype"))
    return REDUCTIONS[ufunc](array, axis=axis, dtype=dtype, keepdims=keepdims)


def _accumulate(ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    if not array.shape:
        raise TypeError("cannot accumulate on a scalar")
    return ACCUMULATIONS[ufunc](array, axis=axis, dtype=dtype)


@registry.hook("fit_in_place")
def fit_in_place(target: Tracer, made: Tracer) -> Tracer:
    """NumPy's rules for ``x += y``: the shape must stay, the dtype is cast back if it is of the same kind."""
    if not np.can_cast(made.dtype, target.dtype, "same_kind"):
        raise TypeError(f"Cannot cast the result from {made.dtype!r} to {target.dtype!r} with casting rule 'same_kind'")
    if made.shape != target.shape:
        shapes = [str(shape).replace(" ", "") for shape in (target.shape, made.shape)]
        raise ValueError(
            f"non-broadcastable output operand with shape {shapes[0]} doesn't match the broadcast shape {shapes[1]}"
        )
    return cast(made, target.dtype)


def _fabs(x: Any) -> Tracer:
    """``abs`` of a float; NumPy's ufunc takes integers for floats and refuses complex numbers."""
    (wanted, _) = _loop(np.fabs, (_kind(x),), None)
    value = cast(lift(x), wanted)
    return node("abs", [value], value.shape, wanted)


special[np.fabs] = _fabs
