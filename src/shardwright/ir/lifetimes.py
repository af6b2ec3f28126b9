"""How long values are needed: by those who read them, and by views that show their bytes.

The one place that says so: engines drop what is dead, costs count what is alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Use(NamedTuple):
    """One step of any list: the values it reads and makes, and which of those it makes show what it reads."""

    reads: Sequence[int]
    makes: Sequence[int]
    views: Sequence[tuple[int, int]] = ()
    """Pairs (place in makes, place in reads)."""


class Lifetimes(NamedTuple):
    """Of all values."""

    owner: list[int]
    """Whose bytes a value shows; itself, if it is no view."""
    last: dict[int, int]
    """The last step that reads a value, or a view of it; not of values that are kept."""


def lifetimes(count: int, uses: Iterable[Use], kept: Iterable[int] = ()) -> Lifetimes:
    """Of ``count`` values; what is ``kept``, with what it shows, never ends.

    >>> lifetimes(4, [Use((0,), (1,), ((0, 0),)), Use((1,), (2,)), Use((2,), (3,))], kept=[3]).last
    {0: 1, 1: 1, 2: 2}
    """
    owner = list(range(count))
    last: dict[int, int] = {}
    for n, (reads, makes, views) in enumerate(uses):
        for place, shown in views:
            owner[makes[place]] = owner[reads[shown]]
        for value in (*reads, *makes):
            last[value] = n
            last[owner[value]] = n
    for value in kept:
        last.pop(value, None)
        last.pop(owner[value], None)
    return Lifetimes(owner, last)
