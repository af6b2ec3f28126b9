"""Calls of ops that no NumPy function writes down by itself, though its kernels compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from calls import Made, call, op

from shardwright.frontends.numpy.samples import ALL, FLOATS, INTS, NUMBERS, Sample


def _counted(start: float, step: float, dtype: str) -> Sample:
    """A count as long as the argument, which is not read."""

    def run(x: Any) -> Any:
        return call("arange", [], [((x.shape[0],), dtype)], start=start, step=step)

    return Sample(run, ("n",), ("f8",))


def _filled(x: Any) -> Any:
    return call("full", [], [((3, *x.shape), "i4")], value=7)


def _stretched(x: Any) -> list[Made]:
    return [((x.shape[0], 3, 5), x.dtype)]


def _product(x: Any, y: Any) -> Any:
    numbers = {"lhs_batch": (0,), "rhs_batch": (1,), "lhs_contracting": (2,), "rhs_contracting": (0,)}
    return call("dot_general", [x, y], [((x.shape[0], x.shape[1], y.shape[2]), x.dtype)], **numbers)


def _diagonal(offset: int) -> Any:
    def run(x: Any) -> Any:
        size = np.zeros(x.shape[1:]).diagonal(offset).size
        return call("diagonal", [x], [((x.shape[0], size), x.dtype)], offset=offset, axis1=1, axis2=2)

    return run


def _paired(x: Any, y: Any) -> Any:
    return call("complex", [x, y], [(x.shape, "c16" if x.dtype == np.float64 else "c8")])


def _choice(name: str, **attrs: Any) -> Sample:
    """Of all elements, without an axis."""

    def results(x: Any) -> list[Made]:
        return [((1,) * x.ndim if attrs.get("keepdims") else (), "i8")]

    return Sample(op(name, results, axis=None, **attrs), ("n m",), NUMBERS, empty=False)


NAMED: dict[str, list[Sample]] = {
    "arange": [_counted(3, 2, "i8"), _counted(0.5, -0.25, "f8"), _counted(1, 1, "f4")],
    "full": [Sample(_filled, ("n m",), ("f8",))],
    "expand_dims": [Sample(op("expand_dims", lambda x: [((x.shape[0], 1, x.shape[1]), x.dtype)]), ("n m",), ALL)],
    "squeeze": [Sample(op("squeeze", lambda x: [((x.shape[0], x.shape[2]), x.dtype)]), ("n 1 m",), ALL)],
    "flatten": [Sample(op("flatten", lambda x: [((x.shape[0] * x.shape[1],), x.dtype)]), ("n m",), ALL)],
    "broadcast_in_dim": [
        Sample(op("broadcast_in_dim", _stretched, broadcast_dimensions=(0, 2)), ("n 1",), ALL),
        Sample(op("broadcast_in_dim", lambda x: [((2, *x.shape), x.dtype)]), ("n m",), ALL),
    ],
    "dot_general": [Sample(_product, ("2 n m", "m 2 3"), NUMBERS), Sample(_product, ("n 3 2", "2 n m"), NUMBERS)],
    "diagonal": [Sample(_diagonal(0), ("n m 3",), ALL), Sample(_diagonal(-1), ("n 2 m",), ALL)],
    "clip": [Sample(op("clip"), ("n m", "m", ""), NUMBERS)],
    "fma": [Sample(op("fma"), ("n m", "n m", "m"), NUMBERS)],
    "complex": [Sample(_paired, ("n m", "n m"), ("f8", "f4"))],
    "clz": [Sample(op("clz"), ("n m",), INTS)],
    "argmax": [_choice("argmax"), _choice("argmax", keepdims=True)],
    "argmin": [_choice("argmin")],
    "core.constraint": [Sample(op("core.constraint", spec="[]"), ("n m",), ALL)],
    **{name: [Sample(op(name), ("n m",), FLOATS)] for name in ("relu", "sigmoid", "silu")},
    "rsqrt": [Sample(op("rsqrt"), ("n m",), FLOATS, "positive")],
}
