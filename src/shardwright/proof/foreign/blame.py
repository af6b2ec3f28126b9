"""`blame`: the first op of a wrong program whose value is not one of the single program's.

Values of the ranks are put together in every way that a sharding could mean (equal on an axis, side by side along a
dim, to be added up) and looked up among all values of the single program.  A value that is found in some way is
*explained*.  Not all values of a right program are: a local op may compute a piece of something that the single
program never has as a whole.  But what leads to a wrong output goes wrong somewhere, and the first op that makes
something unexplained of what is explained is the place to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ...frontends.ranks import Traced
from ...ir.graph import Node
from .judging import Mesh
from .lockstep import combined
from .numbers import Number, Numbers
from .proving import Round


@dataclass(frozen=True)
class Found:
    """A value of the single program, and how the ranks hold it."""

    value: int
    way: tuple[str, ...]
    """One for each axis: ``R``, ``S(d)``, ``P(sum)``."""

    def said(self, mesh: Mesh) -> str:
        parts = [f"{how} over {name}" for how, name in zip(self.way, mesh.names) if how != "R"]
        return ", ".join(parts) or "R"


@dataclass(frozen=True)
class Blamed:
    """The op where it goes wrong."""

    node: int
    op: Node
    result: int
    operands: tuple[tuple[str, Found | None], ...]
    """What it reads, by name."""


class Explained:
    """What the values of a round are."""

    def __init__(self, round: Round) -> None:
        self.round = round
        self.mesh = round.case.mesh
        self.numbers: Numbers = round.numbers
        self._partners = [_partners(traced) for traced in round.case.ranks]
        """For every rank: its values by what they are called."""
        self._names = {value: name for name, value in self._partners[0].items()}
        self._known: dict[bytes, int] = {}
        for value, number in round.single.items():
            self._known.setdefault(_digest(number), value)
        self._found: dict[int, Found | None] = {}

    def of(self, value: int) -> Found | None:
        """What a value of rank 0 is, together with those of the other ranks that are called the same."""
        if value not in self._found:
            parts = self.parts(value)
            self._found[value] = None if parts is None else next(self._ways(parts), None)
        return self._found[value]

    def parts(self, value: int) -> list[Number] | None:
        """The value on every rank; None if not all have it."""
        name = self._names[value]
        places = [known.get(name) for known in self._partners]
        if any(place is None for place in places):
            return None
        return [values[place] for values, place in zip(self.round.ranks, places) if place is not None]

    def _ways(self, parts: Sequence[Number]) -> Iterator[Found]:
        grid = np.empty(self.mesh.shape, object)
        for rank, part in enumerate(parts):
            grid[self.mesh.coordinate(rank)] = part
        for number, way in self._assembled(grid, ()):
            value = self._known.get(_digest(number))
            if value is not None:
                yield Found(value, way)

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


def blame(round: Round, wrong: Sequence[int]) -> Blamed | None:
    """Where outputs (by position in rank 0's) begin to be wrong; None if that is not found."""
    explained = Explained(round)
    graph = round.case.ranks[0].graph
    needed = _ancestors(graph.nodes, [graph.outputs[i] for i in wrong])
    for n in sorted(needed):
        node = graph.nodes[n]
        for r, value in enumerate(node.results):
            if explained.of(value) is not None or not _is_float(round, value):
                continue
            reads = [(graph.values[v].name, explained.of(v)) for v in node.inputs]
            if all(found is not None for _, found in reads):
                return Blamed(n, node, r, tuple(reads))
    return None


def _is_float(round: Round, value: int) -> bool:
    return round.ranks[0][value].whole is None


def _ancestors(nodes: Sequence[Node], values: Sequence[int]) -> set[int]:
    wanted = set(values)
    found = set()
    for n in range(len(nodes) - 1, -1, -1):
        if not wanted.isdisjoint(nodes[n].results):
            found.add(n)
            wanted.update(nodes[n].inputs)
    return found


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
    text = repr((held.shape, number.whole is None)).encode()
    return blake2b(text + np.ascontiguousarray(held).tobytes(), digest_size=16).digest()


def _fits(row: Sequence[Number], d: int) -> bool:
    first = row[0].shape
    return all(x.shape[:d] == first[:d] and x.shape[d + 1 :] == first[d + 1 :] for x in row)


def _joined(row: Sequence[Number], d: int) -> Number:
    if row[0].whole is not None:
        return Number(row[0].dtype, np.concatenate([x.whole for x in row], d))
    return Number(row[0].dtype, None, np.concatenate([x.residue for x in row], d), row[0].height)
