"""Functions of NumPy that have no rule, each written down as one op: it is computed on whole arrays, on every device.

These are the functions of `numpy.linalg` that no family knows.  An op is called as the function is,
``numpy.linalg.svd``; parameters that are arrays are operands, ``arrays`` names them, all others are attributes.  What
it returns is found by calling the function on a small example, so its shapes and types must not depend on numbers.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ....errors import TraceError
from ....ir.graph import TensorType
from ....spec.sharding import Shape
from ..dtypes import Array
from ..emit import lift, nodes
from ..kernels import Kernel
from ..recorder import place
from ..registry import INSTEAD, function_name, hook
from ..tracer import Tracer, is_traced

MODULE = "numpy.linalg"
ARRAYS = "arrays"
"""The attribute that names the parameters which are operands."""
_BY_NUMBERS = {
    "eig": "np.linalg.eigh, for a symmetric matrix, is real always",
    "eigvals": "np.linalg.eigvalsh, for a symmetric matrix, is real always",
    "lstsq": "np.linalg.pinv(a) @ b gives the solution",
}
"""Functions that return other types or shapes for other numbers, and what does not."""
SMALL = 16
"""Sizes up to this stay as they are in an example; larger ones become the next numbers, in their order."""
MOST_ELEMENTS = 1 << 16
"""Of an example in which sizes had to stay as they are."""


@hook("replicated")
def replicated(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Write down one call; NotImplemented for functions that are not of this kind."""
    if function.__module__ != MODULE:
        return NotImplemented
    name = function_name(function)
    if function.__name__ in _BY_NUMBERS:
        fact = f"what {name} returns depends on numbers, which a traced value does not have"
        raise place(TraceError(fact, help=_BY_NUMBERS[function.__name__]))
    arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    arrays = {key: _lifted(value) for key, value in arguments.items() if _is_array(value)}
    attrs = {key: _plain(name, key, value) for key, value in arguments.items() if key not in arrays}
    made = _example(function, arrays, attrs)
    several = isinstance(made, tuple)
    types = [(tuple(item.shape), item.dtype) for item in (made if several else (made,))]
    found = nodes(name, list(arrays.values()), types, **attrs, **{ARRAYS: tuple(arrays)})
    if not several:
        return found[0]
    return type(made)(*found) if hasattr(made, "_fields") else found


def kernel_of(op: str) -> Callable[[Mapping[str, Any], Sequence[TensorType]], Kernel] | None:
    """What computes such an op; None for others."""
    module, _, name = op.rpartition(".")
    function = getattr(np.linalg, name, None) if module == MODULE else None
    if function is None:
        return None

    def make(attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Kernel:
        plain = {key: value for key, value in attrs.items() if key != ARRAYS}
        return lambda *operands: _call(function, {**dict(zip(attrs[ARRAYS], operands)), **plain})

    return make


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """By name, also where a parameter can be given by position only."""
    bound = inspect.signature(function).bind_partial()
    bound.arguments.update(arguments)
    return function(*bound.args, **bound.kwargs)


def _is_array(value: Any) -> bool:
    listed = isinstance(value, list | tuple) and bool(value)
    return is_traced(value) or isinstance(value, np.ndarray) or (listed and any(map(_is_array, value)))


def _lifted(value: Any) -> Tracer | list[Tracer]:
    return [lift(item) for item in value] if isinstance(value, list | tuple) else lift(value)


def _plain(name: str, key: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(name, key, item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise place(TraceError(f"{key}= of {name} is a {type(value).__name__}", help="give a number, text, or an array"))


def _example(function: Callable[..., Any], arrays: Mapping[str, Any], attrs: Mapping[str, Any]) -> Any:
    """What the function returns, as arrays without memory of the shapes and types of this call."""
    shapes = [item.shape for value in arrays.values() for item in _each(value)]
    sizes = sorted({size for shape in shapes for size in shape if size > SMALL})
    smaller = {size: SMALL + 1 + i for i, size in enumerate(sizes)}
    error: Exception | None = None
    for sized in (smaller, {}) if smaller else ({},):
        if not sized and sum(map(prod, shapes)) > MOST_ELEMENTS:
            break
        back = {small: size for size, small in sized.items()}
        given = {key: _filled(value, sized) for key, value in arrays.items()}
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = _call(function, {**given, **attrs})
        except Exception as failed:  # NumPy's own: of operands that do not fit, or of sizes that had to stay
            error = failed
            continue
        if isinstance(made, tuple):
            items = [_unfilled(item, back) for item in made]
            return type(made)(*items) if hasattr(made, "_fields") else tuple(items)
        return _unfilled(made, back)
    if error is not None and not smaller:
        raise error
    fact = f"{function_name(function)} is not supported in a traced function with arrays this large"
    raise place(TraceError(fact, rows=[("said", str(error))] if error else (), help=INSTEAD))


def _each(value: Any) -> list[Tracer]:
    return value if isinstance(value, list) else [value]


def _filled(value: Any, smaller: Mapping[int, int]) -> Any:
    """Numbers of any kind; where matrices are square they are symmetric and positive definite."""
    if isinstance(value, list):
        return [_filled(item, smaller) for item in value]
    shape = tuple(smaller.get(size, size) for size in value.shape)
    made = np.random.default_rng(0).standard_normal(shape)
    if len(shape) > 1 and shape[-1] == shape[-2]:
        made = made @ np.swapaxes(made, -1, -2) + shape[-1] * np.eye(shape[-1])
    return np.ceil(made).astype(value.dtype) if value.dtype.kind in "biu" else made.astype(value.dtype)


def _unfilled(item: Any, back: Mapping[int, int]) -> Array:
    array = np.asarray(item)
    shape: Shape = tuple(back.get(size, size) for size in array.shape)
    return np.broadcast_to(np.zeros((), array.dtype), shape)
