"""Comparisons, maxima, sorting; choice by a condition, lookup, and elements put in the place of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from .calls import Calling, Evaluator, Meaning, operand_or_number, pair
from .numbers import Array, Number, Numbers, is_infinite

# -- order ------------------------------------------------------------------------------------------------


def _compare(holds: Callable[[Array], Array]) -> Meaning:
    def meaning(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
        return Number("bool", holds(m.numbers.sign(*pair(m, call, operands))))

    return meaning


def _larger(sign: int) -> Meaning:
    def meaning(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
        x, y = pair(m, call, operands)
        if _is_constant(m.numbers, x) != _is_constant(m.numbers, y):
            return bounded_by(m.numbers, sign, x, y)
        return one_of(m.numbers, sign, x, y)

    return meaning


def bounded_by(numbers: Numbers, sign: int, x: Number, y: Number) -> Number:
    """The larger or smaller of a number and a bound, in which both show.

    Their difference counts by a factor that is a function of it, so that no mistake hides in the one that is not taken:
    clipping by a wrong norm, say, where the gradient happens not to be clipped.  Two bounded either way come to their
    sum, and which of them is named first is the same.  Infinities bound nothing, or all.
    """
    taken = replace(_chosen(numbers, sign, x, y), plain=None, shift=None, logarithm=False)
    (a, high), (b, low) = numbers.parts(x), numbers.parts(y)
    apart = numbers.mod(a - b)
    opposite = numbers.mod(-apart)
    turned = opposite < apart
    known = Number("f64", None, np.where(turned, opposite, apart), apart)
    weight = numbers.parts(numbers.hashed(("bounded",), [known], "f64"))[0]
    weight = np.where(turned ^ (sign < 0), numbers.mod(1 - weight), weight)
    both = numbers.mod(b + numbers.mod(weight * apart))
    return replace(taken, residue=np.where(is_infinite(high) | is_infinite(low), numbers.parts(taken)[0], both))


def _is_constant(numbers: Numbers, x: Number) -> bool:
    """Whether residues are those of the heights: numbers that stand in the program."""
    residue, height = numbers.parts(x)
    known = numbers.parts(numbers.real(height.reshape(-1)[:1], x.dtype))[0]
    if not residue.size or residue.reshape(-1)[0] != known[0]:
        return False
    return bool(np.array_equal(residue, numbers.parts(numbers.real(height, x.dtype))[0]))


def one_of(numbers: Numbers, sign: int, x: Number, y: Number) -> Number:
    """The larger or smaller, which may be subtracted before an exponential."""
    return numbers.remembered(_chosen(numbers, sign, x, y))


def _chosen(numbers: Numbers, sign: int, x: Number, y: Number) -> Number:
    """By height: which of two level ones is all the same, if it is always the same."""
    (a, high), (b, low) = numbers.parts(x), numbers.parts(y)
    return numbers.choose((sign * high > sign * low) | ((high == low) & (a >= b)), x, y)


def _clamp(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x = operands[0]
    for n, (name, sign) in enumerate((("min", 1), ("max", -1)), 1):
        given = operands[n] if n < len(operands) else None
        bound = given if given is not None else call.attrs.get(name)
        if bound is not None:
            bound = bound if isinstance(bound, Number) else m.numbers.number(bound)
            x = bounded_by(m.numbers, sign, x, bound)
    return x


def _clamp_one(name: str, sign: int) -> Meaning:
    def meaning(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
        bound = operand_or_number(m, call, operands, 1, name)
        return bounded_by(m.numbers, sign, operands[0], bound)

    return meaning


def _rows(x: Number, dims: Any) -> tuple[Number, tuple[int, ...]]:
    """The dims that go, as one last dim, and which they are."""
    rank = len(x.shape)
    named = range(rank) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
    gone = tuple(sorted(d % max(rank, 1) for d in named)) if rank else ()
    kept = [d for d in range(rank) if d not in gone]
    shape = (*(x.shape[d] for d in kept), prod(x.shape[d] for d in gone))
    return x.map(lambda part: part.transpose([*kept, *gone]).reshape(shape)), gone


def _highest(m: Evaluator, x: Number, sign: int) -> Array:
    height = m.numbers.parts(x)[1]
    return np.asarray(np.argmax(sign * height, axis=-1))


def extreme(sign: int) -> Meaning:
    def meaning(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
        rows, _ = _rows(operands[0], call.attrs.get("dim"))
        at = _highest(m, rows, sign)[..., None]
        made = rows.map(lambda part: np.take_along_axis(part, at, -1)[..., 0].reshape(call.shape))
        return m.numbers.remembered(made)

    return meaning


def _extreme_along(sign: int) -> Meaning:
    """Values and places; these are as they were in the run, if that is known."""

    def meaning(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
        rows, _ = _rows(operands[0], call.attrs["dim"])
        at = _highest(m, rows, sign)
        made = rows.map(lambda part: np.take_along_axis(part, at[..., None], -1)[..., 0].reshape(call.shape))
        return [m.numbers.remembered(made), Number("i64", at.reshape(call.shape))]

    return meaning


def _arg_extreme(sign: int) -> Meaning:
    def meaning(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
        rows, _ = _rows(operands[0], call.attrs.get("dim"))
        return Number("i64", _highest(m, rows, sign).reshape(call.shape))

    return meaning


def _topk(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    (x,) = operands
    dim, count = call.attrs.get("dim", -1), call.attrs["k"]
    height = m.numbers.parts(x)[1]
    order = np.argsort(-height if call.attrs.get("largest", True) else height, axis=dim, kind="stable")
    at = np.take(order, np.arange(count), axis=dim)
    return [x.map(lambda part: np.take_along_axis(part, at, dim)), Number("i64", at)]


def _sort(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    (x,) = operands
    dim = call.attrs.get("dim", -1)
    height = m.numbers.parts(x)[1]
    at = np.argsort(-height if call.attrs.get("descending") else height, axis=dim, kind="stable")
    return [x.map(lambda part: np.take_along_axis(part, at, dim)), Number("i64", at)]


# -- choice and lookup ------------------------------------------------------------------------------------


def _where(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    condition = operands[0]
    x, y = (operand_or_number(m, call, operands, n, name) for n, name in ((1, "self"), (2, "other")))
    return m.numbers.choose(_truth_of(m, condition), x, y)


def _truth_of(m: Evaluator, x: Number) -> Array:
    if x.whole is not None:
        return np.asarray(x.whole != 0)
    return np.asarray(m.numbers.sign(x, m.numbers.number(0.0)) != 0)


def _masked_fill(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, mask = operands[:2]
    return m.numbers.choose(_truth_of(m, mask), operand_or_number(m, call, operands, 2, "value"), x)


def _threshold_backward(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    grad, x = operands
    low = m.numbers.sign(x, m.numbers.number(call.attrs["threshold"])) <= 0
    return m.numbers.choose(low, m.numbers.number(0.0), grad)


def _relu(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    (x,) = operands
    zero = m.numbers.number(0.0)
    return m.numbers.choose(m.numbers.sign(x, zero) > 0, x, zero)


def _embedding(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    table, index = operands
    return table.map(lambda part: part[index.whole])


def _index_put(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    """With ``accumulate`` it is a sum, else elements take the place of others."""
    x, indices, values = operands
    if call.attrs.get("accumulate"):
        return m.linear(call, [x, indices, values])
    return m.moved(call, [x, indices, values])


def _scatter(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    if call.attrs.get("value") is not None:
        x, index = operands[:2]
        mark = m.kernels.compute(
            call.op,
            {**call.attrs, "value": 1},
            [np.zeros(x.shape, np.int64), index.whole],
            [replace(call.results[0], dtype="i64")],
        )[0]
        return m.numbers.choose(mark == 1, m.numbers.number(call.attrs["value"]), x)
    return m.moved(call, operands)


def _slice_backward(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    return m.moved(call, operands)


def _view_as_complex(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    residue, height = m.numbers.parts(operands[0])
    return Number(call.dtype, None, residue[..., 0] + 1j * residue[..., 1], height[..., 0])


def _view_as_real(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    residue, height = m.numbers.parts(operands[0])
    return Number(call.dtype, None, np.stack([residue.real, residue.imag], -1), np.stack([height, height], -1))


def _conj(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    residue, height = m.numbers.parts(operands[0])
    return Number(call.dtype, None, m.numbers.mod(np.conj(residue)), height)


def _unwritten(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    """Memory that nobody has written: any numbers, others wherever it happens."""
    type = call.results[0]
    if type.dtype == "bool" or type.dtype[:1] in ("i", "u"):
        return m.numbers.whole(np.zeros(type.shape), type.dtype)
    seed = [m.numbers.field.key, call.attrs["draw"], call.attrs.get("rank", 0), 17]
    return m.numbers.random(np.random.default_rng(seed), type.shape, type.dtype)


UNWRITTEN = _unwritten
BY_NAME: dict[str, Meaning] = {
    **dict.fromkeys(("gt.Tensor", "gt.Scalar"), _compare(lambda sign: sign > 0)),
    **dict.fromkeys(("lt.Tensor", "lt.Scalar"), _compare(lambda sign: sign < 0)),
    **dict.fromkeys(("ge.Tensor", "ge.Scalar"), _compare(lambda sign: sign >= 0)),
    **dict.fromkeys(("le.Tensor", "le.Scalar"), _compare(lambda sign: sign <= 0)),
    **dict.fromkeys(("eq.Tensor", "eq.Scalar"), _compare(lambda sign: sign == 0)),
    **dict.fromkeys(("ne.Tensor", "ne.Scalar"), _compare(lambda sign: sign != 0)),
    **dict.fromkeys(("isnan", "isinf"), lambda m, call, operands: Number("bool", np.zeros(call.shape, np.bool_))),
    "maximum": _larger(1),
    "minimum": _larger(-1),
    **dict.fromkeys(("clamp", "clamp.Tensor"), _clamp),
    **dict.fromkeys(("clamp_min", "clamp_min.Tensor"), _clamp_one("min", 1)),
    **dict.fromkeys(("clamp_max", "clamp_max.Tensor"), _clamp_one("max", -1)),
    **dict.fromkeys(("amax", "max"), extreme(1)),
    **dict.fromkeys(("amin", "min"), extreme(-1)),
    "max.dim": _extreme_along(1),
    "min.dim": _extreme_along(-1),
    "argmax": _arg_extreme(1),
    "argmin": _arg_extreme(-1),
    "topk": _topk,
    **dict.fromkeys(("sort", "sort.stable"), _sort),
    **dict.fromkeys(("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar"), _where),
    **dict.fromkeys(("masked_fill.Scalar", "masked_fill.Tensor"), _masked_fill),
    "threshold_backward": _threshold_backward,
    "relu": _relu,
    "embedding": _embedding,
    **dict.fromkeys(("index_put", "_unsafe_index_put"), _index_put),
    **dict.fromkeys(("scatter.src", "scatter.value"), _scatter),
    "view_as_complex": _view_as_complex,
    "view_as_real": _view_as_real,
    **dict.fromkeys(("_conj", "conj", "_conj_physical", "conj_physical"), _conj),
    "resolve_conj": lambda m, call, operands: operands[0],
}
"""By the names of ATen's overloads."""
