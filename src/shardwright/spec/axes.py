"""A mesh axis, or a part of one, and the algebra of such parts.

An axis of size 8 can be seen as 2 x 4: its major half ``x:(1)2`` and the rest ``x:(2)4``.  A part is written
``name:(pre)size``: *pre* is the product of everything more major inside the axis.  Two parts are compared as
multiplicative intervals ``[pre, pre*size)``.  Parts that no one way to cut the axis has among its pieces *cannot
coexist*: of an axis of 6, ``x:(1)2`` is for 2 x 3 and ``x:(3)2`` for 3 x 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple


class AxisRef(NamedTuple):
    """An axis (``pre == 1 and size == full``) or a sub-axis of it.

    >>> half = AxisRef("x", 1, 2, 8)
    >>> print(half, AxisRef("x", 1, 8, 8))
    x:(1)2 x
    >>> half.prefix_of(AxisRef("x", 1, 8, 8))
    True
    """

    name: str
    pre: int
    size: int
    full: int

    @property
    def end(self) -> int:
        return self.pre * self.size

    @property
    def is_whole(self) -> bool:
        return self.size == self.full

    def __str__(self) -> str:
        return self.name if self.size == self.full else f"{self.name}:({self.pre}){self.size}"

    def overlaps(self, other: AxisRef) -> bool:
        if self.name != other.name:
            return False
        # Axes of size 1 are empty intervals, yet one axis must not be used twice.
        return self == other or max(self.pre, other.pre) < min(self.end, other.end)

    def coexists(self, other: AxisRef) -> bool:
        """Whether the axis can be cut so that both are made of pieces: where they begin and end divides in order.

        >>> AxisRef("x", 1, 2, 6).coexists(AxisRef("x", 3, 2, 6)), AxisRef("x", 1, 2, 6).coexists(AxisRef("x", 2, 3, 6))
        (False, True)
        """
        if self.name != other.name or self.size == self.full or other.size == other.full:
            return True
        bounds = sorted((self.pre, self.end, other.pre, other.end))
        return not any(after % before for before, after in pairwise(bounds))

    def excludes(self, other: AxisRef) -> bool:
        """Whether one op or sharding cannot use both: they overlap, or cannot coexist."""
        return self.overlaps(other) or not self.coexists(other)

    def contains(self, other: AxisRef) -> bool:
        return self.name == other.name and self.pre <= other.pre and other.end <= self.end

    def prefix_of(self, other: AxisRef) -> bool:
        return (
            self.name == other.name
            and self.pre == other.pre
            and self.size <= other.size
            and other.size % self.size == 0
        )

    def can_merge(self, minor: AxisRef) -> bool:
        """Whether ``minor`` is the part of the same axis that follows this one."""
        return self.name == minor.name and self.end == minor.pre and self.size > 1 and minor.size > 1

    def merge(self, minor: AxisRef) -> AxisRef:
        return AxisRef(self.name, self.pre, self.size * minor.size, self.full)

    def split(self, major_size: int) -> tuple[AxisRef, AxisRef]:
        """Cut into a major part of the given size and the rest."""
        return (
            AxisRef(self.name, self.pre, major_size, self.full),
            AxisRef(self.name, self.pre * major_size, self.size // major_size, self.full),
        )

    def prefix_without_overlap(self, other: AxisRef) -> AxisRef | None:
        """The longest major part of this axis that does not touch ``other``; None if there is none or if they cannot
        coexist."""
        if not self.coexists(other):
            return None
        if not self.overlaps(other):
            return self
        if other.pre <= self.pre:
            return None
        return AxisRef(self.name, self.pre, other.pre // self.pre, self.full)


Axes = tuple[AxisRef, ...]


def axes_size(axes: Iterable[AxisRef]) -> int:
    return prod(axis.size for axis in axes)


def axes_text(axes: Iterable[AxisRef]) -> str:
    return "+".join(map(str, axes))


def merge_axes(axes: Iterable[AxisRef]) -> Axes:
    """Join neighbours that are consecutive parts of one axis.

    >>> axes_text(merge_axes([AxisRef("x", 1, 2, 8), AxisRef("x", 2, 4, 8), AxisRef("y", 1, 2, 2)]))
    'x+y'
    """
    merged: list[AxisRef] = []
    for axis in axes:
        if merged and merged[-1].can_merge(axis):
            merged[-1] = merged[-1].merge(axis)
        else:
            merged.append(axis)
    return tuple(merged)


def is_prefix(major: Sequence[AxisRef], longer: Sequence[AxisRef]) -> bool:
    """Whether the list ``major`` begins the list ``longer`` (the last element may be a major part).

    >>> x = AxisRef("x", 1, 4, 4)
    >>> is_prefix([AxisRef("x", 1, 2, 4)], [x]), is_prefix([x], [AxisRef("x", 1, 2, 4)])
    (True, False)
    """
    if not major:
        return True
    if len(major) > len(longer) or tuple(major[:-1]) != tuple(longer[: len(major) - 1]):
        return False
    return major[-1].prefix_of(longer[len(major) - 1])


def is_strict_prefix(major: Sequence[AxisRef], longer: Sequence[AxisRef]) -> bool:
    return tuple(major) != tuple(longer) and is_prefix(major, longer)


def prefix_without_overlap(axis: AxisRef, others: Iterable[AxisRef]) -> AxisRef | None:
    """The longest major part of ``axis`` that touches none of ``others``."""
    kept: AxisRef | None = axis
    for other in others:
        if kept is None:
            return None
        if kept.name == other.name:
            kept = kept.prefix_without_overlap(other)
    return kept
