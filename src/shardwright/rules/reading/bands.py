"""A mask as a `Band`: which keys each query sees, if one band says it of all queries."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from ...spec.band import Band
from ...spec.sharding import Shape
from .numbers import Array, Number, as_runs, merged

FARTHEST = {"f64": 2.0**1021}
"""A finite number this far below zero hides a key as minus infinity does: no score makes up for it."""
_FARTHEST = 2.0**125  # of scores in float32


def band_of(mask: Number | None, shape: Shape, rows: int, keys: int, query: str = "f32") -> Band | None:
    """The band that a mask of this shape says of so many queries and keys; None if it is none, or not known.

    A boolean mask is true where a key is seen.  Numbers are added to scores: 0 where it is seen, and where it is not
    minus infinity, or a number near the least of the type that scores have (``query`` says of what they are made).  To
    a row that sees a key that is the same, for the exponential of what lies so far below is exactly zero, as long as
    scores are a quarter of it at most; a row that sees none would see all alike, so then it is no band.
    """
    seen = None if mask is None else _seen(mask, shape, rows, keys, FARTHEST.get(query, _FARTHEST))
    if seen is None:
        return None
    for band in _candidates(seen, rows, keys):
        if np.array_equal(_edges(band, rows, keys), seen):
            return band.normal(rows, keys)
    return None


def _seen(mask: Number, shape: Shape, rows: int, keys: int, far: float) -> Array | None:
    """For each row the runs of keys that it sees."""
    dims = (len(shape) - 2, len(shape) - 1)
    if len(shape) < 2 or shape[-1] != keys or shape[-2] not in (1, rows) or not rows or not keys:
        return None
    found = as_runs(mask, len(shape), dims, (rows, keys))
    if found is None:
        return None
    values, edges = (found.inside, found.outside), found.edges
    if edges.shape[0] != rows:
        edges = np.broadcast_to(edges, (rows, edges.shape[1]))
    wanted, least = 1.0, -inf
    if found.dtype != "bool":
        wanted, least = 0.0, min(values)
        if any(value not in (0, least) for value in values) or (least != 0 and not least <= -far):
            return None
    seen = merged([edges], keys, lambda here: np.where(here[0], values[0] == wanted, values[1] == wanted))
    if seen is None or (least not in (0, -inf) and not bool(np.all(_sees_any(seen)))):
        return None
    return seen


def _sees_any(edges: Array) -> Array:
    return np.any(edges[:, 1::2] > edges[:, ::2], axis=1) if edges.shape[1] else np.zeros(len(edges), np.bool_)


def _edges(band: Band, rows: int, keys: int) -> Array:
    """The runs that a band says, as `merged` writes them."""
    row = np.arange(rows, dtype=np.int64)
    first = np.broadcast_to(np.array([0, min(band.prefix, keys)], np.int64), (rows, 2))
    edges = merged([np.stack(band.span(row, keys), axis=1), first], keys, lambda here: here[0] | here[1])
    assert edges is not None
    return edges


def _candidates(seen: Array, rows: int, keys: int) -> Iterator[Band]:
    """Bands that it may be, the plainest first: sides as far from the diagonal as in most rows that have them."""
    row = np.arange(rows)
    some = _sees_any(seen)
    begin, end = np.full(rows, keys), np.zeros(rows, np.int64)
    for low, high in zip(seen.T[::2], seen.T[1::2]):
        there = high > low
        begin, end = np.where(there, low, begin), np.where(there, high, end)  # of the last run
    lefts = [None, *_most((row - begin)[some & (begin > 0)])]
    rights = [None, *_most((end - 1 - row)[some & (end < keys)])]
    first = seen[:, 1][seen[:, 0] == 0] if seen.shape[1] else np.zeros(0, np.int64)
    prefixes = [0, *dict.fromkeys([*_most(first), *first[:1].tolist(), *first[-1:].tolist()])]
    for prefix in prefixes:
        for left in lefts:
            for right in rights:
                yield Band(left, right, int(prefix))


def _most(numbers: Array) -> list[int]:
    """The two that come up most."""
    values, counts = np.unique(numbers, return_counts=True)
    return [int(values[i]) for i in np.argsort(-counts, kind="stable")[:2]]
