"""Arithmetic, comparisons and choices on numbers that are known.

Along one dim they are computed.  Of two dims a sum stays a number of the row and one of the column, and a comparison of
such is a run of columns in each row, found by search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ir.graph import TensorType
from ...spec.sharding import Shape
from .calls import Call, Op
from .movement import cast
from .numbers import Array, Known, Number, Runs, Sum, as_runs, compared, exact_sum, is_float, pointwise_runs

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "le": np.less_equal, "lt": np.less, "ge": np.greater_equal, "gt": np.greater, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_TURNED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt", "eq": "eq", "ne": "ne"}
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "rsub": lambda x, y: y - x, "mul": np.multiply, "neg": np.negative,
    "negative": np.negative, "abs": np.abs, "minimum": np.minimum, "maximum": np.maximum, "div": np.divide,
    "floor_divide": np.floor_divide, "remainder": np.remainder,
}  # fmt: skip
LOGIC: dict[str, Callable[..., Any]] = {
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "logical_not": np.logical_not, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor, "bitwise_not": np.bitwise_not,
}  # fmt: skip


# -- arithmetic -----------------------------------------------------------------------------------------


def _operands(call: Call, count: int) -> list[Number]:
    """The operands, with numbers that stand in attributes in the places of those that are absent."""
    words = {2: ("other",), 3: ("self", "other")}.get(count, ())
    found: list[Number] = []
    said = iter([call.attrs[word] for word in words if word in call.attrs])
    for place in range(count):
        operand = call.operands[place] if place < len(call.operands) else None
        found.append(_scalar(next(said)) if operand is None else operand)
    return found


def _scalar(number: Any) -> Known:
    kind = "bool" if isinstance(number, bool) else "i64" if isinstance(number, int) else "f64"
    return Known((), kind, np.asarray(number))


def _common(call: Call, given: Sequence[Number]) -> str:
    """The element type in which operands meet: tensors decide, numbers only by their kind."""
    order = ("f64", "f32", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "bool")
    tensors = [x.dtype for x, o in zip(given, (*call.operands, *[None] * len(given))) if o is not None]
    floats = {dtype for dtype in tensors if is_float(dtype)}
    if {"bf16", "f16"} <= floats:
        return "f32"
    best = min(tensors, key=order.index)
    loose = any(is_float(x.dtype) for x in given)
    return "f32" if loose and not floats else best


def _meet(x: Number, dtype: str) -> Number | None:
    """An operand in the type in which the op computes."""
    if x.dtype == dtype or not (is_float(dtype) or x.dtype == "bool"):
        return x
    return cast(Call("cast", {}, [x], TensorType(x.shape, dtype)))


def _dims(shape: Shape, given: Sequence[Number]) -> list[int]:
    """Along which dims of the result something changes."""
    return sorted({d + len(shape) - len(x.shape) for x in given for d in x.dims})


def _line(x: Number, rank: int, dim: int) -> Array | None:
    """The numbers of a value that changes along this dim at most."""
    return x.numbers.reshape(-1) if isinstance(x, Known) and _dims((1,) * rank, [x]) in ([], [dim]) else None


def _split(x: Number, rank: int, row: int, column: int) -> tuple[Array, Array] | None:
    """As a number of the row and one of the column, to be added."""
    if isinstance(x, Sum):
        shift = rank - len(x.shape)
        fits = (x.row + shift, x.column + shift) == (row, column) and not x.absolute
        return (x.rows, x.columns) if fits else None
    of_row, of_column = _line(x, rank, row), _line(x, rank, column)
    nothing = np.zeros(1)
    return (of_row, nothing) if of_row is not None else (nothing, of_column) if of_column is not None else None


def _arithmetic(call: Call) -> Number | None:
    name = "sub" if call.name == "subtract" else call.name
    of = ARITHMETIC[name]
    given = _operands(call, 1 if name in ("neg", "negative", "abs") else 2)
    met = [_meet(x, call.dtype) for x in given]
    if any(x is None for x in met):
        return None
    ready = [x for x in met if x is not None]
    alpha = call.attrs.get("alpha", 1)
    rounding = call.attrs.get("rounding_mode")
    if name == "div" and rounding is not None:
        if rounding != "floor":
            return None
        of = np.floor_divide
    if name in ("div", "floor_divide", "remainder") and any(
        isinstance(x, Known) and bool(np.any(x.numbers == 0)) for x in ready[1:]
    ):
        return None
    if alpha != 1:
        scaled = 0 if name == "rsub" else 1
        times = _arithmetic(Call("mul", {"other": alpha}, [ready[scaled], None], TensorType(
            ready[scaled].shape, call.dtype)))  # fmt: skip
        if times is None:
            return None
        ready[scaled] = times
    dims = _dims(call.shape, ready)
    if all(isinstance(x, Known) for x in ready) and len(dims) < 2:
        with np.errstate(all="ignore"):
            return call.known(of(*[_aligned(x, len(call.shape)) for x in ready]))
    made = _sum(call, name, ready, dims)
    return made if made is not None or call.dtype == "bool" else _by_runs(call, ready, of, dims)


def _aligned(x: Number, rank: int) -> Array:
    assert isinstance(x, Known)
    return x.numbers.reshape((1,) * (rank - x.numbers.ndim) + x.numbers.shape)


def _sum(call: Call, name: str, ready: Sequence[Number], dims: Sequence[int]) -> Number | None:
    """A number of the row and one of the column: added, subtracted, turned about or multiplied by a number."""
    if len(dims) != 2 or any(isinstance(x, Runs) for x in ready):
        return None
    row, column = dims
    parts = [_split(x, len(call.shape), row, column) for x in ready]
    if any(part is None for part in parts):
        return None
    (first, *rest) = [part for part in parts if part is not None]
    if name in ("add", "sub", "rsub"):
        signs = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}[name]
        rows, columns = (signs[0] * a + signs[1] * b for a, b in zip(first, rest[0]))
    elif name in ("neg", "negative"):
        rows, columns = -first[0], -first[1]
    elif name == "abs":
        rows, columns = first
    elif name == "mul" and any(isinstance(x, Known) and x.is_constant for x in ready):
        by = next(x.constant for x in ready if isinstance(x, Known) and x.is_constant)
        of = next(part for x, part in zip(ready, (first, *rest)) if not (isinstance(x, Known) and x.is_constant))
        rows, columns = by * of[0], by * of[1]
    else:
        return None
    sizes = call.shape[row], call.shape[column]
    exact = exact_sum(np.broadcast_to(rows, sizes[0]), np.broadcast_to(columns, sizes[1]), call.dtype)
    return None if exact is None else Sum(call.shape, call.dtype, row, column, *exact, name == "abs")


def _compare(call: Call) -> Number | None:
    given = _operands(call, 2)
    common = _common(call, given)
    met = [_meet(x, common) for x in given]
    left, right = met
    if left is None or right is None:
        return None
    dims = _dims(call.shape, [left, right])
    if isinstance(left, Known) and isinstance(right, Known) and len(dims) < 2:
        rank = len(call.shape)
        return call.known(COMPARISONS[call.name](_aligned(left, rank), _aligned(right, rank)))
    if len(dims) != 2:
        return None
    if any(isinstance(x, Sum) and x.absolute for x in (left, right)):
        return _compare_size(call, left, right)
    edges = None
    if not any(isinstance(x, Runs) for x in (left, right)):
        edges = _compared_edges(call, call.name, left, right, dims)
    if edges is None:
        return _by_runs(call, [left, right], COMPARISONS[call.name], dims)
    return Runs(call.shape, "bool", dims[0], dims[1], edges, True, False)


def _compared_edges(call: Call, name: str, left: Number, right: Number, dims: Sequence[int]) -> Array | None:
    rank, (row, column) = len(call.shape), dims
    sizes = call.shape[row], call.shape[column]
    for a, b, how in ((left, right, name), (right, left, _TURNED[name])):
        rows, columns = _line(a, rank, row), _line(b, rank, column)
        if rows is not None and columns is not None:  # as they are, be they whole or not
            return compared(how, np.broadcast_to(rows, sizes[0]), np.broadcast_to(columns, sizes[1]))
    parts = [_split(x, rank, row, column) for x in (left, right)]
    if parts[0] is None or parts[1] is None:
        return None
    exact = exact_sum(parts[0][0] - parts[1][0], parts[1][1] - parts[0][1], "f64")
    if exact is None:
        return None
    return compared(name, np.broadcast_to(exact[0], sizes[0]), np.broadcast_to(exact[1], sizes[1]))


def _compare_size(call: Call, left: Number, right: Number) -> Number | None:
    """The distance of row and column against a number."""
    name, size, number = call.name, left, right
    if not isinstance(size, Sum) or not size.absolute:
        name, size, number = _TURNED[name], right, left
    if not isinstance(size, Sum) or not isinstance(number, Known) or not number.is_constant:
        return None
    plain, most = replace(size, absolute=False), number.constant
    below, above, turned = {
        "le": ("le", "ge", False), "gt": ("le", "ge", True), "lt": ("lt", "gt", False), "ge": ("lt", "gt", True),
    }[name]  # fmt: skip
    sides = [
        _compare(Call(how, {}, [plain, Known((), plain.dtype, np.asarray(edge))], call.result))
        for how, edge in ((below, most), (above, -most))
    ]
    both = None if None in sides else _pointwise(Call("logical_and", {}, sides, call.result), np.logical_and)
    if both is None or not turned:
        return both
    return _pointwise(Call("logical_not", {}, [both], call.result), np.logical_not)


# -- element by element -----------------------------------------------------------------------------------


def _pointwise(call: Call, of: Callable[..., Any], given: Sequence[Number] | None = None) -> Number | None:
    ready = list(call.operands if given is None else given)
    dims = _dims(call.shape, ready)
    if all(isinstance(x, Known) for x in ready) and len(dims) < 2:
        return call.known(of(*[_aligned(x, len(call.shape)) for x in ready]))
    return _by_runs(call, ready, of, dims)


def _by_runs(call: Call, ready: Sequence[Number], of: Callable[..., Any], dims: Sequence[int]) -> Number | None:
    if len(dims) != 2:
        return None
    at = (dims[0], dims[1])
    sizes = call.shape[at[0]], call.shape[at[1]]
    parts = [as_runs(x, len(call.shape), at, sizes) for x in ready]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    with np.errstate(all="ignore"):
        return pointwise_runs(found, call.shape, call.dtype, of, sizes[1])


def _logic(call: Call) -> Number | None:
    of = LOGIC[call.name]
    given = _operands(call, 1 if call.name.endswith("not") else 2)
    if call.name.startswith("bitwise") and any(x.dtype != "bool" for x in given):
        return None
    return _pointwise(call, of, given)


def _where(call: Call) -> Number | None:
    condition, *rest = _operands(call, 3)
    chosen = [_meet(x, call.dtype) for x in rest]
    if condition.dtype != "bool" or chosen[0] is None or chosen[1] is None:
        return None
    return _pointwise(call, np.where, [condition, chosen[0], chosen[1]])


def _masked_fill(call: Call) -> Number | None:
    x, mask = call.operands[:2]
    value = call.operands[2] if len(call.operands) > 2 and call.operands[2] is not None else None
    number = _scalar(call.attrs["value"]) if value is None else value
    filled = _meet(number, call.dtype)
    return None if filled is None else _pointwise(call, np.where, [mask, filled, x])


def _triangle(lower: bool) -> Op:
    def read(call: Call) -> Number | None:
        x, k = call.operands[0], call.attrs.get("k", 0)
        rows, columns = call.shape[-2:]
        if rows < 2 or columns < 2:
            return call.known(np.tril(x.full, k) if lower else np.triu(x.full, k)) if isinstance(x, Known) else None
        row, column = np.arange(rows), np.arange(columns)
        edges = compared("ge" if lower else "le", row + k, column)
        assert edges is not None  # columns rise
        rank = len(call.shape)
        kept = Runs(call.shape, "bool", rank - 2, rank - 1, edges, True, False)
        return _by_runs(call, [kept, x, Known.of((), call.dtype, 0)], np.where, (rank - 2, rank - 1))

    return read


def _clamp(call: Call) -> Number | None:
    x = call.operands[0]
    low, high = call.attrs.get("min"), call.attrs.get("max")
    if not isinstance(x, Known) or any(o is not None for o in call.operands[1:]):
        return None
    return call.known(np.clip(x.numbers, low, high))


POINTWISE: dict[str, Op] = {
    **dict.fromkeys((*ARITHMETIC, "subtract"), _arithmetic),
    **dict.fromkeys(COMPARISONS, _compare),
    **dict.fromkeys(LOGIC, _logic),
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "clamp": _clamp,
}
