"""ATen's arithmetic over a field: sums, products, powers and their mixtures are exact, numbers in attributes included.

The rule book has only rules for these; here is what they compute.  A call with an attribute that changes more than a
factor (``rounding_mode``) is left to its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import gcd
from typing import Any

import numpy as np

from . import contract
from .modular import Field, FieldArray
from .pointwise import Handler, Made, OpCall, hashed

Exact = Callable[["_Numbers"], FieldArray]
MODES = ("rounding_mode", "approximate")
"""Attributes under which an op is another function."""
MOST_HALVES = 8
"""A power up to this many halves is multiplied out."""


class _Numbers:
    """One call: its operands, and its attributes as numbers of the field."""

    def __init__(self, field: Field, call: OpCall, operands: Sequence[Any]) -> None:
        self.field, self.call, self.operands = field, call, operands

    def __getitem__(self, n: int) -> FieldArray:
        """An operand; where a number stands in the place of a tensor, it is an attribute."""
        given: FieldArray | None = self.operands[n]
        return self.number(("self", "other")[n]) if given is None else given

    def number(self, name: str, default: float = 1) -> FieldArray:
        said = self.call.attrs.get(name, default)
        return self.field.full((), default if said is None else said)

    def second(self) -> FieldArray:
        """The second operand, a tensor or a number."""
        return self[1] if len(self.operands) > 1 else self.number("other")

    def plus(self, x: FieldArray, y: FieldArray) -> FieldArray:
        return self.field.add(x, y)

    def minus(self, x: FieldArray, y: FieldArray) -> FieldArray:
        return self.field.subtract(x, y)

    def times(self, x: FieldArray, y: FieldArray) -> FieldArray:
        return self.field.multiply(x, y)

    def over(self, x: FieldArray, y: FieldArray) -> FieldArray:
        return self.field.multiply(x, self.field.reciprocal(y))

    def root(self, x: FieldArray) -> FieldArray:
        """Some function that takes products to products: a power of its own, which no two numbers share."""
        power = self.field.word("root") % (self.field.p - 1)
        while gcd(power, self.field.p - 1) > 1:
            power += 1
        found = np.ones_like(x.residue)
        base = x.residue
        while power:
            found = self.field.mod(found * base) if power & 1 else found
            base, power = self.field.mod(base * base), power >> 1
        return FieldArray(found, self.field.from_hash(self.field.hash(0, [found])).height)

    def product(self, x: FieldArray, y: FieldArray) -> FieldArray:
        made = contract.matmul(self.field, self.call, [x, y])
        assert isinstance(made, FieldArray)
        return made


def _scaled_sum(n: _Numbers) -> FieldArray:
    """beta * input + alpha * (one @ other)."""
    return n.plus(n.times(n.number("beta"), n[0]), n.times(n.number("alpha"), n.product(n[1], n[2])))


def _linear(n: _Numbers) -> FieldArray:
    made = n.product(n[0], n[1].map(lambda part: part.T))
    return made if len(n.operands) < 3 or n.operands[2] is None else n.plus(made, n[2])


def _lerp(n: _Numbers) -> FieldArray:
    weight = n[2] if len(n.operands) > 2 else n.number("weight")
    return n.plus(n[0], n.times(weight, n.minus(n[1], n[0])))


def _power(n: _Numbers) -> FieldArray:
    """Of half and whole exponents what they say; of others some function."""
    halves = 2 * n.call.attrs["exponent"]
    if halves not in range(1, MOST_HALVES + 1):
        made = hashed(n.field, n.call, n.operands)
        assert isinstance(made, tuple)
        return made[0]
    factors = [n.root(n[0])] * (int(halves) % 2) + [n[0]] * (int(halves) // 2)
    return reduce(n.times, factors)


EXACT: dict[str, Exact] = {
    "add": lambda n: n.plus(n[0], n.times(n.number("alpha"), n.second())),
    "sub": lambda n: n.minus(n[0], n.times(n.number("alpha"), n.second())),
    "rsub": lambda n: n.minus(n.second(), n.times(n.number("alpha"), n[0])),
    "mul": lambda n: n.times(n[0], n.second()),
    "div": lambda n: n.over(n[0], n.second()),
    "reciprocal": lambda n: n.field.reciprocal(n[0]),
    "sqrt": lambda n: n.root(n[0]),
    "rsqrt": lambda n: n.field.reciprocal(n.root(n[0])),
    "square": lambda n: n.times(n[0], n[0]),
    "addcmul": lambda n: n.plus(n[0], n.times(n.number("value"), n.times(n[1], n[2]))),
    "addcdiv": lambda n: n.plus(n[0], n.times(n.number("value"), n.over(n[1], n[2]))),
    "lerp": _lerp,
    "mm": lambda n: n.product(n[0], n[1]),
    "bmm": lambda n: n.product(n[0], n[1]),
    "mv": lambda n: n.product(n[0], n[1]),
    "dot": lambda n: n.product(n[0], n[1]),
    "addmm": _scaled_sum,
    "addmv": _scaled_sum,
    "baddbmm": _scaled_sum,
    "linear": _linear,
}
NAMES = {f"aten.{name}{overload}": exact for name, exact in EXACT.items() for overload in ("", ".Tensor", ".Scalar")}
NAMES["aten.pow.Tensor_Scalar"] = _power
"""By the names of overloads."""


def _handler(exact: Exact, otherwise: Callable[[str], Handler]) -> Handler:
    def handler(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
        rounds = call.results[0].dtype[:1] in ("i", "u") and "div" in call.op
        if rounds or any(call.attrs.get(mode) is not None for mode in MODES):
            return otherwise("by rule")(field, call, operands)
        return exact(_Numbers(field, call, operands))

    return handler


def handlers(otherwise: Callable[[str], Handler]) -> dict[str, Handler]:
    """By the names of overloads; ``otherwise`` finds the handler of calls that are not plain arithmetic."""
    return {name: _handler(exact, otherwise) for name, exact in NAMES.items()}
