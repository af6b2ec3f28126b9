"""Calls of every op that the NumPy frontend knows, as ordinary NumPy code, to run its rule by execution.

A sample is a function and the shapes of its arguments.  Sizes are letters that the test replaces by even, uneven,
small and empty ones: ``n`` and ``m`` are the sizes that get split, digits are fixed, ``2n`` is twice the size.  After
a colon stands what the numbers are: a dtype of their own, or a kind that `arguments` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import Array

FLOATS = ("f8", "f4", "f2")
NUMBERS = ("f8", "f4", "f2", "i8")
INTS = ("i8",)
ALL = ("f8", "f4", "f2", "i8", "?")


@dataclass(frozen=True)
class Sample:
    """A call: a function of arrays, and the shapes of these.

    >>> sample = Sample(lambda x, w: x @ w, ("n 3", "3 m"), ("f4",))
    >>> [array.shape for array in arguments(sample, (6, 4), "f4")]
    [(6, 3), (3, 4)]
    """

    fn: Callable[..., Any]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...] = NUMBERS
    domain: str = "any"
    """any, positive, unit (within -1..1), index (first argument a table, second indices), small (small integers)."""
    empty: bool = True
    """Whether the op makes sense on empty dims (argmax does not)."""


def one(fn: Any, dtypes: tuple[str, ...] = FLOATS, domain: str = "any") -> list[Sample]:
    return [Sample(fn, ("n m",), dtypes, domain)]


def two(fn: Any, dtypes: tuple[str, ...] = NUMBERS, domain: str = "any") -> list[Sample]:
    return [
        Sample(fn, ("n m", "n m"), dtypes, domain),
        Sample(fn, ("n m", "m"), dtypes, domain),
        Sample(fn, ("n 1", "1 m"), dtypes, domain),
    ]


def _update(x: Any, v: Any) -> Any:
    x = x.copy()
    x[:, 1:3] = v
    return x


def _scatter(x: Any, i: Any, v: Any) -> Any:
    x = x.copy()
    x[i] = v
    return x


SAMPLES: dict[str, list[Sample]] = {
    # pointwise
    "positive": one(np.positive),
    "negative": one(np.negative, NUMBERS),
    "abs": one(np.abs, NUMBERS),
    "exp": one(np.exp),
    "exp2": one(np.exp2),
    "expm1": one(np.expm1),
    "log": one(np.log, domain="positive"),
    "log2": one(np.log2, domain="positive"),
    "log10": one(np.log10, domain="positive"),
    "log1p": one(np.log1p, domain="positive"),
    "sqrt": one(np.sqrt, domain="positive"),
    "cbrt": one(np.cbrt, ("f8", "f4")),
    "tanh": one(np.tanh),
    "sinh": one(np.sinh),
    "cosh": one(np.cosh),
    "sin": one(np.sin),
    "cos": one(np.cos),
    "tan": one(np.tan),
    "arcsin": one(np.arcsin, domain="unit"),
    "arccos": one(np.arccos, domain="unit"),
    "arctan": one(np.arctan),
    "arcsinh": one(np.arcsinh),
    "arccosh": [Sample(lambda x: np.arccosh(np.abs(x) + 1), ("n m",), FLOATS)],
    "arctanh": [Sample(lambda x: np.arctanh(x / 2), ("n m",), FLOATS, "unit")],
    "floor": one(np.floor),
    "ceil": one(np.ceil),
    "trunc": one(np.trunc),
    "rint": one(np.rint),
    "sign": one(np.sign, NUMBERS),
    "square": one(np.square, NUMBERS),
    "reciprocal": one(np.reciprocal, domain="positive"),
    "isnan": one(np.isnan),
    "isinf": one(np.isinf),
    "isfinite": one(np.isfinite),
    "signbit": one(np.signbit),
    "spacing": one(np.spacing),
    "conj": one(np.conj),
    "real": one(np.real),
    "imag": [Sample(lambda x: np.imag(x * 1j), ("n m",), ("f8",))],
    "deg2rad": one(np.deg2rad),
    "rad2deg": one(np.rad2deg),
    "logical_not": one(np.logical_not, ALL),
    "invert": one(np.invert, ("i8", "?")),
    "popcount": one(np.bitwise_count, INTS),
    "modf": one(np.modf),
    "frexp": one(np.frexp),
    "divmod": two(np.divmod, ("f8",), "positive"),
    "add": two(np.add, ALL),
    "subtract": two(np.subtract),
    "multiply": two(np.multiply, ALL),
    "divide": two(np.divide, FLOATS, "positive"),
    "maximum": two(np.maximum, ALL),
    "minimum": two(np.minimum, ALL),
    "power": two(np.power, FLOATS, "positive"),
    "float_power": two(np.float_power, ("f8",), "positive"),
    "floor_divide": two(np.floor_divide, NUMBERS, "positive"),
    "remainder": two(np.remainder, NUMBERS, "positive"),
    "fmod": two(np.fmod, NUMBERS, "positive"),
    "arctan2": two(np.arctan2, FLOATS),
    "hypot": two(np.hypot, FLOATS),
    "logaddexp": two(np.logaddexp, FLOATS),
    "logaddexp2": two(np.logaddexp2, FLOATS),
    "fmax": two(np.fmax),
    "fmin": two(np.fmin),
    "copysign": two(np.copysign, FLOATS),
    "nextafter": two(np.nextafter, FLOATS),
    "ldexp": [Sample(lambda x, y: np.ldexp(x, y), ("n m", "n m:i8"), ("f8",), "small")],
    "heaviside": two(np.heaviside, FLOATS),
    "gcd": two(np.gcd, INTS),
    "lcm": two(np.lcm, INTS, "small"),
    "equal": two(np.equal, ALL),
    "not_equal": two(np.not_equal, ALL),
    "less": two(np.less, ALL),
    "less_equal": two(np.less_equal, ALL),
    "greater": two(np.greater, ALL),
    "greater_equal": two(np.greater_equal, ALL),
    "logical_and": two(np.logical_and, ALL),
    "logical_or": two(np.logical_or, ALL),
    "logical_xor": two(np.logical_xor, ALL),
    "bitwise_and": two(np.bitwise_and, ("i8", "?")),
    "bitwise_or": two(np.bitwise_or, ("i8", "?")),
    "bitwise_xor": two(np.bitwise_xor, ("i8", "?")),
    "left_shift": two(np.left_shift, INTS, "small"),
    "right_shift": two(np.right_shift, INTS, "small"),
    "where": [Sample(lambda x, y: np.where(x > y, x, y * 2), ("n m", "n m"))],
    "cast": [Sample(lambda x: x.astype("f4"), ("n m",)), Sample(lambda x: x.astype(bool), ("n m",))],
    "copy": [Sample(lambda x: x.copy() + 0, ("n m",))],
    # contractions
    "matmul": [
        Sample(np.matmul, s, NUMBERS)
        for s in (
            ("n 3", "3 m"),
            ("3 n", "n m"),
            ("n", "n"),
            ("n m", "m"),
            ("n", "n m"),
            ("2 n 3", "2 3 m"),
            ("n 1 3 2", "m 2 3"),
        )
    ],
    "dot": [Sample(np.dot, s, NUMBERS) for s in (("n m", "m 3"), ("n 2 m", "3 m 2"), ("n", "n"))],
    "vdot": [Sample(np.vdot, ("n", "n"), NUMBERS)],
    "outer": [Sample(np.outer, ("n", "m"), NUMBERS)],
    "einsum": [
        Sample(lambda x, y: np.einsum("bij,bjk->bik", x, y), ("n 2 m", "n m 3")),
        Sample(lambda x, y: np.einsum("ij,kj->ki", x, y), ("n 3", "m 3")),
        Sample(lambda x: np.einsum("ij->j", x), ("n m",)),
    ],
    "tensordot": [
        Sample(lambda x, y: np.tensordot(x, y, axes=([1], [0])), ("n m", "m 3")),
        Sample(lambda x, y: np.tensordot(x, y, axes=2), ("2 n m", "n m 3")),
    ],
    # reductions
    **{
        f"reduce_{name}": [
            Sample(lambda x, f=f: f(x, axis=0), ("n m",), d),
            Sample(lambda x, f=f: f(x, axis=1, keepdims=True), ("n m",), d),
            Sample(lambda x, f=f: f(x), ("n m",), d),
        ]
        for name, f, d in (
            ("sum", np.sum, ALL),
            ("prod", np.prod, ("f8", "i8")),
            ("any", np.any, ALL),
            ("all", np.all, ALL),
        )
    },
    **{
        f"reduce_{name}": [
            Sample(lambda x, f=f: f(x, axis=0), ("n m",), ALL, empty=False),
            Sample(lambda x, f=f: f(x, axis=1, keepdims=True), ("n m",), ALL, empty=False),
            Sample(lambda x, f=f: f(x), ("n m",), ALL, empty=False),
        ]
        for name, f in (("max", np.max), ("min", np.min))
    },
    "argmax": [
        Sample(lambda x: np.argmax(x, axis=1), ("n m",), NUMBERS, empty=False),
        Sample(lambda x: np.argmax(x), ("n m",), NUMBERS, empty=False),
    ],
    "argmin": [Sample(lambda x: np.argmin(x, axis=0, keepdims=True), ("n m",), NUMBERS, empty=False)],
    # views
    "reshape": [
        Sample(lambda x: x.reshape(-1), ("n m",)),
        Sample(lambda x: x.reshape(x.shape[0], 2, 3), ("n 6",)),
        Sample(lambda x: x.reshape(2, x.shape[0] // 2, 3), ("n 3",), empty=False),
        Sample(lambda x: x[:, None], ("n m",)),
    ],
    "transpose": [Sample(lambda x: x.T, ("n m",)), Sample(lambda x: np.transpose(x, (1, 2, 0)), ("n 2 m",))],
    "broadcast_to": [
        Sample(lambda x: np.broadcast_to(x, (3, *x.shape)), ("n m",)),
        Sample(lambda x: np.broadcast_to(x, (x.shape[0], 4)), ("n 1",)),
    ],
    # indexing
    "slice": [
        Sample(lambda x: x[1:3], ("n m",)),
        Sample(lambda x: x[:, ::2], ("n m",)),
        Sample(lambda x: x[1:, 1:], ("n m",)),
    ],
    "flip": [Sample(lambda x: np.flip(x, 0), ("n m",)), Sample(lambda x: x[:, ::-1], ("n m",))],
    "roll": [
        Sample(lambda x: np.roll(x, x.shape[0], axis=0), ("n m",)),
        Sample(lambda x: np.roll(x, 2, axis=0), ("n m",)),
        Sample(lambda x: np.roll(x, (1, -1), axis=(0, 1)), ("n m",)),
    ],
    "pad": [
        Sample(lambda x: np.pad(x, ((1, 2), (0, 0))), ("n m",)),
        Sample(lambda x: np.pad(x, ((0, 0), (2, 0)), constant_values=3), ("n m",)),
    ],
    "concatenate": [
        Sample(lambda x, y: np.concatenate([x, y]), ("n m", "3 m")),
        Sample(lambda x, y: np.concatenate([x, y, x], axis=1), ("n m", "n 2")),
    ],
    "take": [
        Sample(lambda x, i: np.take(x, i, axis=0), ("n m", "3 2:index"), empty=False),
        Sample(lambda x, i: np.take(x, i, axis=1), ("m n", "4:index"), empty=False),
        Sample(lambda x, i: x[i], ("n m", "m:index"), empty=False),
    ],
    "take_along_axis": [Sample(lambda x, i: np.take_along_axis(x, i, axis=0), ("n m", "3 m:index"), empty=False)],
    "update_slice": [Sample(_update, ("n 4", "n 2"))],
    "scatter": [Sample(_scatter, ("n m", "2:distinct", "2 m"), empty=False)],
    # scans and sorts
    "cumsum": [Sample(lambda x: np.cumsum(x, axis=0), ("n m",)), Sample(lambda x: np.cumsum(x, axis=1), ("n m",))],
    "cumprod": [Sample(lambda x: np.cumprod(x, axis=0), ("n m",), ("f8", "i8"))],
    "sort": [Sample(lambda x: np.sort(x, axis=0), ("n m",)), Sample(lambda x: np.sort(x, axis=1), ("n m",))],
    "argsort": [Sample(lambda x: np.argsort(x, axis=0, kind="stable"), ("n m",))],
    "tril": [Sample(np.tril, ("n m",)), Sample(lambda x: np.tril(x, -1), ("2 n m",))],
    "triu": [Sample(np.triu, ("n m",)), Sample(lambda x: np.triu(x, 1), ("n m",))],
    # made in the program
    "full": [Sample(lambda x: x + np.ones(x.shape), ("n m",), ("f8",))],
}


def arguments(sample: Sample, sizes: tuple[int, int], dtype: str, special: bool = False) -> list[Array]:
    """Arrays of the shapes a sample asks for."""
    random = np.random.default_rng(7)
    named = {"n": sizes[0], "m": sizes[1]}
    made: list[Array] = []
    for text in sample.shapes:
        dims, _, kind = text.partition(":")
        words = [(word[:-1] or "1", named[word[-1]]) if word[-1] in named else (word, 1) for word in dims.split()]
        shape = tuple(int(times) * size for times, size in words)
        if kind in INDICES:
            made.append(INDICES[kind](random, shape, sizes[0]))
        elif kind == "spd":
            made.append(_with_special(_definite(random, shape, dtype), special))
        else:
            made.append(_with_special(_numbers(random, shape, kind or dtype, sample.domain), special))
    return made


INDICES = {
    # Rows of the first argument, from either end; each of them once at most.
    "index": lambda random, shape, rows: random.integers(-rows, rows, shape),
    "distinct": lambda random, shape, rows: random.permutation(rows)[: shape[0]],
    # Of StableHLO, which has no negative indices: also some that point outside; none twice along the dim before last.
    "points": lambda random, shape, rows: random.integers(-1, 6, shape),
    "apart": lambda random, shape, rows: np.arange(shape[-2])[:, None] + random.integers(0, 5, (*shape[:-2], 1, 1)),
    "start": lambda random, shape, rows: random.integers(-1, 5, shape),
}


def _numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str, domain: str) -> Array:
    if dtype == "?":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in ("i8", "u8"):
        low, high = {"positive": (1, 9), "small": (0, 4)}.get(domain, (-5, 6) if dtype == "i8" else (0, 9))
        return random.integers(low, high, shape).astype(dtype)
    values = random.standard_normal(shape)
    if domain == "positive":
        values = np.abs(values) + 0.5
    elif domain in ("unit", "small"):
        values = np.tanh(values)
    if dtype == "c16":
        return values + 1j * random.standard_normal(shape)
    return np.asarray(values, dtype)


def _definite(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Symmetric matrices far from singular."""
    values = np.tanh(random.standard_normal(shape))
    return np.asarray(values + values.swapaxes(-1, -2) + 2 * shape[-1] * np.eye(shape[-1]), dtype)


def _with_special(values: Array, special: bool) -> Array:
    if special and values.dtype.kind in "fc" and values.size > 3:
        values.flat[:: max(2, values.size // 3)] = np.nan
        values.flat[1] = np.inf
        values.flat[2] = -np.inf
    return values
