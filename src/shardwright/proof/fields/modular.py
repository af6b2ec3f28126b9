"""Numbers that can be compared without a tolerance: residues modulo a prime, held in float64.

With a prime below 2^20 products stay below 2^40 and sums of thousands of them below 2^53, so NumPy's fast matrix
product is exact.  Every number also carries a *height*, an ordinary float.  Residues have no order that agrees with
addition, but real programs lean on one: a pending maximum passes through ``exp`` and through ``+ c``.  So numbers
live in the product of the field and the reals.  Sums and products are taken in both parts, maxima go by height, and
only residues are ever compared with each other.  A height is rounded like any float; that matters only where
two heights agree to the last bits, which random ones do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import copysign, isinf, isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def is_prime(n: int) -> bool:
    """Of an odd number below 2^20."""
    return all(n % d for d in range(3, min(n, 1 << 10), 2))


PRIMES = tuple(n for n in range((1 << 20) - 1, (1 << 20) - 900, -2) if is_prime(n))
"""The largest below 2^20: the larger, the less can agree by chance.  Which of them are used follows from the program,
so that no number in it is made to be 0 for all of them."""
SHORT = 1024
"""Fractions with denominators up to here are taken for what was meant."""
EXACT = 1 << 53
"""Whole numbers up to here are exact in float64."""
INFINITE_HEIGHT = 2.0**40
"""The height of a written infinity: beyond all others, yet finite, so that differences of heights stay numbers."""
CONTRACTED = 2.0**-5
"""Heights shrink by this in a contraction, lest they overflow in a deep network."""


@dataclass(frozen=True, slots=True, eq=False)
class FieldArray:
    """An array of numbers: residues 0..p-1, and heights."""

    residue: Floats
    height: Floats
    dtype: str = ""
    """Of the tensor that it stands for, where that is known: what an op is made of may depend on it."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.residue.shape

    def __getitem__(self, key: Any) -> FieldArray:
        return self.map(lambda part: part[key])

    def map(self, move: Callable[[Floats], Any]) -> FieldArray:
        """Move elements about, in both parts alike."""
        return FieldArray(np.asarray(move(self.residue)), np.asarray(move(self.height)), self.dtype)

    @property
    def truth(self) -> NDArray[np.bool_]:
        """A boolean is a number like others, and true if it is odd: were it 0 or 1, half would agree by chance."""
        return np.asarray(self.residue % 2 == 1)


class Field:
    """Arithmetic modulo ``p``; ``key`` chooses the functions that stand for non-linear ones."""

    def __init__(self, p: int, key: int = 0) -> None:
        self.p = p
        self.key = key
        self.linear_casts: frozenset[Any] | None = None
        """Changes of element type that sums pass through, by the types before and after; None: all of them.  Those in a
        pair with "prod" are passed through by products, too, and leave no trace."""
        self.longest = EXACT // (p - 1) ** 2
        """So many products can be summed before the remainder must be taken."""

    def mod(self, numbers: Any) -> Floats:
        return np.asarray(np.mod(numbers, self.p))

    # -- constants --------------------------------------------------------------------------------------

    def constant(self, value: Any, bits: int = 53) -> tuple[float, float]:
        """Residue and height of a number that stands in the program; a pair is a complex one.

        A short fraction that was rounded to so many bits is meant, not what it was rounded to: three thirds are one.
        An infinity plus itself is itself, and so is 0, which takes its place.
        """
        if isinstance(value, tuple):
            parts = [self.constant(part) for part in value]
            residue = sum(int(part[0]) * self.word("unit", i) for i, part in enumerate(parts)) % self.p
            return float(residue), parts[0][1]
        if isnan(value):
            return float(self.word("nan") % self.p), 0.0
        if isinf(value):
            return 0.0, copysign(INFINITE_HEIGHT, value)
        exact = meant(value, bits)
        return float(exact.numerator * pow(exact.denominator, -1, self.p) % self.p), float(value)

    def full(self, shape: tuple[int, ...], value: Any) -> FieldArray:
        residue, height = self.constant(value)
        return FieldArray(np.full(shape, residue), np.full(shape, height))

    def counting(self, numbers: NDArray[np.int64]) -> FieldArray:
        """Whole numbers as they are: places, offsets."""
        return FieldArray(self.mod(numbers.astype(np.float64)), numbers.astype(np.float64))

    # -- arithmetic -------------------------------------------------------------------------------------

    def add(self, left: FieldArray, right: FieldArray) -> FieldArray:
        return FieldArray(self.mod(left.residue + right.residue), np.asarray(left.height + right.height))

    def subtract(self, left: FieldArray, right: FieldArray) -> FieldArray:
        return FieldArray(self.mod(left.residue - right.residue), np.asarray(left.height - right.height))

    def multiply(self, left: FieldArray, right: FieldArray) -> FieldArray:
        return FieldArray(self.mod(left.residue * right.residue), np.asarray(left.height * right.height))

    def scale(self, array: FieldArray, residue: float, height: float = 1.0) -> FieldArray:
        return FieldArray(self.mod(array.residue * residue), np.asarray(array.height * height))

    def reciprocal(self, array: FieldArray) -> FieldArray:
        """By Fermat, x^(p-2).  1/0 is some fixed number, so that x/0 is linear in x all the same."""
        power, result, rest = array.residue, np.ones_like(array.residue), self.p - 2
        while rest:
            if rest & 1:
                result = self.mod(result * power)
            power = self.mod(power * power)
            rest >>= 1
        at_zero = float(1 + self.word("1/0") % (self.p - 1))
        inverse = np.where(array.residue == 0, at_zero, result)
        return FieldArray(inverse, 1.0 / np.where(array.height == 0, 1.0, array.height))

    def matmul(self, left: FieldArray, right: FieldArray) -> FieldArray:
        """Matrices in the last two dims, batched in the others; long contractions go piece by piece."""
        a, b = left.residue, right.residue
        total = self.mod(a[..., : self.longest] @ b[..., : self.longest, :])
        for start in range(self.longest, a.shape[-1], self.longest):
            stop = start + self.longest
            total = self.mod(total + self.mod(a[..., start:stop] @ b[..., start:stop, :]))
        return FieldArray(total, (left.height @ right.height) * CONTRACTED)

    def sum(self, array: FieldArray, axes: tuple[int, ...]) -> FieldArray:
        residue = self.mod(array.residue.sum(axis=axes))
        return FieldArray(residue, np.asarray(array.height.sum(axis=axes)))

    def prod(self, array: FieldArray, axis: int) -> FieldArray:
        """Halves are multiplied with each other until one row is left."""
        rows = np.moveaxis(array.residue, axis, 0)
        if not len(rows):
            rows = np.ones((1, *rows.shape[1:]))
        while len(rows) > 1:
            half = len(rows) // 2
            rows = np.concatenate([self.mod(rows[:half] * rows[half : 2 * half]), rows[2 * half :]])
        return FieldArray(np.asarray(rows[0]), np.asarray(array.height.prod(axis=axis)))

    # -- order ------------------------------------------------------------------------------------------

    def larger(self, left: FieldArray, right: FieldArray) -> FieldArray:
        """The one with the higher height; which of two equal ones is all the same, if it is always the same."""
        return choose(_above(left, right), left, right)

    def smaller(self, left: FieldArray, right: FieldArray) -> FieldArray:
        return choose(_above(left, right), right, left)

    # -- functions that stand for others ----------------------------------------------------------------

    def word(self, *what: Any) -> int:
        """A number of 64 bits that depends on nothing but the key and what is named."""
        text = repr((self.key, self.p, *what))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    def told(self, array: FieldArray) -> Floats:
        """Residues, with infinities told from the number that stands in their place."""
        infinite = np.abs(array.height) >= INFINITE_HEIGHT / 2
        if not infinite.any():
            return array.residue
        return np.asarray(array.residue + np.where(infinite, (2 + np.sign(array.height)) * self.p, 0.0))

    def hash(self, word: int, residues: list[Floats]) -> NDArray[np.uint64]:
        """A function of residues that has nothing to do with arithmetic modulo p; ``word`` chooses which."""
        state = np.full((1,) * max((r.ndim for r in residues), default=0), word, np.uint64)
        with np.errstate(over="ignore"):
            for residue in residues:
                state = _stir(state + residue.astype(np.uint64))
            return _stir(state)

    def from_hash(self, state: NDArray[np.uint64]) -> FieldArray:
        """A number for each hash."""
        residue = (state % np.uint64(self.p)).astype(np.float64)
        return FieldArray(residue, self.height_of(residue))

    def height_of(self, residue: Floats) -> Floats:
        """A height for a number that has none from elsewhere, in (-1, 1) and different for each residue."""
        with np.errstate(over="ignore"):
            spread = _stir(np.atleast_1d(residue).astype(np.uint64) + np.uint64(self.word("height")))
        heights = (spread >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        return heights.reshape(residue.shape)

    def random(self, generator: np.random.Generator, shape: tuple[int, ...]) -> FieldArray:
        return FieldArray(
            np.asarray(generator.integers(0, self.p, shape), np.float64), np.asarray(generator.normal(size=shape))
        )


@lru_cache(maxsize=65536)
def meant(value: float, bits: int = 53) -> Fraction:
    """The short fraction that a number was rounded from, if there is one; else the number.

    >>> meant(1 / 3), meant(0.1), meant(0.5**20)
    (Fraction(1, 3), Fraction(1, 10), Fraction(1, 1048576))
    """
    exact = Fraction(value)
    if exact.denominator <= SHORT:
        return exact
    short = exact.limit_denominator(SHORT)
    rounded = float(short) if bits > 24 else float(np.float32(float(short)))
    return short if rounded == value else exact


def choose(condition: NDArray[np.bool_], left: FieldArray, right: FieldArray) -> FieldArray:
    """Element by element: the left where the condition holds, else the right."""
    return FieldArray(
        np.where(condition, left.residue, right.residue), np.asarray(np.where(condition, left.height, right.height))
    )


def _above(left: FieldArray, right: FieldArray) -> NDArray[np.bool_]:
    level = left.height == right.height
    return np.asarray((left.height > right.height) | (level & (left.residue >= right.residue)))


def _stir(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all others: odd multipliers carry upwards, shifts bring back down."""
    state = (state ^ (state >> np.uint64(29))) * np.uint64(0xD6E8_FEB8_6659_FD93)
    state = (state ^ (state >> np.uint64(32))) * np.uint64(0xA24B_AED4_963E_E407)
    return state ^ (state >> np.uint64(31))
