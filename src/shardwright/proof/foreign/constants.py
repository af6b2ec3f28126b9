"""Constants of a program as numbers of a field: what they were before they were rounded.

A program computes its factors by itself, in floats: ``1 - 0.1 * 8 / 7``, ``2 ** 0.5``.  Two ways to the same factor
differ in the last bits, so a number that is a short fraction, or the root of one, but for a few roundings, is taken for
it.  Roots are roots in the field as well: `ROOTS` are squares modulo every prime that is used.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import isfinite, isqrt

from ..fields.modular import Field

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
