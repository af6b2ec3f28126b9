"""Sums, products, powers and norms; exponentials, logarithms and roots."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from .calls import Calling, Evaluator, Meaning, operand_or_number, pair, scaled
from .numbers import Number
from .order import extreme

# -- arithmetic -------------------------------------------------------------------------------------------


def _add(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, y = pair(m, call, operands)
    return m.numbers.add(x, scaled(m, y, call.attrs.get("alpha")))


def _sub(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, y = pair(m, call, operands)
    return m.numbers.subtract(x, scaled(m, y, call.attrs.get("alpha")))


def _rsub(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, y = pair(m, call, operands)
    return m.numbers.subtract(y, scaled(m, x, call.attrs.get("alpha")))


def _mul(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    return m.numbers.multiply(*pair(m, call, operands))


def _square(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    return m.numbers.multiply(operands[0], operands[0])


def _div(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    if call.attrs.get("rounding_mode") is not None:
        return NotImplemented
    return m.numbers.divide(*pair(m, call, operands))


def _addcmul(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, y, z = operands
    return m.numbers.add(x, scaled(m, m.numbers.multiply(y, z), call.attrs.get("value")))


def _addcdiv(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, y, z = operands
    return m.numbers.add(x, scaled(m, m.numbers.divide(y, z), call.attrs.get("value")))


def _lerp(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, y = operands[:2]
    weight = operand_or_number(m, call, operands, 2, "weight")
    return m.numbers.add(x, m.numbers.multiply(weight, m.numbers.subtract(y, x)))


def _addmm(product: str) -> Meaning:
    def meaning(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
        made = m.linear(Calling(product, {}, call.results), operands[1:])[0]
        bias = scaled(m, operands[0], call.attrs.get("beta"))
        return m.numbers.add(bias, scaled(m, made, call.attrs.get("alpha")))

    return meaning


def _linear(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    made = m.linear(call, [*operands[:2], None])[0]
    return made if len(operands) < 3 or operands[2] is None else m.numbers.add(made, operands[2])


def _convolution(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, weight, bias = operands
    made = m.linear(call, [x, weight, None])[0]
    if bias is None:
        return made
    return m.numbers.add(made, bias.map(lambda part: part.reshape(-1, *(1,) * (len(call.shape) - 2))))


def _convolution_backward(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    return m.linear(call, operands)


def _mean(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    (x,) = operands
    attrs = {"dim": call.attrs.get("dim"), "keepdim": call.attrs.get("keepdim", False), "dtype": None}
    total = m.linear(Calling("aten.sum.dim_IntList", attrs, call.results), [x])[0]
    count = prod(x.shape) // max(prod(call.shape), 1)
    return m.numbers.divide(total, m.numbers.number(count))


def _pow(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    x, exponent = operands[0], call.attrs.get("exponent")
    if x is None or exponent is None or not isinstance(exponent, int | float):
        return NotImplemented
    return power(m, x, exponent)


def power(m: Evaluator, x: Number, exponent: float) -> Any:
    numbers = m.numbers
    if exponent < 0:
        made = power(m, x, -exponent)
        return made if made is NotImplemented else numbers.reciprocal(made)
    if exponent != int(exponent):
        if exponent % 0.5:
            return NotImplemented
        root = numbers.sqrt(x)
        return root if exponent == 0.5 else numbers.multiply(root, power(m, x, exponent - 0.5))
    made = numbers.number(1.0) if exponent == 0 else x
    for _ in range(int(exponent) - 1):
        made = numbers.multiply(made, x)
    return made.map(lambda part: np.broadcast_to(part, x.shape)) if exponent == 0 else made


def _vector_norm(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    (x,) = operands
    order = call.attrs.get("ord", 2)
    dims, keep = call.attrs.get("dim"), call.attrs.get("keepdim", False)
    if order in (inf, -inf):
        kind = "amax" if order > 0 else "amin"
        return extreme(1 if order > 0 else -1)(
            m, Calling(f"aten.{kind}", {"dim": dims, "keepdim": keep}, call.results), [_abs(m, x)]
        )
    powers = power(m, x if order % 2 == 0 else _abs(m, x), order)
    if powers is NotImplemented:
        return NotImplemented
    attrs = {"dim": dims, "keepdim": keep, "dtype": None}
    total = m.linear(Calling("aten.sum.dim_IntList", attrs, call.results), [powers])[0]
    return total if order == 1 else m.numbers.sqrt(total) if order == 2 else NotImplemented


def _abs(m: Evaluator, x: Number) -> Number:
    """The larger of a number and its opposite; where a root is in it, the root of its square."""
    if x.square is not None:
        assert x.height is not None
        return m.numbers.sqrt(Number(x.dtype, None, x.square, x.height**2))
    zero = m.numbers.number(0.0)
    return m.numbers.choose(m.numbers.sign(x, zero) >= 0, x, m.numbers.negative(x))


# -- functions with laws ----------------------------------------------------------------------------------


def _function(name: str) -> Meaning:
    return lambda m, call, operands: getattr(m.numbers, name)(operands[0])


def _rsqrt(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    return m.numbers.reciprocal(m.numbers.sqrt(operands[0]))


def _sigmoid(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    numbers = m.numbers
    return numbers.reciprocal(numbers.add(numbers.number(1.0), numbers.exp(numbers.negative(operands[0]))))


def _log_sigmoid(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    made = m.numbers.log(_sigmoid(m, call, operands))
    return [made, m.numbers.number(0.0)][: len(call.results)]


def _log_sigmoid_backward(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    """The last operand is what the CPU's forward kernel has kept."""
    grad, x = operands[:2]
    return m.numbers.multiply(grad, _sigmoid(m, call, [m.numbers.negative(x)]))


def _log1p(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    return m.numbers.log(m.numbers.add(operands[0], m.numbers.number(1.0)))


def _expm1(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    return m.numbers.subtract(m.numbers.exp(operands[0]), m.numbers.number(1.0))


def _logsumexp(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    attrs = {"dim": call.attrs.get("dim"), "keepdim": call.attrs.get("keepdim", False), "dtype": None}
    total = m.linear(Calling("aten.sum.dim_IntList", attrs, call.results), [m.numbers.exp(operands[0])])[0]
    return m.numbers.log(total)


def _cast(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    """How floats are rounded is not asked; to whole numbers it is a function."""
    (x,) = operands
    if call.dtype == "bool":
        return Number("bool", m.numbers.sign(x, m.numbers.number(0.0)) != 0)
    if call.dtype[:1] in ("i", "u"):
        residue = m.numbers.hashed(("round",), [x], call.dtype).residue
        assert residue is not None
        return Number(call.dtype, residue.astype(np.int64))
    return x


BY_NAME: dict[str, Meaning] = {
    **dict.fromkeys(("add.Tensor", "add.Scalar"), _add),
    **dict.fromkeys(("sub.Tensor", "sub.Scalar"), _sub),
    **dict.fromkeys(("rsub.Tensor", "rsub.Scalar"), _rsub),
    **dict.fromkeys(("mul.Tensor", "mul.Scalar"), _mul),
    **dict.fromkeys(("div.Tensor", "div.Scalar", "div.Tensor_mode", "true_divide.Tensor"), _div),
    "neg": _function("negative"),
    "reciprocal": _function("reciprocal"),
    "square": _square,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    **dict.fromkeys(("lerp.Scalar", "lerp.Tensor"), _lerp),
    "addmm": _addmm("aten.mm"),
    "addmv": _addmm("aten.mv"),
    "baddbmm": _addmm("aten.bmm"),
    "linear": _linear,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(("mean", "mean.dim"), _mean),
    "pow.Tensor_Scalar": _pow,
    "linalg_vector_norm": _vector_norm,
    "abs": lambda m, call, operands: _abs(m, operands[0]),
    "exp": _function("exp"),
    "log": _function("log"),
    "sqrt": _function("sqrt"),
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "log1p": _log1p,
    "expm1": _expm1,
    "logsumexp": _logsumexp,
    **dict.fromkeys(("_to_copy", "to.dtype"), _cast),
}
"""By the names of ATen's overloads."""
