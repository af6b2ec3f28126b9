"""How one dimension is cut: chunk after chunk, exactly as PyTorch's DTensor does it.

A dim of size n over k devices gives everyone ``ceil(n/k)`` until nothing is left: the last shards may be
smaller, or empty.  Two axes on one dim cut the chunk of the first again by the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def chunk(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    """The ``index``-th of ``parts`` chunks of [start, stop).

    >>> [chunk(0, 10, 4, i) for i in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    >>> [chunk(0, 2, 3, i) for i in range(3)]
    [(0, 1), (1, 2), (2, 2)]
    """
    width = -(-(stop - start) // parts)
    begin = min(stop, start + width * index)
    return begin, min(stop, begin + width)


def nested_chunk(size: int, parts: Sequence[int], indices: Sequence[int]) -> tuple[int, int]:
    """The slice of a dim that falls to one device, given its index along each axis, major to minor."""
    start, stop = 0, size
    for count, index in zip(parts, indices):
        start, stop = chunk(start, stop, count, index)
    return start, stop


@lru_cache(maxsize=65536)
def padded_size(size: int, parts: tuple[int, ...]) -> int:
    """The largest chunk, which is what collectives pad every shard to.

    >>> padded_size(10, (4,)), padded_size(10, (2, 4))
    (3, 2)
    """
    for count in parts:
        size = -(-size // count)
    return size


@lru_cache(maxsize=4096)
def all_chunks(size: int, parts: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Every slice of a dim, in order of the devices along its axes.

    >>> all_chunks(10, (2, 2))
    ((0, 3), (3, 5), (5, 8), (8, 10))
    """
    slices = [(0, size)]
    for count in parts:
        slices = [chunk(start, stop, count, index) for start, stop in slices for index in range(count)]
    return tuple(slices)
