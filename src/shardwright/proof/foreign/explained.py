"""`Explained`: which values of the single program the values of the ranks are.

Values of the ranks are put together in every way that a sharding could mean (equal on an axis, side by side along a
dim, to be added up) and looked up among all values of the single program, also as multiples by a number of ranks.
Not every value of a right program is found: a local op may compute a piece of something that the single program never
has as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from ...frontends.ranks import Traced
from .judging import Mesh
from .lockstep import combined
from .numbers import Number, Numbers
from .rounds import Round

PENDING = "P(sum)"
WORDS = {"S": "split along dim ", "P": "partial sums"}


@dataclass(frozen=True)
class Found:
    """A value of the single program, and how the ranks hold it."""

    value: int
    """-1: on the way of an op."""
    way: tuple[str, ...]
    """One for each axis: ``R``, ``S(d)``, ``P(sum)``."""
    factor: Fraction = Fraction(1)
    """The ranks' is so many times that value."""

    @property
    def pending(self) -> tuple[int, ...]:
        """Axes over which it is still to be added up."""
        return tuple(axis for axis, how in enumerate(self.way) if how == PENDING)

    def said(self, mesh: Mesh) -> str:
        parts = [f"{WORDS.get(how[0], how)}{how[1:] if how[0] == 'S' else ''} over {name}"
                 for how, name in zip(self.way, mesh.names) if how != "R"]  # fmt: skip
        return ", ".join(parts) or "whole on every rank"


class Explained:
    """What the values of a round are."""

    def __init__(self, round: Round) -> None:
        self.round = round
        self.mesh = round.case.mesh
        self.numbers: Numbers = round.numbers
        self._partners = [_partners(traced) for traced in round.case.ranks]
        """For every rank: its values by what they are called."""
        self._names = {value: name for name, value in self._partners[0].items()}
        self._known: dict[bytes, tuple[int, Fraction]] = {}
        for value, number in round.single.items():
            self._known.setdefault(_digest(number), (value, Fraction(1)))
        for number in round.inside:
            self._known.setdefault(_digest(number), (-1, Fraction(1)))
        for value, number in round.single.items():
            for factor in self._factors() if number.whole is None else ():
                scaled = self.numbers.multiply(number, self.numbers.number(float(factor)))
                self._known.setdefault(_digest(scaled), (value, factor))
        self._found: dict[int, Found | None] = {}

    def _factors(self) -> list[Fraction]:
        sizes = {*self.mesh.shape, prod(self.mesh.shape)} - {1}
        return [factor for n in sorted(sizes) for factor in (Fraction(n), Fraction(1, n))]

    def of(self, value: int) -> Found | None:
        """What a value of rank 0 is, together with those of the other ranks that are called the same."""
        if value not in self._found:
            parts = self.parts(value)
            ways = [] if parts is None else list(self._ways(parts))
            self._found[value] = min(ways, key=lambda found: found.factor != 1, default=None)
        return self._found[value]

    def parts(self, value: int) -> list[Number] | None:
        """The value on every rank; None if not all have it."""
        places = self.partners(value)
        return None if places is None else [values[place] for values, place in zip(self.round.ranks, places)]

    def partners(self, value: int) -> list[int] | None:
        """The same value on every rank, by the number that it has there."""
        name = self._names[value]
        places = [known.get(name) for known in self._partners]
        return None if None in places else [place for place in places if place is not None]

    def _ways(self, parts: Sequence[Number]) -> Iterator[Found]:
        grid = np.empty(self.mesh.shape, object)
        for rank, part in enumerate(parts):
            grid[self.mesh.coordinate(rank)] = part
        for order in permutations(range(grid.ndim)):  # which axis cuts first
            for number, said in self._assembled(grid.transpose(order), ()):
                known = self._known.get(_digest(number))
                if known is not None:
                    yield Found(known[0], tuple(said[order.index(axis)] for axis in range(grid.ndim)), known[1])

    def _assembled(self, grid: Any, way: tuple[str, ...]) -> Iterator[tuple[Number, tuple[str, ...]]]:
        """All ways to put a grid together, from its last axis to its first."""
        if not grid.ndim:
            yield grid[()], way
            return
        rows = [[grid[at][i] for i in range(grid.shape[-1])] for at in np.ndindex(grid.shape[:-1])]

        def put(make: Any) -> Any:
            made = np.empty(grid.shape[:-1], object)
            for at, row in zip(np.ndindex(grid.shape[:-1]), rows):
                made[at] = make(row)
            return made

        if all(_digest(x) == _digest(row[0]) for row in rows for x in row):
            yield from self._assembled(put(lambda row: row[0]), ("R", *way))
            return
        rank = len(rows[0][0].shape)
        for d in range(rank):
            if all(_fits(row, d) for row in rows):
                yield from self._assembled(put(lambda row, d=d: _joined(row, d)), (f"S({d})", *way))
        if all(x.shape == row[0].shape and x.whole is None for row in rows for x in row):
            yield from self._assembled(put(lambda row: combined(self.numbers, "sum", row)), ("P(sum)", *way))


def _partners(traced: Traced) -> dict[tuple[Any, ...], int]:
    """Values by what is the same on ranks that do the same: the op, its line, and how often that was met before."""
    found: dict[tuple[Any, ...], int] = {
        ("given", given.name): value for given, value in zip(traced.given, traced.graph.inputs)
    }
    met: Counter[tuple[Any, ...]] = Counter()
    for node in traced.graph.nodes:
        what = (node.op, str(node.source))
        for r, value in enumerate(node.results):
            found[(*what, met[what], r)] = value
        met[what] += 1
    return found


def _digest(number: Number) -> bytes:
    held = number.whole if number.whole is not None else number.residue
    assert held is not None
    shape = tuple(size for size in held.shape if size != 1)
    text = repr((shape, number.whole is None)).encode()
    return blake2b(text + np.ascontiguousarray(held).tobytes(), digest_size=16).digest()


def _fits(row: Sequence[Number], d: int) -> bool:
    first = row[0].shape
    return all(
        len(x.shape) == len(first) and x.shape[:d] == first[:d] and x.shape[d + 1 :] == first[d + 1 :] for x in row
    )


def _joined(row: Sequence[Number], d: int) -> Number:
    if row[0].whole is not None:
        return Number(row[0].dtype, np.concatenate([x.whole for x in row], d))
    parts = [(x.residue, x.height) for x in row]
    residue, height = (np.concatenate([part[i] for part in parts], d) for i in (0, 1))
    return Number(row[0].dtype, None, residue, height)
