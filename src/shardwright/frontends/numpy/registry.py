"""Which NumPy function is traced by what.

The families of this package enter their functions here with `implements`; `Tracer` asks here.  So tracers need not
know the families, and a new function is one decorated function in a family file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ...errors import TraceError, near_misses
from .recorder import place

Traced = TypeVar("Traced")
F = TypeVar("F", bound=Callable[..., Any])
INSTEAD = (
    "write it with functions that are, make it an op of your own with @shardwright.numpy.op,\n"
    "or compute it outside and pass the result as an argument"
)
DATA_DEPENDENT = {
    "argwhere", "bincount", "compress", "delete", "extract", "flatnonzero", "histogram", "intersect1d", "nonzero",
    "setdiff1d", "setxor1d", "trim_zeros", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse",
    "unique_values",
}  # fmt: skip
"""Functions of NumPy whose result has a shape that depends on the numbers."""
KEEP_SHAPE = "keep the shape: np.where(condition, x, 0), or a sum over the condition"

_functions: dict[Callable[..., Any], tuple[Callable[..., Any], inspect.Signature]] = {}
_hooks: dict[str, Callable[..., Any]] = {}


def implements(*names: str) -> Callable[[F], F]:
    """Trace these functions of NumPy (``sum``, ``linalg.norm``) by the decorated one, which has their parameters.

    A name that the installed NumPy lacks is passed over.
    """

    def register(handler: F) -> F:
        signature = inspect.signature(handler)
        for name in names:
            function: Any = np
            for part in name.split("."):
                function = getattr(function, part, None)
            if function is not None:
                _functions[function] = handler, signature
        return handler

    return register


def hook(name: str) -> Callable[[F], F]:
    """Enter what a tracer calls by this name: ``ufunc``, ``getitem``, ``setitem``, ``fit_in_place``, ``replicated``,
    or, for views, ``refresh`` and ``write``."""

    def register(handler: F) -> F:
        _hooks[name] = handler
        return handler

    return register


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _hooks["ufunc"](ufunc, method, inputs, kwargs)


def getitem(tracer: Traced, key: Any) -> Traced:
    made: Traced = _hooks["getitem"](tracer, key)
    return made


def setitem(tracer: Any, key: Any, value: Any) -> None:
    _hooks["setitem"](tracer, key, value)


def fit_in_place(target: Traced, made: Traced) -> Traced:
    """The result of an in-place operator, brought to the type of its target."""
    fitted: Traced = _hooks["fit_in_place"](target, made)
    return fitted


def call_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace one call of a NumPy function."""
    found = _functions.get(function)
    if found is None:
        made = _hooks["replicated"](function, args, kwargs)
        if made is NotImplemented:
            raise place(_unknown(function))
        return made
    handler, signature = found
    kwargs = {key: value for key, value in kwargs.items() if value is not np._NoValue}
    extra = [key for key in kwargs if key not in signature.parameters]
    if extra and not _takes_any(signature):
        raise place(unsupported_argument(function_name(function), extra[0], signature))
    bound = signature.bind(*args, **kwargs)
    if bound.arguments.get("out") is not None:
        raise place(unsupported_argument(function_name(function), "out", signature))
    return handler(*bound.args, **bound.kwargs)


def unsupported_argument(name: str, argument: str, signature: inspect.Signature | None = None) -> TraceError:
    help = {
        "out": "use what the function returns; x[...] = value writes into an array",
        "where": "choose with np.where(condition, value, other) before or after the call",
    }.get(argument)
    if help is None and signature is not None:
        help = "supported: " + ", ".join(key for key in signature.parameters if key != "out")
    return TraceError(f"{argument}= of {name} is not supported in a traced function", help=help)


def function_name(function: Callable[..., Any]) -> str:
    """
    >>> function_name(np.linalg.svd)
    'numpy.linalg.svd'
    """
    return f"{function.__module__}.{function.__name__}"


def supported() -> list[str]:
    """The functions that can be traced, by name."""
    return sorted({function_name(function) for function in _functions})


def data_dependent(name: str, help: str = KEEP_SHAPE) -> TraceError:
    return place(TraceError(f"the shape of {name} depends on numbers, which a traced value does not have", help=help))


def _takes_any(signature: inspect.Signature) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _unknown(function: Callable[..., Any]) -> TraceError:
    name = function_name(function)
    if function.__module__ == "numpy" and function.__name__ in DATA_DEPENDENT:
        return data_dependent(name)
    near = near_misses(name, supported())
    return TraceError(f"{name} is not supported in a traced function", help=f"{near} {INSTEAD}" if near else INSTEAD)
