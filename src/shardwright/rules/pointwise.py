"""Pointwise ops: one line serves them all, ``"..., ... -> ..."``; broadcasting is in the ``...``.

What differs is which pending reductions pass through.  Linear ops pass sums, increasing ones maxima and
minima, decreasing ones exchange the two.
"""

from __future__ import annotations

from ..spec.op_record import Flow
from .registry import rule

# Pending reductions that pass, by what is known of the function.
LINEAR = ("P(sum) -> P(sum)", "P(avg) -> P(avg)")
RISING = ("P(max) -> P(max)", "P(min) -> P(min)")
FALLING = ("P(max) -> P(min)", "P(min) -> P(max)")
BOTH_SUMS = ("P(sum), P(sum) -> P(sum)", "P(avg), P(avg) -> P(avg)", "P(avg), R -> P(avg)", "R, P(avg) -> P(avg)")
EITHER_FACTOR = ("P(sum), R -> P(sum)", "R, P(sum) -> P(sum)", "P(avg), R -> P(avg)", "R, P(avg) -> P(avg)")
NUMERATOR = ("P(sum), R -> P(sum)", "P(avg), R -> P(avg)")
SHIFT_RISING = ("P(max), R -> P(max)", "R, P(max) -> P(max)", "P(min), R -> P(min)", "R, P(min) -> P(min)")
SHIFT_DIFFERENCE = ("P(max), R -> P(max)", "P(min), R -> P(min)", "R, P(max) -> P(min)", "R, P(min) -> P(max)")

PRODUCT = ("P(prod) -> P(prod)",)
BOTH_PRODUCTS = ("P(prod), P(prod) -> P(prod)",)

PLAIN: tuple[str, ...] = ()

UNARY = {
    "positive": ("P(any) -> P(any)",),
    "negative": LINEAR + FALLING,
    "conj": LINEAR, "real": LINEAR, "imag": LINEAR, "deg2rad": LINEAR + RISING, "rad2deg": LINEAR + RISING,
    "exp": RISING, "exp2": RISING, "expm1": RISING, "cbrt": RISING, "tanh": RISING, "sinh": RISING,
    "arcsinh": RISING,
    "arctan": RISING, "floor": RISING, "ceil": RISING, "trunc": RISING, "rint": RISING, "sign": RISING,
    "sigmoid": RISING, "relu": RISING,
    # Rising only on a part of the line: a part of a pending maximum outside it gives NaN, which a maximum keeps.
    "log": PLAIN, "log2": PLAIN, "log10": PLAIN, "log1p": PLAIN, "sqrt": PLAIN, "arccosh": PLAIN,
    "arcsin": PLAIN, "arccos": PLAIN, "arctanh": PLAIN,
    "abs": PLAIN, "square": PLAIN, "reciprocal": PRODUCT, "rsqrt": PLAIN, "sin": PLAIN, "cos": PLAIN, "tan": PLAIN,
    "cosh": PLAIN, "silu": PLAIN, "isnan": PLAIN, "isinf": PLAIN, "isfinite": PLAIN, "signbit": PLAIN,
    "spacing": PLAIN, "logical_not": PLAIN, "invert": PLAIN, "popcount": PLAIN, "clz": PLAIN,
}  # fmt: skip
BINARY = {
    "add": BOTH_SUMS + SHIFT_RISING,
    "subtract": BOTH_SUMS + SHIFT_DIFFERENCE,
    "multiply": EITHER_FACTOR + BOTH_PRODUCTS,
    "divide": NUMERATOR + BOTH_PRODUCTS,
    "maximum": ("P(max), P(max) -> P(max)", "P(max), R -> P(max)", "R, P(max) -> P(max)",
                "P(min), R -> P(min)", "R, P(min) -> P(min)"),
    "minimum": ("P(min), P(min) -> P(min)", "P(min), R -> P(min)", "R, P(min) -> P(min)",
                "P(max), R -> P(max)", "R, P(max) -> P(max)"),
    "power": PLAIN, "float_power": PLAIN, "floor_divide": PLAIN, "remainder": PLAIN, "fmod": PLAIN,
    "arctan2": PLAIN, "hypot": PLAIN, "logaddexp": PLAIN, "logaddexp2": PLAIN, "fmax": PLAIN,
    "fmin": PLAIN,
    "copysign": PLAIN, "nextafter": PLAIN, "ldexp": PLAIN,
    "heaviside": PLAIN, "gcd": PLAIN, "lcm": PLAIN,
    "equal": PLAIN, "not_equal": PLAIN, "less": PLAIN, "less_equal": PLAIN, "greater": PLAIN, "greater_equal": PLAIN,
    "logical_and": PLAIN, "logical_or": PLAIN, "logical_xor": PLAIN, "bitwise_and": PLAIN, "bitwise_or": PLAIN,
    "bitwise_xor": PLAIN, "left_shift": PLAIN, "right_shift": PLAIN, "complex": PLAIN,
}  # fmt: skip
TERNARY = {
    "where": ("R, P(any), P(any) -> P(any)",),
    "clip": ("P(max), R, R -> P(max)", "P(min), R, R -> P(min)"),
    "fma": PLAIN,
}  # fmt: skip


_POSITIVE = "only for numbers of one sign, as the samples are: the order turns with the sign"
_NAN = "not with NaN: where a pending maximum is NaN, the result is that of the other parts"
_LEAST = "true (all parts of a pending minimum lie above it), but the exact proof has no numbers outside a domain"
_PROVEN = "true, but the exact proof takes the function for any: it keeps products, or order in one operand, of few ops"
BEYOND = {
    "log": _LEAST, "log2": _LEAST, "log10": _LEAST, "log1p": _LEAST, "sqrt": _LEAST, "arccosh": _LEAST,
    "abs": _PROVEN, "square": _PROVEN, "cbrt": _PROVEN, "sign": _PROVEN, "copysign": _PROVEN, "ldexp": _PROVEN,
    "logaddexp": _PROVEN, "logaddexp2": _PROVEN, "invert": _PROVEN,
    "bitwise_and": "for truth values only: bits of a larger number are not more bits",
    "bitwise_or": "for truth values only: bits of a larger number are not more bits",
    "conj": "order for real numbers only, where it is a copy; that it keeps products the exact proof does not know",
    "real": "for real numbers only, where it is a copy",
    "divide": _POSITIVE, "floor_divide": _POSITIVE, "power": _POSITIVE, "float_power": _POSITIVE,
    "reciprocal": _POSITIVE, "right_shift": _POSITIVE,
    "exp2": "a product of powers overflows where the power of the sum does not",
    "fmax": _NAN, "fmin": _NAN, "greater": _NAN, "greater_equal": _NAN, "less": _NAN, "less_equal": _NAN,
    "signbit": "not with NaN, whose sign is any",
    "heaviside": "only where no element is zero, as in the samples: there the second operand is not read",
    "lcm": "an accident of small numbers", "popcount": "an accident of small numbers",
    "left_shift": "not where bits fall out at the left; that it is linear the exact proof does not know",
    "nextafter": "the next number is closer than any two computed ones need to agree",
    "spacing": "the distance to the next number is the same for numbers of one size",
    "cast": "depends on the target: not even order is kept, if that is bool",
}  # fmt: skip
"""What discovery finds of an op on its samples and the book leaves out, and why."""


def pointwise(name: str, arity: int, transfers: tuple[str, ...] = (), results: int = 1) -> None:
    """Register a pointwise op with this many operands and results."""
    text = f"{', '.join(['...'] * arity)} -> {', '.join(['...'] * results)}"
    rule(
        name,
        " ; ".join([text, *transfers]),
        flow=Flow.POINTWISE,
        cost="pointwise",
        meaning="pointwise",
        beyond=BEYOND.get(name, ""),
    )


for _arity, _table in ((1, UNARY), (2, BINARY), (3, TERNARY)):
    for _name, _transfers in _table.items():
        pointwise(_name, _arity, _transfers)
# What a cast keeps depends on its target: not even order, if that is bool.
pointwise("cast", 1)
pointwise("copy", 1, ("P(any) -> P(any)",))
pointwise("core.constraint", 1, ("P(any) -> P(any)",))
for _name, _arity in (("modf", 1), ("frexp", 1), ("divmod", 2)):
    pointwise(_name, _arity, results=2)
