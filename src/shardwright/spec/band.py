"""`Band`: which keys a query sees, said without a tensor.

Query i sees key j where ``i - left <= j <= i + right``, either side open if it is None, or where ``j < prefix``.

| attention | band |
|---|---|
| of all to all | ``Band()`` |
| causal | ``Band(right=0)`` |
| a sliding window of n | ``Band(left=n - 1, right=0)`` |
| causal, after a prefix of n that all see | ``Band(right=0, prefix=n)`` |
| the last queries of a causal sequence | ``Band(right=number of keys - number of queries)`` |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SpecError

CAUSAL_FLAG, ATTRIBUTE = "is_causal", "sees"
"""Attributes of attention: PyTorch's own for plain causal attention, and the text of any other band."""
_SHAPE = re.compile(r"(?:i(?P<left>[+-]\d+)? <= )?j(?: <= i(?P<right>[+-]\d+)?)?(?: or j < (?P<prefix>\d+))?")


@dataclass(frozen=True, slots=True)
class Band:
    """Keys that a query sees.

    >>> print(Band(left=3, right=0), "|", Band(right=0, prefix=2), "|", Band(left=-1), "|", Band())
    i-3 <= j <= i | j <= i or j < 2 | i+1 <= j | j
    >>> all(Band.parse(str(band)) == band for band in (Band(3, 0), Band(None, -2, 7), Band(0, None), Band()))
    True
    """

    left: int | None = None
    right: int | None = None
    prefix: int = 0

    def __str__(self) -> str:
        low = "" if self.left is None else f"i{_signed(-self.left)} <= "
        high = "" if self.right is None else f" <= i{_signed(self.right)}"
        return f"{low}j{high}" + (f" or j < {self.prefix}" if self.prefix else "")

    @staticmethod
    def parse(text: str) -> Band:
        """The inverse of ``str``."""
        found = _SHAPE.fullmatch(text)
        if found is None:
            raise SpecError(f"{text!r} does not say which keys a query sees", help='write "i-3 <= j <= i or j < 2"')
        bounded = "<= j" in text, "j <=" in text
        left, right = (int(found[side] or 0) if there else None for side, there in zip(("left", "right"), bounded))
        return Band(None if left is None else -left, right, int(found["prefix"] or 0))

    @staticmethod
    def of(attrs: Mapping[str, Any]) -> Band:
        """What the attributes of attention say."""
        text = attrs.get(ATTRIBUTE)
        if text is not None:
            return Band.parse(text)
        return Band(right=0) if attrs.get(CAUSAL_FLAG) else Band()

    @property
    def attrs(self) -> dict[str, Any]:
        """As attributes of attention."""
        plain = self in (Band(), Band(right=0))
        return {CAUSAL_FLAG: self == Band(right=0), **({} if plain else {ATTRIBUTE: str(self)})}

    @property
    def sees_all(self) -> bool:
        return self.left is None and self.right is None

    def moved(self, offset: int) -> Band:
        """Of queries that begin at this place: row i is the whole's row ``i + offset``."""
        left = None if self.left is None else self.left - offset
        return Band(left, None if self.right is None else self.right + offset, self.prefix)

    def normal(self, rows: int, keys: int) -> Band:
        """The same of so many queries and keys, with sides open where they bound nothing.

        >>> Band(left=4095, right=0).normal(4096, 4096), Band(left=4095, right=0).normal(4097, 4097)
        (Band(left=None, right=0, prefix=0), Band(left=4095, right=0, prefix=0))
        """
        left = None if self.left is None or self.left >= rows - 1 else self.left
        right = None if self.right is None or self.right >= keys - 1 else self.right
        if self.prefix >= keys or (left is None and right is None):
            return Band()
        hidden = self.prefix if left is not None or (right is not None and right + 1 < self.prefix) else 0
        return Band(left, right, hidden)

    def span(self, row: Any, keys: int) -> tuple[Any, Any]:
        """Begin and end of the keys that a row (or an array of them) sees, but for the prefix; equal if none."""
        low = np.zeros_like(row) if self.left is None else np.clip(row - self.left, 0, keys)
        high = np.full_like(row, keys) if self.right is None else np.clip(row + self.right + 1, 0, keys)
        return low, np.maximum(low, high)

    def pairs(self, start: int, stop: int, keys: int) -> int:
        """How many pairs of a query in [start, stop) and a key it sees there are.

        >>> Band(right=0).pairs(0, 4, 4), Band(left=1, right=0).pairs(0, 4, 4), Band().pairs(2, 4, 4)
        (10, 7, 8)
        """
        low, high = self.span(np.arange(start, stop), keys)
        first = np.minimum(np.minimum(self.prefix, keys), low)  # of the prefix what lies before the band
        after = np.maximum(min(self.prefix, keys) - np.maximum(high, first), 0)
        return int(np.sum(high - low + first + after))

    def every_row_sees(self, rows: int, keys: int) -> bool:
        """Whether each of so many queries sees a key."""
        low, high = self.span(np.arange(rows), keys)
        return keys > 0 and (min(self.prefix, keys) > 0 or bool(np.all(high > low)))


def _signed(number: int) -> str:
    return f"{number:+d}" if number else ""
