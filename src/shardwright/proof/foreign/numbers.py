"""`Number`: arrays over a prime field, with exponentials, logarithms and roots that keep their laws.

A foreign program may use other formulas than the single one: it merges parts of a softmax by their logarithms, or a
norm from norms of parts.  So more has to hold than that equal operands give equal results:

- ``exp(-x)`` is one over ``exp(x)``, and a maximum that is subtracted before an exponential changes nothing: maxima and
  logarithms are *shifts*, known by their exponentials; a number is a plain part and a shift, a sum of numbers adds the
  one and multiplies the other.  So two ways to the same logarithm are equal.
- A root remembers its square; constants that are roots of small numbers are roots (`root_near`).

Any other function is a hash.  Whole numbers and booleans are what they are.  A *height*, an ordinary float, gives
numbers an order, as in `modular`; it is bounded, so that what is large is not taken for infinite.  Complex numbers have
a residue in each part.

A program computes its factors by itself, in floats: ``1 - 0.1 * 8 / 7``, ``2 ** 0.5``.  Two formulas for the same
factor differ in the last bits, so a constant that is a short fraction, or the root of one, but for a few roundings, is
taken for it.  Roots are roots in the field as well: `ROOTS` are squares modulo every prime that is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import isfinite, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fields.modular import Field, FieldArray, Floats, is_prime

SHORT = {53: 1 << 10, 24: 1 << 6}
"""Denominators of fractions that are looked for, by the bits of a number: few enough that none is met by chance."""
ROOTS = (2, 3, 5, 7)
"""Roots of these, of their products and of multiples of those by squares are exact."""


def constant(field: Field, value: float, bits: int) -> tuple[float, float]:
    """Residue and height of a number of so many bits."""
    short = fraction_near(value, bits)
    if short is not None:
        return float(_residue(short, field.p)), value
    found = root_near(value, bits)
    if found is not None:
        factor, root = found
        return float(_residue(factor, field.p) * _root(root, field.p) % field.p), value
    return field.constant(value, bits)


def has_roots(prime: int) -> bool:
    """Whether `ROOTS` are squares modulo a prime."""
    return all(pow(n, (prime - 1) // 2, prime) == 1 for n in ROOTS)


@lru_cache(maxsize=65536)
def fraction_near(value: float, bits: int) -> Fraction | None:
    """The short fraction that a number would be but for some roundings, if there is one.

    >>> fraction_near(0.0875 * 8 / 7, 53), fraction_near(3.14159265, 53)
    (Fraction(1, 10), None)
    """
    return _near(Fraction(value), bits) if isfinite(value) else None


@lru_cache(maxsize=65536)
def root_near(value: float, bits: int) -> tuple[Fraction, int] | None:
    """A fraction times the root of a product of `ROOTS`, if a number is that but for some roundings.

    >>> root_near(2**0.5, 53), root_near(1 / 8**0.5, 53), root_near(11**0.5, 53)
    ((Fraction(1, 1), 2), (Fraction(1, 4), 2), None)
    """
    square = _near(Fraction(value) ** 2, bits - 1) if isfinite(value) else None
    if not square:
        return None
    whole, root = square.numerator * square.denominator, 1  # the root of a / b is that of a * b, over b
    for n in ROOTS:
        power = 0
        while whole % n ** (power + 1) == 0:
            power += 1
        if power % 2:
            whole, root = whole // n, root * n
    if isqrt(whole) ** 2 != whole:
        return None
    return Fraction(isqrt(whole), square.denominator) * (1 if value > 0 else -1), root


def _near(exact: Fraction, bits: int) -> Fraction | None:
    short = exact.limit_denominator(SHORT[53 if bits > 24 else 24])
    return short if abs(short - exact) <= abs(exact) * Fraction(4, 1 << bits) else None


def _residue(fraction: Fraction, prime: int) -> int:
    return fraction.numerator * pow(fraction.denominator, -1, prime) % prime


@lru_cache(maxsize=1024)
def _root(product: int, prime: int) -> int:
    """Of a product of `ROOTS`: the product of their roots, each the one that is a square itself."""
    made = 1
    for n in ROOTS:
        if product % n == 0:
            made = made * pow(n, (prime + 1) // 4, prime) % prime
    return made


Array = NDArray[Any]
LARGEST = 1 << 18
"""Products of residues stay so small that some 100,000 of them can be summed in float64."""
PRIMES = tuple(p for p in range(LARGEST - 1, LARGEST - (1 << 15), -4) if has_roots(p) and is_prime(p))
"""Minus one is no square modulo these, so that complex numbers are a field, too; small numbers are squares."""
INFINITE = 2.0**1000
"""The height of infinity."""
FAR = 2.0**400
"""No other height is larger: products of two are still far from infinite, and sums of many of those."""


def is_infinite(height: Array) -> Array:
    return np.asarray(np.abs(height) >= INFINITE * 2.0**-100)


def bounded(numbers: Any) -> Array:
    """Heights that are infinite, or at most `FAR`."""
    height: Array = np.asarray(numbers)
    with np.errstate(invalid="ignore"):
        near = np.abs(height) <= FAR
    if near.all():
        return height
    bound = np.sign(height) * np.where(is_infinite(height), INFINITE, FAR)
    return np.asarray(np.where(np.isnan(height), 0.0, np.where(near, height, bound)))


@dataclass(frozen=True, eq=False)
class Number:
    """An array: whole numbers as they are, or residues and heights."""

    dtype: str
    whole: Array | None = None
    residue: Array | None = None
    height: Array | None = None
    plain: Array | None = None
    shift: Array | None = None
    """Where a maximum or a logarithm is in it: the residue of all else, and of the exponential of those."""
    logarithm: bool = False
    """Whether a logarithm is: then its own residue is made of these two."""
    square: Array | None = None
    """The residue of its square, where it is a root, or one times something."""

    @property
    def shape(self) -> tuple[int, ...]:
        held = self.whole if self.whole is not None else self.residue
        assert held is not None
        return tuple(held.shape)

    def map(self, move: Callable[[Array], Array]) -> Number:
        """Move elements about, in all parts alike."""

        def of(part: Array | None) -> Array | None:
            return None if part is None else move(part)

        parts = (self.whole, self.residue, self.height, self.plain, self.shift, self.square)
        whole, residue, height, plain, shift, square = map(of, parts)
        return Number(self.dtype, whole, residue, height, plain, shift, self.logarithm, square)


class Numbers:
    """Arithmetic of `Number` modulo a prime; ``key`` chooses the functions that stand for others."""

    def __init__(self, prime: int, key: int) -> None:
        self.field = Field(prime, key)
        self.prime = prime
        self.zeros = 0
        """How often something was divided by what is 0 modulo the prime: there the laws do not hold."""

    # -- making -----------------------------------------------------------------------------------------------

    def random(self, generator: np.random.Generator, shape: Sequence[int], dtype: str) -> Number:
        residue = generator.integers(0, self.prime, shape).astype(np.float64)
        if dtype.startswith("c"):
            residue = residue + 1j * generator.integers(0, self.prime, shape)
        return Number(dtype, None, residue, generator.normal(size=tuple(shape)))

    def whole(self, numbers: Any, dtype: str) -> Number:
        return Number(dtype, np.asarray(numbers).astype(np.bool_ if dtype == "bool" else np.int64))

    def real(self, numbers: Any, dtype: str) -> Number:
        """Numbers as they stand in the program: short fractions are exact."""
        numbers = np.asarray(numbers)
        if np.iscomplexobj(numbers):
            one, other = self.real(numbers.real, dtype), self.real(numbers.imag, dtype)
            return Number(dtype, None, self.parts(one)[0] + 1j * self.parts(other)[0], one.height)
        with np.errstate(all="ignore"):
            values, back = np.unique(numbers.astype(np.float64), return_inverse=True)
        bits = 53 if numbers.dtype == np.float64 else 24
        pairs = np.array([constant(self.field, float(value), bits) for value in values], np.float64).reshape(-1, 2)
        pairs[np.isinf(values), 1] = (np.sign(values) * INFINITE)[np.isinf(values)]
        residue, height = (pairs[back.reshape(-1), i].reshape(numbers.shape) for i in (0, 1))
        return Number(dtype, None, residue, bounded(height))

    def number(self, value: Any) -> Number:
        """One that stands in the program as an attribute."""
        return self.real(np.asarray(value, np.complex128 if isinstance(value, complex) else np.float64), "f64")

    def numeric(self, x: Number) -> Number:
        """Whole numbers as residues."""
        if x.whole is None:
            return x
        numbers = x.whole.astype(np.float64)
        return Number(x.dtype, None, np.mod(numbers, self.prime), numbers)

    def parts(self, x: Number) -> tuple[Array, Array]:
        x = self.numeric(x)
        assert x.residue is not None
        assert x.height is not None
        return x.residue, x.height

    # -- arithmetic -------------------------------------------------------------------------------------------

    def mod(self, numbers: Any) -> Array:
        if np.iscomplexobj(numbers):
            return np.asarray(np.mod(numbers.real, self.prime) + 1j * np.mod(numbers.imag, self.prime))
        return np.asarray(np.mod(numbers, self.prime))

    def linear(self, compute: Callable[..., Any], *operands: Number) -> Number:
        """A function made of sums and products, of both parts."""
        residues, heights = zip(*map(self.parts, operands))
        return Number(operands[0].dtype, None, self.mod(compute(*residues)), bounded(compute(*heights)))

    def add(self, x: Number, y: Number) -> Number:
        made = self.linear(np.add, x, y)
        if x.shift is None and y.shift is None:
            return made
        (a, s), (b, t) = self._split(x), self._split(y)
        return self._shifted(made, self.mod(a + b), self.mod(s * t), x.logarithm or y.logarithm)

    def subtract(self, x: Number, y: Number) -> Number:
        if x.shift is None and y.shift is None:
            return self.linear(np.subtract, x, y)
        return self.add(x, self.negative(y))

    def _split(self, x: Number) -> tuple[Array, Array]:
        """The plain part, and the exponential of the rest."""
        if x.shift is None:
            residue = self.parts(x)[0]
            return residue, np.ones_like(residue)
        assert x.plain is not None
        return x.plain, x.shift

    def with_shift(self, x: Number) -> Number:
        """The number, said as a plain part and a shift."""
        return x if x.shift is not None else replace(x, plain=self.parts(x)[0], shift=np.ones(x.shape))

    def _shifted(self, made: Number, plain: Array, shift: Array, logarithm: bool) -> Number:
        """A number with what is known of its parts.  A maximum by itself is what it is, also where it is added."""
        residue = self.mod(plain + self._log_of(shift)) if logarithm else made.residue
        return replace(made, residue=residue, plain=plain, shift=shift, logarithm=logarithm)

    def _log_of(self, exp: Array) -> Array:
        """A function of an exponential that is the opposite for one over it."""
        inverse = self.inverse(exp)
        turned = inverse < exp
        residue = self._residue(self.field.hash(self.field.word("log"), [np.where(turned, inverse, exp)]))
        return np.where(turned, self.mod(-residue), np.where(exp == inverse, 0.0, residue))

    def multiply(self, x: Number, y: Number) -> Number:
        if x is y and x.square is not None:
            assert x.height is not None
            return Number(x.dtype, None, x.square, bounded(x.height**2))
        made = self.linear(np.multiply, x, y)
        for one, other in ((x, y), (y, x)):
            if one.shift is not None and np.all(self.parts(other)[1] == -1):
                return replace(self.negative(one), dtype=made.dtype).map(lambda a: np.broadcast_to(a, made.shape))
        if x.square is not None or y.square is not None:
            made = replace(made, square=self.mod(self._square(x) * self._square(y)))
        return made

    def _square(self, x: Number) -> Array:
        return x.square if x.square is not None else self.mod(self.parts(x)[0] ** 2)

    def negative(self, x: Number) -> Number:
        made = self.linear(np.negative, x)
        if x.shift is None:
            return made
        assert x.plain is not None
        return self._shifted(made, self.mod(-x.plain), self.inverse(x.shift), x.logarithm)

    def reciprocal(self, x: Number) -> Number:
        residue, height = self.parts(x)
        square = None if x.square is None else self.inverse(x.square)
        return Number(
            x.dtype, None, self.inverse(residue), bounded(1.0 / np.where(height == 0, 1.0, height)), square=square
        )

    def divide(self, x: Number, y: Number) -> Number:
        return self.multiply(x, self.reciprocal(y))

    def inverse(self, residue: Any) -> Array:
        """Of 0 it is some number, always the same."""
        if np.iscomplexobj(residue):  # conj(x) / |x|^2
            norm = self.mod(residue.real**2 + residue.imag**2)
            return self.mod(np.conj(residue) * self.inverse(norm))
        self.zeros += int(np.count_nonzero(residue == 0))
        return self.field.reciprocal(FieldArray(residue, np.zeros_like(residue))).residue

    # -- functions --------------------------------------------------------------------------------------------

    def exp_of(self, x: Number) -> Array:
        """The residue of an exponential."""
        height = self.parts(x)[1]
        residue, shift = self._split(x)
        opposite = self.mod(-residue)
        turned = opposite < residue
        state = self.field.hash(self.field.word("exp"), [np.where(turned, opposite, residue)])
        made = 1.0 + (state % np.uint64(self.prime - 1)).astype(np.float64)
        made = np.where(turned, self.inverse(made), made)
        made = np.where(residue == 0, 1.0, made)
        made = made if x.shift is None else self.mod(made * shift)
        return np.where(is_infinite(height) & (height < 0), 0.0, made)

    def exp(self, x: Number) -> Number:
        return Number(x.dtype, None, self.exp_of(x), 1.0 + np.arctan(self.parts(x)[1]))  # rises, and stays in bounds

    def log(self, x: Number) -> Number:
        residue, _ = self.parts(x)
        return self._shifted(self.numeric(x), np.zeros_like(residue), residue, True)

    def remembered(self, x: Number) -> Number:
        """A maximum, which will be subtracted from what it is the maximum of."""
        if x.dtype[:1] == "c":
            return x
        exp = self.exp_of(x)
        return self._shifted(self.numeric(x), np.zeros_like(exp), exp, x.logarithm)

    def sqrt(self, x: Number) -> Number:
        return replace(self.hashed(("sqrt",), [x], x.dtype), square=self.parts(x)[0])

    def hashed(self, what: tuple[Any, ...], operands: Sequence[Number], dtype: str) -> Number:
        """Any function, element by element."""
        state = self.field.hash(self.field.word(*what), [piece for x in operands for piece in self._pieces(x)])
        residue = self._residue(state)
        return Number(dtype, None, residue, self.field.height_of(residue))

    def _pieces(self, x: Number) -> list[Floats]:
        residue, height = self.parts(x)
        if np.iscomplexobj(residue):
            return [residue.real, residue.imag]
        infinite = is_infinite(height)
        return [np.where(infinite, (2 + np.sign(height)) * self.prime, residue) if infinite.any() else residue]

    def _residue(self, state: Any) -> Array:
        return np.asarray((state % np.uint64(self.prime)).astype(np.float64))

    def sign(self, x: Number, y: Number) -> Array:
        """Which of two is the larger: -1, 0 or 1; the opposite of the other way round."""
        (a, high), (b, low) = self.parts(x), self.parts(y)
        apart = self.mod(a - b)
        if x.logarithm or y.logarithm:
            apart = self._log_of(self.mod(self.exp_of(x) * self.inverse(self.exp_of(y))))
        opposite = self.mod(-apart)
        turned = opposite < apart
        state = self.field.hash(self.field.word("sign"), [np.where(turned, opposite, apart)])
        made = np.where((state % np.uint64(2) == 1) ^ turned, 1, -1)
        beyond = is_infinite(high - low)
        return np.where(beyond, np.sign(high - low), np.where(apart == 0, 0, made)).astype(np.int64)

    def choose(self, condition: Array, x: Number, y: Number) -> Number:
        (a, high), (b, low) = self.parts(x), self.parts(y)
        made = Number(x.dtype, None, np.where(condition, a, b), np.where(condition, high, low))
        if x.shift is None and y.shift is None:
            return made
        (p, s), (q, t) = self._split(x), self._split(y)
        both = np.where(condition, p, q), np.where(condition, s, t)
        return self._shifted(made, *both, x.logarithm or y.logarithm)
