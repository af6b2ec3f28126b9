"""Products summed over shared dims: matmul, dot, tensordot, einsum and their kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ....spec.sharding import Shape
from ..dtypes import DType, tiny
from ..emit import axes_of, broadcast, broadcast_shape, cast, lift, node, reshaped
from ..registry import implements
from ..tracer import Tracer
from .shaping import diagonal, moveaxis
from .ufuncs import special


@lru_cache(maxsize=1024)
def _result_dtype(function: Callable[..., Any], left: DType, right: DType) -> DType:
    found: DType = np.asarray(function(tiny(left), tiny(right))).dtype
    return found


def _product(op: str, left: Tracer, right: Tracer, shape: Shape, **attrs: Any) -> Tracer:
    return node(op, [left, right], shape, _result_dtype(np.dot, left.dtype, right.dtype), **attrs)


def matmul(x1: Any, x2: Any) -> Tracer:
    a, b = lift(x1), lift(x2)
    _result_dtype(np.matmul, a.dtype, b.dtype)
    for i, operand in enumerate((a, b)):
        if not operand.shape:
            raise ValueError(
                f"matmul: Input operand {i} does not have enough dimensions "
                "(has 0, gufunc core with signature (n?,k),(k,m?)->(n?,m?) requires 1)"
            )
    inner = a.shape[-1], b.shape[-2] if b.ndim > 1 else b.shape[0]
    if inner[0] != inner[1]:
        raise ValueError(
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {inner[1]} is different from {inner[0]})"
        )
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    shape = batch + a.shape[-2:-1] + (b.shape[-1:] if b.ndim > 1 else ())
    return _product("matmul", a, b, shape)


special[np.matmul] = matmul
implements("linalg.matmul")(lambda x1, x2, /: matmul(x1, x2))


def _with_dims(name: str, operand: Any, least: int) -> Tracer:
    x = lift(operand)
    if x.ndim < least:
        raise ValueError(f"{name}: an input operand does not have enough dimensions (has {x.ndim}, needs {least})")
    return x


def _vecdot(x1: Any, x2: Any) -> Any:
    """A row times a column each."""
    a, b = _with_dims("vecdot", x1, 1), _with_dims("vecdot", x2, 1)
    row: Any = reshaped(a, (*a.shape[:-1], 1, *a.shape[-1:]))
    made = matmul(np.conjugate(row) if a.dtype.kind == "c" else row, reshaped(b, (*b.shape, 1)))
    return reshaped(made, made.shape[:-2])


def _matvec(x1: Any, x2: Any) -> Any:
    x = _with_dims("matvec", x2, 1)
    made = matmul(_with_dims("matvec", x1, 2), reshaped(x, (*x.shape, 1)))
    return reshaped(made, made.shape[:-1])


def _vecmat(x1: Any, x2: Any) -> Any:
    x = _with_dims("vecmat", x1, 1)
    row: Any = reshaped(x, (*x.shape[:-1], 1, *x.shape[-1:]))
    made = matmul(np.conjugate(row) if x.dtype.kind == "c" else row, _with_dims("vecmat", x2, 2))
    return reshaped(made, (*made.shape[:-2], made.shape[-1]))


for _name, _handler in (("vecdot", _vecdot), ("matvec", _matvec), ("vecmat", _vecmat)):
    if hasattr(np, _name):  # NumPy 2.0 brought the first, 2.2 the others
        special[getattr(np, _name)] = _handler


@implements("linalg.vecdot")
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    a, b = (moveaxis(lift(x), axis, -1) for x in (x1, x2))
    return _vecdot(a, b)


@implements("dot")
def dot(a: Any, b: Any, out: Any = None) -> Any:
    left, right = lift(a), lift(b)
    if not left.shape or not right.shape:
        return _product("dot", left, right, left.shape + right.shape)
    k = 0 if right.ndim == 1 else right.ndim - 2
    if left.shape[-1] != right.shape[k]:
        shown = [str(side.shape).replace(" ", "") for side in (left, right)]
        raise ValueError(
            f"shapes {shown[0]} and {shown[1]} not aligned: "
            f"{left.shape[-1]} (dim {left.ndim - 1}) != {right.shape[k]} (dim {k})"
        )
    return _product("dot", left, right, left.shape[:-1] + right.shape[:k] + right.shape[k + 1 :])


@implements("vdot")
def vdot(a: Any, b: Any, /) -> Tracer:
    left, right = (reshaped(lift(x), (lift(x).size,)) for x in (a, b))
    if left.shape != right.shape:
        raise ValueError(f"cannot reshape array of size {right.size} into shape {left.shape}")
    return _product("vdot", left, right, ())


@implements("inner")
def inner(a: Any, b: Any, /) -> Any:
    left, right = lift(a), lift(b)
    if not left.shape or not right.shape or left.ndim == right.ndim == 1:
        return dot(left, right)
    if left.shape[-1] != right.shape[-1]:
        shown = [str(side.shape).replace(" ", "") for side in (left, right)]
        raise ValueError(
            f"shapes {shown[0]} and {shown[1]} not aligned: "
            f"{left.shape[-1]} (dim {left.ndim - 1}) != {right.shape[-1]} (dim {right.ndim - 1})"
        )
    return tensordot(left, right, axes=((-1,), (-1,)))


@implements("outer")
def outer(a: Any, b: Any, out: Any = None) -> Tracer:
    left, right = (reshaped(lift(x), (lift(x).size,)) for x in (a, b))
    dtype = _result_dtype(np.outer, left.dtype, right.dtype)
    return node("outer", [left, right], left.shape + right.shape, dtype)


@implements("linalg.outer")
def vector_outer(x1: Any, x2: Any, /) -> Tracer:
    if lift(x1).ndim != 1 or lift(x2).ndim != 1:
        raise ValueError("Input arrays must be one-dimensional")
    return outer(x1, x2)


@implements("tensordot", "linalg.tensordot")
def tensordot(a: Any, b: Any, axes: Any = 2) -> Tracer:
    left, right = lift(a), lift(b)
    if isinstance(axes, int | np.integer):
        sides: Any = (tuple(range(left.ndim - int(axes), left.ndim)), tuple(range(int(axes))))
    else:
        sides = tuple(side if isinstance(side, tuple | list) else (side,) for side in axes)
    dims_left, dims_right = axes_of(tuple(sides[0]), left.ndim), axes_of(tuple(sides[1]), right.ndim)
    if [left.shape[d] for d in dims_left] != [right.shape[d] for d in dims_right]:
        raise ValueError("shape-mismatch for sum")
    shape = tuple(size for d, size in enumerate(left.shape) if d not in dims_left)
    shape += tuple(size for d, size in enumerate(right.shape) if d not in dims_right)
    return _product("tensordot", left, right, shape, axes=(dims_left, dims_right))


@implements("kron")
def kron(a: Any, b: Any) -> Any:
    left, right = lift(a), lift(b)
    rank = max(left.ndim, right.ndim)
    shapes = [(1,) * (rank - side.ndim) + side.shape for side in (left, right)]
    spread_left = tuple(size for dim in shapes[0] for size in (dim, 1))
    spread_right = tuple(size for dim in shapes[1] for size in (1, dim))
    made: Any = np.multiply(reshaped(left, spread_left), reshaped(right, spread_right))
    return reshaped(made, tuple(m * n for m, n in zip(*shapes)))


@implements("trace")
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    return np.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@implements("linalg.trace")
def matrix_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return trace(x, offset, -2, -1, dtype)


@implements("cross", "linalg.cross")
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    left: Any = moveaxis(lift(a), axisa, -1)
    right: Any = moveaxis(lift(b), axisb, -1)
    if left.shape[-1] != 3 or right.shape[-1] != 3:
        raise ValueError(
            f"Both input arrays must be (arrays of) 3-dimensional vectors, but they are {left.shape[-1]} and "
            f"{right.shape[-1]} dimensional instead."
        )
    dtype = np.promote_types(left.dtype, right.dtype)
    left, right = cast(left, dtype), cast(right, dtype)
    turned = [np.roll(side, -n, -1) for side, n in ((left, 1), (right, 2), (left, 2), (right, 1))]
    made: Any = np.multiply(turned[0], turned[1]) - np.multiply(turned[2], turned[3])
    return moveaxis(made, -1, axisc)


# einsum


@implements("einsum")
def einsum(*operands: Any, out: Any = None, optimize: Any = False, dtype: Any = None) -> Tracer:
    """The equation is written out in full: explicit result, no spaces.  ``optimize`` does not change the meaning."""
    equation, arrays = _spelled(operands)
    parts = [lift(array) for array in arrays]
    terms, result = _terms(equation)
    sizes, dots = _sizes(terms, [part.shape for part in parts])
    shape = tuple(sizes[letter] for letter in result.replace("...", ""))
    at = result.find("...")
    shape = shape if at < 0 else shape[:at] + dots + shape[at:]
    found = np.result_type(*(part.dtype for part in parts)) if dtype is None else np.dtype(dtype)
    if dtype is not None:
        parts = [cast(part, found) for part in parts]
    return node("einsum", list(_aligned(terms, parts, sizes)), shape, found, equation=",".join(terms) + "->" + result)


def _spelled(operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """The equation and the arrays; NumPy also takes arrays each followed by a list of numbers."""
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), operands[1:]
    count = len(operands) // 2
    arrays, lists = operands[: 2 * count : 2], operands[1 : 2 * count : 2]
    words = ["".join("..." if item is Ellipsis else _letter(item) for item in items) for items in lists]
    equation = ",".join(words)
    if len(operands) % 2:
        equation += "->" + "".join("..." if item is Ellipsis else _letter(item) for item in operands[-1])
    return equation, arrays


def _letter(number: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[number]


def _terms(equation: str) -> tuple[list[str], str]:
    """Operands' terms and the result's, which NumPy makes of the letters that stand once."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    letters = left.replace(",", "").replace(".", "")
    if not arrow:
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        result = ("..." if "..." in left else "") + "".join(once)
    for letter in result.replace(".", ""):
        if letter not in letters:
            raise ValueError(
                f"einstein sum subscripts string included output subscript '{letter}' which never appeared"
            )
    return terms, result


def _sizes(terms: list[str], shapes: list[Shape]) -> tuple[dict[str, int], Shape]:
    """The size of each letter, and the common shape of the dots."""
    if len(terms) != len(shapes):
        raise ValueError("the number of operands is not that of the terms in the einstein sum subscripts string")
    sizes: dict[str, int] = {}
    dots: Shape = ()
    for term, shape in zip(terms, shapes):
        letters = term.replace("...", "")
        extra = len(shape) - len(letters)
        if extra < 0 or (extra and "..." not in term):
            raise ValueError(f"operand of shape {shape} does not fit the einstein sum subscripts {term!r}")
        at = term.find("...") if "..." in term else len(letters)
        dots = broadcast_shape(dots, shape[at : at + extra])
        for letter, size in zip(letters, shape[:at] + shape[at + extra :]):
            known = sizes.setdefault(letter, size)
            if size not in (known, 1) and known != 1:
                raise ValueError(f"operands could not be broadcast together: {letter!r} is {known} and {size}")
            sizes[letter] = size if known == 1 else known
    return sizes, dots


def _aligned(terms: list[str], parts: list[Tracer], sizes: dict[str, int]) -> Sequence[Tracer]:
    """Dims of 1 that NumPy stretches to a letter's size are stretched before, so that a letter has one size."""
    made = []
    for term, part in zip(terms, parts):
        letters = term.replace("...", "")
        at = term.find("...") if "..." in term else len(letters)
        extra = part.shape[at : at + part.ndim - len(letters)]
        wanted = [sizes[letter] for letter in letters]
        made.append(broadcast(part, (*wanted[:at], *extra, *wanted[at:])))
    return made


@implements("linalg.multi_dot")
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """In the order that costs least, as NumPy does."""
    parts = [lift(array) for array in arrays]
    if len(parts) < 2:
        raise ValueError("Expecting at least two arrays.")
    for i, part in enumerate(parts):
        if part.ndim != 2 and (part.ndim != 1 or 0 < i < len(parts) - 1):
            raise np.linalg.LinAlgError(f"{part.ndim}-dimensional array given. Array must be two-dimensional")
    first, last = parts[0].ndim, parts[-1].ndim
    parts[0] = reshaped(parts[0], (1, *parts[0].shape)) if first == 1 else parts[0]
    parts[-1] = reshaped(parts[-1], (*parts[-1].shape, 1)) if last == 1 else parts[-1]
    made = _chain(parts, _cheapest([part.shape[0] for part in parts] + [parts[-1].shape[1]]), 0, len(parts) - 1)
    return reshaped(made, made.shape[first == 1 : 2 - (last == 1)])


def _cheapest(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where to split each stretch of a chain of matrices."""
    cost: dict[tuple[int, int], int] = {(i, i): 0 for i in range(len(sizes) - 1)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, len(sizes) - 1):
        for i in range(len(sizes) - 1 - length):
            j = i + length
            costs = [cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)]
            cost[i, j], split[i, j] = min(costs), i + costs.index(min(costs))
    return split


def _chain(parts: list[Tracer], split: dict[tuple[int, int], int], i: int, j: int) -> Any:
    if i == j:
        return parts[i]
    return dot(_chain(parts, split, i, split[i, j]), _chain(parts, split, split[i, j] + 1, j))


@implements("linalg.matrix_power")
def matrix_power(a: Any, n: int) -> Any:
    """By squaring, as NumPy does."""
    x = lift(a)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if n <= 0:
        raise ValueError("in a traced function the exponent of matrix_power must be 1 or more")
    if n == 3:
        return matmul(matmul(x, x), x)
    square, made = x, None
    while True:
        n, bit = divmod(n, 2)
        if bit:
            made = square if made is None else matmul(made, square)
        if not n:
            return made
        square = matmul(square, square)
